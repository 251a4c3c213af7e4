"""How an experiment is: from its command, its shards, its trainer, its workers and the coordinator.

Pure; it is running only while something of it moves, and whatever else it is says what holds it up.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from heddle import markup
from heddle.broker.records import Status
from heddle.broker.seats import wants_trainer
from heddle.broker.types import ShardState
from heddle.states.facts import Facts
from heddle.states.judgement import Judgement, ids, newest, unknown
from heddle.states.roles import MORE_MEMORY, judge_broker, judge_leader, judge_pool, judge_trainer
from heddle.states.shards import MEND, failing, judge_shard
from heddle.states.workers import judge_worker

STALL_MS = 5_000
"""Nothing trained for this long (or a lease's TTL, if that is longer) is a stall where nothing explains it."""
LONG_WAIT_MS = 3_000
"""Shards are handed over within seconds: one that waits longer for a worker is worth a word."""

OFFLINE = "offline: it trains on recorded experience, and no worker plays for it"


@dataclass(frozen=True, slots=True)
class Picture:
    """One experiment with everything around it, judged from the same facts.

    Attributes:
        experiment, trainer, leader, pool: one judgement each.
        shards: by their index; workers: by id, those of its pool.
    """

    experiment: Judgement
    trainer: Judgement
    leader: Judgement
    pool: Judgement
    shards: dict[int, Judgement]
    workers: dict[str, Judgement]

    def _repr_html_(self) -> str:
        """For notebooks: one line for each."""
        everything = (self.experiment, self.trainer, self.leader, self.pool)
        rows = [
            (one.subject, one.state, one.why, one.do)
            for one in (*everything, *self.shards.values(), *self.workers.values())
        ]
        return markup.table(("what", "state", "why", "what to do"), rows, empty="")


def judge(facts: Facts) -> Picture:
    """How an experiment and everything around it is."""
    workers = {
        name: judge_worker(info, facts.sight, facts.pool.supervisors) for name, info in facts.pool.workers.items()
    }
    alive = sum(one.state in ("alive", "waiting", "unknown") for one in workers.values())
    trainer, leader, pool = judge_trainer(facts), judge_leader(facts.sight, facts.leader), judge_pool(facts, alive)
    shards = {
        shard.shard: judge_shard(shard, facts, workers=workers, trainer=trainer, leader=leader)
        for shard in facts.shards
    }
    picture = Picture(Judgement("", ""), trainer, leader, pool, shards, workers)
    return replace(picture, experiment=_experiment(facts, picture))


def judge_ended(status: Status) -> Judgement:
    """How an experiment is that is over: nothing around it matters any more."""
    since_ms = status.ended_ms or status.since_ms
    return Judgement(f"experiment {status.experiment}", status.state, status.reason, since_ms=since_ms)


def _experiment(facts: Facts, picture: Picture) -> Judgement:
    status, subject = facts.status, f"experiment {facts.id}"
    since_ms = status.since_ms or status.created_ms
    if status.ended:
        return judge_ended(status)
    if facts.damaged:
        do = f"a coordinator mends it, or ends the experiment, within seconds; else: heddle rm --force {facts.id}"
        because = (picture.leader,) if picture.leader.state == "absent" else ()
        return Judgement(subject, "stalled", facts.damaged, do, since_ms=since_ms, because=because)
    if status.state == "queued":
        if picture.leader.state == "absent":
            why, because = "no coordinator admits it", (picture.leader,)
            return Judgement(subject, "queued", why, picture.leader.do, since_ms=since_ms, because=because)
        return Judgement(subject, "queued", "a coordinator admits it within seconds", since_ms=since_ms)
    if status.command == "stop" or status.state == "stopping":
        return _stopping(facts, picture)
    if status.command == "pause":
        do = f"go on with: heddle resume {facts.id}"
        return Judgement(
            subject, "paused", "it was paused, by somebody or by its trainer: its log says why", do, since_ms=since_ms
        )
    missing = [one for one in (picture.trainer, *picture.shards.values()) if one.state == "unknown"]
    if missing:
        why = "the broker came back a moment ago, and not everybody has been heard of since"
        return replace(unknown(subject, why), because=tuple(missing[:4]))
    held = _held_up(facts, picture)
    return held if held is not None else _running(facts, picture)


def _stopping(facts: Facts, picture: Picture) -> Judgement:
    leased = [shard.shard for shard in facts.shards if shard.state == "leased"]
    trainer, because = picture.trainer, []
    if leased:
        why = f"workers give back shards {ids(leased)}"
        because = [picture.shards[number] for number in leased if picture.shards[number].state == "stalled"][:3]
    elif trainer.state == "absent":
        why, because = "no trainer saves its last work; it ends without one 15 s after the last", [trainer]
    else:
        why = "its trainer trains on what is left and saves"
    if facts.status.outcome:
        left = facts.flow.entries
        why = "a coordinator writes down how it ended"
        if wants_trainer(facts.status.outcome, left):
            why = f"{left} batches came back with a killed broker; a trainer settles them, else they stay untrained"
    if picture.leader.state == "absent":
        because.append(picture.leader)
    do = next((one.do for one in because if one.do), "")
    since_ms = facts.status.since_ms if facts.status.state == "stopping" else 0
    return Judgement(f"experiment {facts.id}", "stopping", why, do, since_ms=since_ms, because=tuple(because))


def _held_up(facts: Facts, picture: Picture) -> Judgement | None:
    """What keeps it from training at all; None while something moves."""
    trainer, idle_ms = picture.trainer, facts.sight.now_ms - _trained_ms(facts)
    long_idle = idle_ms >= _patience_ms(facts)
    broker = judge_broker(facts)
    if broker is not None and (long_idle or facts.status.policy <= 0):
        why = f"waits for room: {broker.why}"
        return _waits(facts, "room", why, f"{broker.do}; it then goes on by itself", _trained_ms(facts), (broker,))
    if trainer.state == "absent":
        if trainer.subject == "trainer" or facts.sitter.gone_ms:
            return _waits(
                facts, "trainer", f"waits for a trainer: {trainer.why}", trainer.do, trainer.since_ms, (trainer,)
            )
        if long_idle:
            return _stalled(facts, f"nothing is trained: {trainer.why}", trainer.do, trainer.since_ms, (trainer,))
        return None
    if trainer.state == "stalled":
        return _stalled(
            facts, f"nothing is trained: the trainer is stuck, {trainer.why}", trainer.do, trainer.since_ms, (trainer,)
        )
    if trainer.state in ("training", "starting") and facts.status.policy > 0:
        return None
    if trainer.waits_for == "room" and (long_idle or facts.status.policy <= 0):
        why = f"waits for room: {trainer.why}"
        return _waits(facts, "room", why, f"{trainer.do}; it then goes on by itself", trainer.since_ms, (trainer,))
    if facts.status.policy <= 0:
        return _waits(facts, "policy", "waits for its trainer's first policy", "", trainer.since_ms, (trainer,))
    return _not_played(facts, picture, long_idle=long_idle)


def _not_played(facts: Facts, picture: Picture, *, long_idle: bool) -> Judgement | None:
    """The trainer waits for experience; None when it comes, for some train shard is played."""
    train = [(shard, picture.shards[shard.shard]) for shard in facts.shards if shard.kind == "train"]
    states = {judgement.state for _, judgement in train}
    if "playing" in states or not train:
        return None
    stalled = _of(train, "stalled")
    if stalled:
        first = stalled[0]
        numbers = ids([shard.shard for shard, judgement in train if judgement.state == "stalled"])
        which = f"shard {numbers} is" if numbers.isdecimal() else f"shards {numbers} are"
        why = f"nothing is played: {which} stalled, {first.why}"
        return _stalled(facts, why, first.do, min(one.since_ms for one in stalled), tuple(stalled[:3]))
    for_workers = [one for one in _of(train, "waiting") if one.waits_for == "workers"]
    if for_workers:
        since_ms = min(one.since_ms for one in for_workers)
        if picture.pool.state == "absent":
            why = f"waits for workers: {picture.pool.why}"
            dead = newest(picture.workers.values(), "dead")
            return _waits(facts, "workers", why, picture.pool.do, since_ms, (picture.pool, *dead))
        failed = next((shard for shard, one in train if one in for_workers and failing(shard)), None)
        first = picture.shards[failed.shard] if failed else for_workers[0]
        why = f"no shard is played: {f'shard {failed.shard}' if failed else 'the first'} {first.why}"
        return _waits(facts, "workers", why, first.do, since_ms, (first,))
    moved_ms = max(max(shard.accepted_ms, shard.since_ms) for shard, _ in train)
    if not long_idle or facts.sight.now_ms - moved_ms < _patience_ms(facts):
        return None
    waiting = _of(train, "waiting")
    if waiting and waiting[0].waits_for == "room" and not facts.flow.entries:
        why = "waits for room: the broker has none for a single batch (maxmemory)"
        return _waits(facts, "room", why, MORE_MEMORY, waiting[0].since_ms, tuple(waiting[:1]))
    because = (picture.trainer, *waiting[:1])
    why = (
        f"nothing is trained: the trainer waits for experience and its shards wait: {waiting[0].why}"
        if waiting
        else "nothing is trained"
    )
    return _stalled(facts, why, f"see: heddle why experiment {facts.id}", _trained_ms(facts), because)


def _running(facts: Facts, picture: Picture) -> Judgement:
    """It trains: running, or degraded by what is not as it should be."""
    now = facts.sight.now_ms
    shards = [(shard, picture.shards[shard.shard]) for shard in facts.shards]
    wrong = _of(shards, "quarantined") + _of(shards, "stalled")
    wrong += [
        one
        for one in _of(shards, "waiting")
        if one.waits_for == "workers" and one.since_ms and now - one.since_ms > max(LONG_WAIT_MS, facts.ttl_ms)
    ]
    again = [one for one, judged in shards if judged.state == "playing" and one.failures > 1 and failing(one)]
    reasons = [
        Judgement(f"shard {facts.id}/{one.shard}", "playing", f"shard {one.shard} {failing(one)}", MEND)
        for one in again
    ]
    reasons += [one for one in (picture.trainer, picture.leader) if one.state == "absent"]
    reasons += [picture.pool] if facts.shards and not picture.pool.is_green else []
    broker = judge_broker(facts)
    reasons += [broker] if broker is not None else []
    because = (*wrong[:8], *reasons)
    since_ms = facts.status.started_ms
    if not because and facts.room:
        count = f"{len(facts.room)} shards wait" if len(facts.room) > 1 else "a shard waits"
        why, do = f"its trainer does not keep up: {count} for room in the stream", f"see: heddle trace {facts.id}"
        return Judgement(f"experiment {facts.id}", "running", why, do, since_ms=min(facts.room.values()))
    if not because:
        why = "" if any(shard.kind == "train" for shard in facts.shards) else OFFLINE
        return Judgement(f"experiment {facts.id}", "running", why, since_ms=since_ms)
    first = because[0]
    why = f"{first.subject} is {first.state}: {first.why}" if wrong else first.why
    more = len(wrong) + len(reasons) - 1
    why += f" (and {more} more)" if more else ""
    return Judgement(f"experiment {facts.id}", "degraded", why, first.do, since_ms=first.since_ms, because=because)


def _patience_ms(facts: Facts) -> int:
    return max(STALL_MS, facts.ttl_ms)


def _trained_ms(facts: Facts) -> int:
    """When it was last trained, or could have begun to be."""
    return max(facts.updated_ms, facts.status.started_ms, facts.status.since_ms, facts.sitter.since_ms)


def _of(shards: Sequence[tuple[ShardState, Judgement]], state: str) -> list[Judgement]:
    return [judgement for _, judgement in shards if judgement.state == state]


def _waits(facts: Facts, what: str, why: str, do: str, since_ms: int, because: tuple[Judgement, ...]) -> Judgement:
    subject = f"experiment {facts.id}"
    return Judgement(subject, "waiting", why, do, waits_for=what, since_ms=since_ms, because=because)


def _stalled(facts: Facts, why: str, do: str, since_ms: int, because: tuple[Judgement, ...]) -> Judgement:
    return Judgement(f"experiment {facts.id}", "stalled", why, do, since_ms=since_ms, because=because)
