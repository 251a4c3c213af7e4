"""Epitaphs: how a worker ended and why, in words for logs, lists and the shard that is to blame.

It never looks at a process by itself: the child has been seen to end.
"""

from heddle.errors import BrokerError, Denied
from heddle.launch.process import CRASHES, Child, describe_exit
from heddle.quick_exit import HURRIED_CODE, STUCK_CODE
from heddle.spec.last_words import place, telling

SHOWN_LINES = 5
HINT = ' (if it did that, isolation = "process" under [env] keeps it from workers)'
NOT_OF_ENVIRONMENTS = frozenset({BrokerError.exit_code, Denied.exit_code, STUCK_CODE, HURRIED_CODE})
"""Exit codes of a worker that cannot use its broker, that named the call which hung, or that was told to end twice."""


def epitaph(child: Child, lost: str) -> str:
    """For the log.

    Args:
        lost: why we killed it; "" when we did not.
    """
    if lost:
        return f"worker {child.name} gave {lost}: killed and replaced"
    if not child.code:  # one that was asked to drain ends like this
        return f"worker {child.name} left by itself after {child.lifetime_s():.1f} s"
    last = " | ".join(telling(child.tail())[-SHOWN_LINES:])
    said = f"; last lines: {last}" if last else "; it printed nothing"
    return f"worker {child.name} ended with {exit_words(child)} after {child.lifetime_s():.1f} s{said}"


def cause(child: Child, lost: str) -> str:
    """For the shard that it was stepping, if any; without `HINT` for one whose environments run in children."""
    if lost:
        return f"its worker gave {lost} while stepping it, and was killed{HINT}"
    last = (telling(child.tail()) or [""])[-1].strip()
    return f"its worker ended with {exit_words(child)} while stepping it{HINT}; last line: {last[:300]}"


def kind(child: Child, lost: str = "") -> str:
    """How a worker ended by itself, in one of four words, for counting."""
    if lost:
        return "silent"
    return "left" if not child.code else "signal" if child.code < 0 else "exit"


def has_crashed(child: Child, lost: str = "") -> bool:
    """It ended by itself, through a crash in native code or `os._exit`: nobody asked it to or killed it."""
    code = child.code or 0
    if lost or child.ending:
        return False
    return -code in CRASHES or (code > 0 and code not in NOT_OF_ENVIRONMENTS)


def how(child: Child, lost: str = "") -> str:
    """For the list of workers, in one short line."""
    if lost:
        return f"it gave {lost}; killed and replaced"
    asked = ", after it was asked to end" if child.ending else ""
    return f"it ended with {exit_words(child)}{asked}"


def exit_words(child: Child) -> str:
    """Its exit status, and where in the user's code it was then."""
    at = place(child.tail()) if child.code else ""
    return f"{describe_exit(child.code or 0)}{f' at {at}' if at else ''}"
