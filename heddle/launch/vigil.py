"""Vigil: whether a child that exists is still at work, from what the kernel and the broker show of it.

Pure. Failing to observe is not failing: a silence in which nobody could have heard it says nothing, and one that is
only starting is given the time that a busy machine takes.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a child may give no sign before it is killed and another takes its place.

    Attributes:
        stopped_s: while the kernel says that it is stopped, so that nothing of it can run: somebody may wake it soon.
        silent_s: without a heartbeat, though it exists and the broker hears others; added to that is what the call it
            was in may take, for user code may hold the interpreter.
        ttls: and at least so many of its leases' TTLs.
        birth_s: until its first heartbeat: torch, a cold disk, a machine that many workers start on.
    """

    stopped_s: float = 20.0
    silent_s: float = 60.0
    ttls: float = 3.0
    birth_s: float = 300.0


@dataclass(frozen=True, slots=True)
class Silence:
    """What the broker says of a worker, as far as we were in touch with it.

    Attributes:
        for_s: without a heartbeat, counted only while the broker answered us.
        was_heard: it beat at least once.
        ttl_s: of its leases; limit_s: the longest that a call into user code may take, of those it told of.
    """

    for_s: float
    was_heard: bool = False
    ttl_s: float = 0.0
    limit_s: float = 0.0


def lost(stopped_s: float, silence: Silence | None, patience: Patience) -> str:
    """Why a child that exists is to be replaced; "" when it is not.

    Args:
        stopped_s: for how long the kernel has shown it as stopped.
        silence: None when nobody could have heard it.
    """
    if stopped_s >= patience.stopped_s:
        return f"no sign of life for {stopped_s:.0f} s: the process is stopped (SIGSTOP)"
    if silence is None:
        return ""
    if not silence.was_heard:
        return f"no heartbeat in the {silence.for_s:.0f} s since its start" if silence.for_s >= patience.birth_s else ""
    bound_s = max(patience.silent_s, patience.ttls * silence.ttl_s) + silence.limit_s
    return f"no heartbeat for {silence.for_s:.0f} s, though it exists" if silence.for_s >= bound_s else ""


def may_start(starting: int, at_once: int) -> int:
    """How many more may be started now, so that what is asked next is heard in between.

    Args:
        starting: those that exist and have not been heard of yet.
        at_once: how many may start at the same time.
    """
    return max(0, at_once - starting)
