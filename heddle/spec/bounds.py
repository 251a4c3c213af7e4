"""What a spec may hold at all, whatever its keys mean: no depth, number or text that nothing behind it can carry.

It never knows a key, and never recurses: what it looks at may be as deep, or as cyclic, as somebody made it.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from heddle.errors import Problem
from heddle.spec.locate import KeyPath

DEEPEST = 64
"""Tables and lists in each other; readers of TOML and JSON recurse, and give up at some hundreds."""
MOST_BITS = 1024
"""Of a whole number: Python refuses to show longer ones than some thousand digits."""


def excesses(raw: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    """The path and the reason of everything in `raw` that goes too far; of what is too deep only where it begins."""
    told: set[KeyPath] = set()
    left: list[tuple[KeyPath, Any]] = [((), raw)]
    while left:
        path, value = left.pop()
        begins = path[:2]
        if len(path) > DEEPEST:
            if begins not in told:
                told.add(begins)
                yield begins, f"holds tables or lists in each other more than {DEEPEST} deep"
        elif isinstance(value, Mapping):
            left += [((*path, key), item) for key, item in value.items() if begins not in told]
            yield from ((path, "has a key of half a character: no text") for key in value if _is_broken(key))
        elif isinstance(value, list | tuple):
            left += [((*path, place), item) for place, item in enumerate(value) if begins not in told]
        elif isinstance(value, int) and value.bit_length() > MOST_BITS:
            yield path, f"is a whole number of {value.bit_length()} bits, more than {MOST_BITS}"
        elif _is_broken(value):
            yield path, "holds half a character: no text"


def excess_problems(raw: Mapping[str, Any], file: str | None) -> list[Problem]:
    """The same as problems of `file`."""
    return [Problem(dotted(path), None, reason, file=file) for path, reason in excesses(raw)]


def dotted(path: KeyPath) -> str:
    """ "env.wrappers[0].id" for ("env", "wrappers", 0, "id")."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _is_broken(value: object) -> bool:
    """Text with a surrogate of its own, which no encoding knows."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return True
    return False
