"""Whether what was recorded means what an environment of today shows and accepts: its spaces, leaf by leaf.

It never looks at data: numbers of the same dtype and shape can mean other things, and nothing in them tells.
"""

from dataclasses import fields
from typing import Any

from heddle.spaces import ACTION, OBSERVATION, Leaf, Space, leaves

_SHOWN = 60
"""Characters of a value in a message."""


def unlike(recorded: Space, here: Space, name: str) -> str:
    """In words, the first leaf of `here` that was recorded in another space; "" when all are the same.

    Args:
        name: OBSERVATION or ACTION, what the leaves are called.

    Returns:
        For example "the recording has action as Discrete with n = 3, here it is Discrete with n = 2".
    """
    assert name in (OBSERVATION, ACTION)
    found: dict[str, Leaf] = {leaf.name: leaf for leaf in leaves(recorded, name)}
    for leaf in leaves(here, name):
        there = found.get(leaf.name)
        if there is None:
            return f"the recording has no {leaf.name}"
        if there.space != leaf.space:
            then, now = _difference(there.space, leaf.space)
            return f"the recording has {leaf.name} as {then}, here it is {now}"
    return ""


def _difference(one: Any, other: Any) -> tuple[str, str]:
    """Both spaces by their kind, and by the first field in which two of one kind differ."""
    names = (type(one).__name__, type(other).__name__)
    if type(one) is not type(other):
        return names
    field = next(each.name for each in fields(one) if getattr(one, each.name) != getattr(other, each.name))
    values = (getattr(one, field), getattr(other, field))
    if all(isinstance(value, tuple) for value in values) and len(values[0]) == len(values[1]):
        at = next(index for index, pair in enumerate(zip(*values, strict=True)) if pair[0] != pair[1])
        field, values = f"{field}[{at}]", (values[0][at], values[1][at])
    shown = [f"{name} with {field} = {_short(value)}" for name, value in zip(names, values, strict=True)]
    return shown[0], shown[1]


def _short(value: object) -> str:
    told = str(value)
    return told if len(told) <= _SHOWN else f"{told[: _SHOWN - 3]}..."
