"""How a shard is: from its lease, from its worker's progress, and from what it may be waiting for.

Pure; a lease that is alive is no reason to call a shard playing.
"""

from collections.abc import Mapping
from dataclasses import replace

from heddle.broker.types import ShardState
from heddle.states.facts import Facts
from heddle.states.judgement import BROKER_WAS_AWAY, Judgement, newest, unknown
from heddle.states.roles import judge_pool

LONG_QUEUED_MS = 3_000
"""With workers and a coordinator there a queued shard is claimed within two seconds or so."""


MEND = "mend that: after faults.env_failures of them in a row it is set aside (quarantined)"


def failing(shard: ShardState) -> str:
    """How its environments failed, again and again maybe; "" where they did not, or a batch was accepted since."""
    count = shard.failures
    if not count or not shard.last_error or shard.seq > shard.failed_seq:
        return ""
    return f"failed {'once' if count == 1 else f'{count} times in a row'}: {shard.last_error}"


def judge_shard(
    shard: ShardState, facts: Facts, *, workers: Mapping[str, Judgement], trainer: Judgement, leader: Judgement
) -> Judgement:
    """How a shard is: playing, waiting, stalled, paused, quarantined or stopped."""
    subject, command = f"shard {facts.id}/{shard.shard}", facts.status.command
    if shard.state == "quarantined":
        count = max(shard.deaths, shard.failures)
        who = "its last owner" if count == 1 else f"{count} owners in a row"
        why = f"{who} failed with it: {shard.last_error or 'they died while stepping it'}"
        do = "" if facts.status.ended else f"mend that, then: heddle shards release {facts.id}/{shard.shard}"
        return Judgement(subject, "quarantined", why, do, since_ms=shard.since_ms)
    if shard.state == "stopped" or facts.status.ended:
        return Judgement(subject, "stopped", since_ms=shard.since_ms)
    if shard.state == "leased":
        return _leased(shard, facts, workers=workers, trainer=trainer, leader=leader)
    if command != "run":
        return Judgement(subject, "paused" if command == "pause" else "stopped", since_ms=shard.since_ms)
    return _queued(shard, facts, workers=workers, leader=leader)


def _queued(shard: ShardState, facts: Facts, *, workers: Mapping[str, Judgement], leader: Judgement) -> Judgement:
    subject, since_ms = f"shard {facts.id}/{shard.shard}", shard.since_ms
    pool, able = facts.pool.name, [one for one in workers.values() if one.state in ("alive", "waiting")]
    failed = failing(shard)
    because: tuple[Judgement, ...] = ()
    do = ""
    if not able:
        why = f"waits for a worker, and pool {pool} has none that works"
        do = judge_pool(facts, 0).do
        because = newest(workers.values(), "stalled", "dead")
    elif leader.state == "absent" and facts.sight.now_ms - since_ms > LONG_QUEUED_MS:
        why, do, because = "waits for a worker, and its ticket may be lost", leader.do, (leader,)
    elif failed:
        why, do = f"{failed}; it waits for a worker that tries again", MEND
    else:
        why = f"waits for a worker: {len(able)} are there, and one takes it within seconds unless its environment"
        why += " failed with each of them"
    return Judgement(subject, "waiting", why, do, waits_for="workers", since_ms=since_ms, because=because)


