"""How an experiment's trainer is, and whether a coordinator leads: from seat, leader's lease and what they last said.

Pure; a trainer that keeps its seat and never comes back from an update is not well.
"""

from heddle.broker.coordinators import LEADER_TTL_MS, Leader
from heddle.broker.seats import SEAT_TTL_MS
from heddle.states.facts import Facts, Sight
from heddle.states.judgement import BROKER_WAS_AWAY, Judgement, unknown

SLOW_UPDATES = 5
"""An update that takes this many times as long as the one before it may have stopped for good."""
FIRST_UPDATE_MS = 60_000
"""How long anything may take that nobody has measured yet: a first update loads and compiles, a disk may be slow."""
MORE_MEMORY = "raise maxmemory or remove what is over: heddle rm EXP"
LEADER_GRACE_MS = 1_000
"""A leader's lease changes hands this fast where another coordinator waits for it."""


def judge_trainer(facts: Facts) -> Judgement:
    """How the trainer is: starting, training, waiting (for experience), paused, stalled, or absent."""
    sitter = facts.sitter
    start = f"start one: heddle trainer {facts.id}"
    if not sitter.trainer and not sitter.left_ms:
        since = facts.status.started_ms or facts.status.since_ms
        do = f"start one, unless `heddle up` or `heddle trainer` runs: heddle trainer {facts.id}"
        return Judgement("trainer", "absent", "no trainer has taken the seat yet", do, since_ms=since)
    subject = f"trainer {sitter.trainer}"
    if not sitter.left_ms:
        if sitter.gone_ms:
            return Judgement(subject, "absent", "the last trainer left its seat", start, since_ms=sitter.gone_ms)
        if facts.sight.seen_for_ms < SEAT_TTL_MS:
            return unknown(subject, BROKER_WAS_AWAY, since_ms=sitter.seen_ms)
        why = f"trainer {sitter.trainer} does not renew its seat: it ended, is frozen or is cut off"
        do = f"`heddle up` and `heddle run` replace theirs within half a minute; else {start}"
        return Judgement(subject, "absent", why, do, since_ms=sitter.seen_ms)
    since_ms = sitter.seen_ms - sitter.doing_ms
    if sitter.doing in ("update", "checkpoint", "start") and sitter.doing_ms > _patience_ms(facts):
        what = {"update": "its update", "checkpoint": "its checkpoint", "start": "its start"}[sitter.doing]
        do = f"look at trainer {sitter.trainer} and its log"
        return Judgement(subject, "stalled", f"{what} does not come back", do, since_ms=since_ms)
    if sitter.doing == "pause":
        return Judgement(subject, "paused", since_ms=since_ms)
    if sitter.doing == "refused":
        why = "the broker has no room for the trainer's policy (maxmemory)"
        return Judgement(subject, "waiting", why, MORE_MEMORY, waits_for="room", since_ms=since_ms)
    if sitter.doing == "wait":
        return Judgement(subject, "waiting", "waits for experience", waits_for="experience", since_ms=since_ms)
    if sitter.doing == "start":
        return Judgement(subject, "starting", "reads its checkpoint and publishes", since_ms=since_ms)
    return Judgement(subject, "training", since_ms=since_ms)


def judge_leader(sight: Sight, leader: Leader | None) -> Judgement:
    """Whether a coordinator leads: leading or absent.

    Args:
        leader: who leads or led last; None when the last one left or none ever was.
    """
    start = "start one: heddle coordinator"
    if leader is None:
        return Judgement("coordinator", "absent", "no coordinator leads", start)
    subject = f"coordinator {leader.coordinator}"
    if leader.left_ms or sight.now_ms - leader.until_ms < LEADER_GRACE_MS:
        return Judgement(subject, "leading")
    if sight.seen_for_ms < LEADER_TTL_MS:
        return unknown(subject, BROKER_WAS_AWAY, since_ms=leader.until_ms)
    why = f"coordinator {leader.coordinator} does not renew its lead: it ended, is frozen or is cut off"
    return Judgement(subject, "absent", why, start, since_ms=leader.until_ms)


def judge_pool(facts: Facts, alive: int) -> Judgement:
    """Whether a pool has the workers that it shall have: alive or absent (none) or degraded (too few)."""
    pool = facts.pool
    subject = f"pool {pool.name}"
    if not alive:
        why, do = f"pool {pool.name} has no live worker", f"start some: heddle workers start --pool {pool.name} -n 2"
        ends = sorted((info.seen_ms, info.died) for info in pool.workers.values() if info.died)
        if ends and pool.supervisors:  # others are started, and will end alike
            why = f"{why}; of the last one its supervisor says that {ends[-1][1]}"
            do = "another one is started within seconds; should it end alike: heddle logs --level warning"
        return Judgement(subject, "absent", why, do)
    if pool.wanted is not None and alive < pool.wanted:
        why = f"pool {pool.name} has {alive} of {pool.wanted} workers"
        return Judgement(subject, "degraded", why, f"see why: heddle workers ls --pool {pool.name}")
    return Judgement(subject, "alive")


def _patience_ms(facts: Facts) -> int:
    measured = round(1000 * SLOW_UPDATES * facts.update_s)
    return max(facts.ttl_ms, measured) if facts.updated_ms and facts.sitter.doing == "update" else FIRST_UPDATE_MS


def judge_broker(facts: Facts) -> Judgement | None:
    """Why the broker takes no experience; None when it does."""
    if facts.blocked:
        replicas = "bring its replicas back, or lower its min-replicas-to-write"
        do = replicas if "replicas" in facts.blocked else "free space on its disk"
        return Judgement("broker", "blocked", f"the broker {facts.blocked}", do)
    if facts.out_of_memory:
        why = "the broker is out of memory (maxmemory) and takes no policy and no batch"
        return Judgement("broker", "full", why, MORE_MEMORY)
    return None
