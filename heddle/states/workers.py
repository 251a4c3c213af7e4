"""How a worker is: from its heartbeat, from what that says of its loop, and from who saw it die.

Pure; a process that exists is no reason to call it alive.
"""

from collections.abc import Collection

from heddle.broker.pools import WorkerInfo
from heddle.broker.presence import WorkerBeat
from heddle.lease import in_words
from heddle.states.facts import Sight
from heddle.states.judgement import BROKER_WAS_AWAY, Judgement, span, unknown

SLOW_CALLS = 3
"""A call into user code that lasts this many times as long as calls usually do may have stopped for good."""


def quiet_after_ms(ttl_ms: int) -> int:
    """How long a worker that beats once a second, in large pools every 2.5 s, may be silent before that is odd."""
    return min(5_000, max(2_000, ttl_ms // 2))


def judge_worker(info: WorkerInfo, sight: Sight, supervisors: Collection[str] = ()) -> Judgement:
    """How a worker of a pool's list is.

    Args:
        supervisors: those that are here now.
    """
    beat = info.beat
    subject = f"worker {beat.worker}"
    if info.died:
        return Judgement(subject, "dead", info.died, _heir(info, supervisors), since_ms=info.seen_ms)
    quiet_ms, over_ms = quiet_after_ms(beat.ttl_ms), max(beat.ttl_ms, quiet_after_ms(beat.ttl_ms))
    if info.silent_ms >= quiet_ms:
        silent_ms = min(info.silent_ms, sight.seen_for_ms)
        if silent_ms < quiet_ms:
            return unknown(subject, BROKER_WAS_AWAY, since_ms=info.seen_ms)
        if silent_ms >= over_ms or not info.alive:
            why = "no heartbeat for longer than its leases last: it ended, is frozen or is cut off"
            return Judgement(subject, "dead", why, f"its shards go to others; {_look(info)}", since_ms=info.seen_ms)
        why = "no heartbeat: it is frozen, cut off or dead"
        return Judgement(subject, "stalled", why, _look(info), since_ms=info.seen_ms)
    if stuck := _stuck(info):
        return stuck
    if info.draining:
        return Judgement(subject, "draining", f"asked to end; gives back {beat.shards} shards first")
    if beat.state == "waiting":
        return Judgement(subject, "waiting", beat.reason or "nothing to play yet", waits_for=_waits_for(beat.reason))
    if beat.state in ("idle", "starting"):
        return Judgement(subject, "waiting", "holds no shard: none is queued for it", waits_for="shards")
    return Judgement(subject, "alive")


def _stuck(info: WorkerInfo) -> Judgement | None:
    """Its heart beats and its loop stands still."""
    beat = info.beat
    still_ms = beat.still_ms  # as of its last word: silence since then is another matter
    usual_ms = 1000.0 * beat.play_s / beat.steps if beat.steps else 0.0  # of late is nothing yet in its first batch
    patience_ms = max(beat.ttl_ms, round(SLOW_CALLS * max(beat.ms_per_step, usual_ms)))
    if still_ms < patience_ms:
        return None
    since_ms = info.seen_ms - still_ms
    if beat.doing:
        why = f"{in_words(beat.doing)} of {beat.subject} does not come back"
        return Judgement(f"worker {beat.worker}", "stalled", why, _end_of(beat), since_ms=since_ms)
    why = "its loop does not move, though nothing of the user's runs"
    return Judgement(f"worker {beat.worker}", "stalled", why, _look(info), since_ms=since_ms)


def _end_of(beat: WorkerBeat) -> str:
    """What becomes of a call that does not come back; "" when nobody said."""
    if beat.own_limit_ms:
        key = "env.step_timeout" if beat.doing == "step" else "env.reset_timeout"
        return (
            f"it is given up after {span(beat.own_limit_ms)} ({key}): its shard is played anew, and the worker goes on"
        )
    if not beat.limit_ms:
        return ""
    key = "env.reset_timeout" if beat.doing in ("make", "reset", "restore") else "env.step_timeout"
    named = "" if beat.doing == "close" else f" ({key})"
    return f"its worker is ended after {span(beat.limit_ms)}{named}, and another one takes over"


def _heir(info: WorkerInfo, supervisors: Collection[str]) -> str:
    """Who takes the place of one that was seen dead, as far as that is true now."""
    if not info.beat.supervisor:
        return ""
    if info.beat.supervisor not in supervisors:
        return "its supervisor is gone as well"
    return "" if info.draining else "its supervisor keeps the pool at its size"


def _look(info: WorkerInfo) -> str:
    """Where to look, as far as that is known."""
    beat = info.beat
    return f"look at pid {beat.pid} on {beat.host}" if beat.pid else "look where it ran"


def _waits_for(reason: str) -> str:
    for word in ("room", "policy", "evaluation", "environments"):
        if word in reason:
            return word
    return "command" if "paused" in reason else ""