def _leased(
    shard: ShardState, facts: Facts, *, workers: Mapping[str, Judgement], trainer: Judgement, leader: Judgement
) -> Judgement:
    subject, worker = f"shard {facts.id}/{shard.shard}", workers.get(shard.worker)
    if not shard.lease_ms and facts.sight.seen_for_ms < facts.ttl_ms:
        return unknown(subject, BROKER_WAS_AWAY, since_ms=_silent_since(shard, facts))
    if not shard.lease_ms:
        why = f"its worker {shard.worker} let its lease run out"
        because = (*((worker,) if worker is not None else ()), leader)
        do = leader.do if leader.state == "absent" else "the coordinator gives it to another one"
        return Judgement(subject, "stalled", why, do, since_ms=_silent_since(shard, facts), because=because)
    if worker is not None and worker.state in ("stalled", "dead"):
        why = f"its worker {shard.worker} is {worker.state}"
        do = "another one gets it once its lease has run out" if not facts.pool.workers[shard.worker].beat.doing else ""
        if _is_stuck_here(shard, facts):
            why = worker.why.replace(f" of {facts.id}/{shard.shard}", "")
        return Judgement(subject, "stalled", why, do or worker.do, since_ms=worker.since_ms, because=(worker,))
    moved_ms = max(shard.accepted_ms, shard.since_ms)
    if worker is None and facts.sight.now_ms - moved_ms > facts.ttl_ms:
        why = f"its worker {shard.worker} renews its lease and has neither heartbeat nor batches"
        return Judgement(subject, "stalled", why, "look where it runs", since_ms=moved_ms)
    if facts.status.command == "pause":
        return Judgement(subject, "paused", since_ms=facts.status.since_ms)
    waiting = _waiting(shard, facts, trainer=trainer)
    if waiting is None and worker is not None and worker.state == "waiting":  # it holds shards and can play none
        waiting = _with_its_worker(shard, facts, replace(worker, subject=subject, since_ms=moved_ms), trainer)
    return waiting or Judgement(subject, "playing", since_ms=shard.since_ms)


def _with_its_worker(shard: ShardState, facts: Facts, worker: Judgement, trainer: Judgement) -> Judgement:
    """A shard that could be played by what the broker knows, of a worker that says it can play none of its own.

    Args:
        worker: how that one is, said of the shard.
    """
    whose, _, rest = worker.why.partition(" ")
    if whose == f"{facts.id}/{shard.shard}":
        worker = replace(worker, why=rest)
    elif "/" in whose and (not whose.startswith(f"{facts.id}/") or worker.waits_for == "environments"):
        why = f"waits for its turn on its worker {shard.worker}, where {worker.why}"
        return replace(worker, why=why, waits_for="turn")
    return replace(worker, because=(trainer,) if worker.waits_for in ("room", "policy") else ())


def _waiting(shard: ShardState, facts: Facts, *, trainer: Judgement) -> Judgement | None:
    """What a shard in good hands waits for; None when it is played."""
    subject, status = f"shard {facts.id}/{shard.shard}", facts.status
    since_ms = max(shard.accepted_ms, shard.since_ms)
    because = (trainer,)
    if shard.shard in facts.room or shard.parked_bytes:
        since_ms = facts.room.get(shard.shard, since_ms)
        why = "waits for room: its batch is played and the stream is full until the trainer has trained"
        return Judgement(subject, "waiting", why, trainer.do, waits_for="room", since_ms=since_ms, because=because)
    if shard.kind == "eval":
        if status.eval_policy > shard.given:
            return None
        return Judgement(subject, "waiting", "waits for the next evaluation", waits_for="evaluation", since_ms=since_ms)
    if status.policy <= 0:
        why = "waits for the first policy"
        return Judgement(subject, "waiting", why, trainer.do, waits_for="policy", since_ms=since_ms, because=because)
    if facts.ctl.sync and shard.given >= status.policy:
        why = f"waits for a policy newer than {shard.given}: with sync = true the trainer trains on this one first"
        return Judgement(subject, "waiting", why, trainer.do, waits_for="policy", since_ms=since_ms, because=because)
    return None


def _is_stuck_here(shard: ShardState, facts: Facts) -> bool:
    info = facts.pool.workers.get(shard.worker)
    return info is not None and info.beat.subject == f"{facts.id}/{shard.shard}"


def _silent_since(shard: ShardState, facts: Facts) -> int:
    info = facts.pool.workers.get(shard.worker)
    return info.seen_ms if info is not None else max(shard.accepted_ms, shard.since_ms)
