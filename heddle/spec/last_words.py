"""Last words: what a process printed before it ended, and where in the user's code that came to.

Pure: it never looks at a process. Python's dump at a fatal signal and a traceback are understood.
"""

import re
from collections.abc import Sequence

from heddle.spec.objects import place_of

_FRAME = re.compile(r'^\s*File "(?P<file>.+)", line (?P<line>\d+)(?:, in .*| in .*)?$')
_STACK = "(most recent call first)"
_FATAL = "Fatal Python error"


def telling(lines: Sequence[str]) -> list[str]:
    """Of the last lines that a process printed those that say why it died.

    Of Python's dump at a fatal signal that is its first line and the innermost call of the thread that it came to,
    Heddle's own calls left out where there are others.
    """
    said = [line for line in lines if line.strip() and not line.startswith("Extension modules:")]
    stack = _fatal_stack(said)
    if not stack:
        return said
    theirs = [line for line in stack if _place_in([line])] or stack
    return [*(line for line in said if line.startswith(_FATAL)), theirs[0]]


def place(lines: Sequence[str]) -> str:
    """ "file:line" of the user's code that a dump or a traceback at the end of `lines` came to; "" where none tells."""
    stack = _fatal_stack(lines)
    if not stack:
        begins = [at for at, line in enumerate(lines) if line.startswith("Traceback (most recent call last)")]
        stack = [line for line in lines[begins[-1] :] if _FRAME.match(line)][::-1] if begins else []
    return _place_in(stack)


def _place_in(stack: Sequence[str]) -> str:
    frames = [found for line in stack if (found := _FRAME.match(line))]
    return place_of((found["file"], int(found["line"])) for found in frames)


def kept(lines: Sequence[str], most: int) -> list[str]:
    """So many of the lines: the last ones, but of a dump its begin, where the innermost calls are."""
    begins = [at for at, line in enumerate(lines) if line.startswith(_FATAL)]
    from_end = max(0, len(lines) - most)
    start = min(begins[-1], from_end) if begins else from_end
    return list(lines[start : start + most])


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
