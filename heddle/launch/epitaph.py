"""Epitaphs: how a worker ended and why, in words for logs, lists and the shard that is to blame.

It never looks at a process by itself: the child has been seen to end.
"""

import re
from collections.abc import Sequence

from heddle.launch.process import Child, describe_exit

SHOWN_LINES = 5
_FRAME = re.compile(r'^\s*File "(?P<file>.+)", line (?P<line>\d+)(?:, in .*| in .*)?$')
_STACK = "(most recent call first)"


def telling(lines: Sequence[str]) -> list[str]:
    """Of the last lines that a process printed those that say why it died.

    Of Python's dump at a fatal signal that is its first line and the innermost call of the thread that it came to.
    """
    said = [line for line in lines if line.strip() and not line.startswith("Extension modules:")]
    stack = _fatal_stack(said)
    if not stack:
        return said
    return [*(line for line in said if line.startswith("Fatal Python error")), stack[0]]


def place(lines: Sequence[str]) -> str:
    """ "file:line" of the user's code that a dump or a traceback at the end of `lines` came to; "" where none tells."""
    from heddle.spec.objects import place_of

    stack = _fatal_stack(lines)
    if not stack:
        begins = [at for at, line in enumerate(lines) if line.startswith("Traceback (most recent call last)")]
        stack = [line for line in lines[begins[-1] :] if _FRAME.match(line)][::-1] if begins else []
    frames = [found for line in stack if (found := _FRAME.match(line))]
    return place_of((found["file"], int(found["line"])) for found in frames)


def _fatal_stack(lines: Sequence[str]) -> list[str]:
    """Calls of the thread that a fatal signal came to, innermost first."""
    begins = [at for at, line in enumerate(lines) if line.endswith(f"{_STACK}:")]
    current = [at for at in begins if lines[at].startswith("Current thread")] or begins
    if not current:
        return []
    calls = []
    for line in lines[current[-1] + 1 :]:
        if not _FRAME.match(line):
            break
        calls.append(line)
    return calls


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
    return f"worker {child.name} ended with {_exit(child)} after {child.lifetime_s():.1f} s{said}"


def cause(child: Child, lost: str) -> str:
    """For the shard that it was stepping, if any."""
    hint = 'isolation = "process" under [env] keeps it from workers'
    if lost:
        return f"its worker gave {lost} while stepping it, and was killed (if it did that, {hint})"
    last = (telling(child.tail()) or [""])[-1].strip()
    return f"its worker ended with {_exit(child)} while stepping it (if it did that, {hint}); last line: {last[:300]}"


def kind(child: Child, lost: str = "") -> str:
    """How a worker ended by itself, in one of four words, for counting."""
    if lost:
        return "silent"
    return "left" if not child.code else "signal" if child.code < 0 else "exit"


def how(child: Child, lost: str = "") -> str:
    """For the list of workers, in one short line."""
    if lost:
        return f"it gave {lost}; killed and replaced"
    asked = ", after it was asked to end" if child.ending else ""
    return f"it ended with {_exit(child)}{asked}"


def _exit(child: Child) -> str:
    """Its exit status, and where in the user's code it was then."""
    at = place(child.tail()) if child.code else ""
    return f"{describe_exit(child.code or 0)}{f' at {at}' if at else ''}"
