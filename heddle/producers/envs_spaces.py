"""Gymnasium's spaces in our own words, and the reasons for those that cannot be.

It never looks at a value.
"""

import re
from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium import spaces as gym

from heddle.errors import EnvError
from heddle.spaces import (
    ACTION,
    Box,
    DictSpace,
    Discrete,
    Graph,
    Leaf,
    MultiBinary,
    MultiDiscrete,
    OneOf,
    SequenceSpace,
    Space,
    Text,
    TupleSpace,
    bound,
    leaves,
)

LONGEST_TEXT = 4096
"""Most characters of a text whose space does not say it."""


def describe(space: Any, *, what: str = "observation space", value: object = None) -> Space:
    """Translate a Gymnasium space into ours.

    Raises:
        EnvError: a kind, dtype or key that Heddle does not carry; the reason names the space.
    """
    try:
        found = _array(space) or _whole(space, what, value)
    except ValueError as error:
        hint = "a wrapper may leave that part out or translate it"
        raise EnvError(f"its {what} {_shown(space)} cannot be used: {error}", value=value, hint=hint) from error
    if found is None:
        hint = "use a space of gymnasium.spaces; a wrapper may translate"
        raise EnvError(f"its {what} {_shown(space)} is not supported", value=value, hint=hint)
    return found


def describe_action(space: Any, *, value: object = None) -> Space:
    """Translate an action space. Whether a policy can choose in it, the policy says.

    Raises:
        EnvError: as `describe` does; and one that holds a Text, Sequence or Graph, whose values no policy can give.
    """
    described = describe(space, what="action space", value=value)
    for leaf in leaves(described, ACTION):
        if leaf.ragged:
            reason = f"its action space {_shown(space)} has {leaf.name} of varying length, which no policy can choose"
            hint = "Text, Sequence and Graph can be observed only; an action wrapper may translate"
            raise EnvError(reason, value=value, hint=hint)
    return described


def demand_same(found: tuple[Space, Space], wanted: tuple[Space, Space], *, who: str, name: str) -> None:
    """Observation and action space of one environment against those that the policy and the batches were made for.

    Bounds of observations may differ: numbers outside are told of when they come.

    Raises:
        EnvError: they are others.
    """
    for what, mine, theirs in zip(("observation", "action"), found, wanted, strict=True):
        if mine != theirs and not (what == "observation" and _unbounded(mine) == _unbounded(theirs)):
            reason = f"{who} has the {what} space {mine}, where the others have {theirs}"
            raise EnvError(reason, value=name, hint="one policy plays them all: a wrapper may make them equal")


def _unbounded(space: Space) -> list[Leaf]:
    """Its leaves, each Box without its bounds."""
    return [
        replace(leaf, space=Box(leaf.space.shape, leaf.space.dtype)) if isinstance(leaf.space, Box) else leaf
        for leaf in leaves(space)
    ]


def _array(space: Any) -> Space | None:
    """A space of one leaf; None for another."""
    match space:
        case gym.Discrete():
            return Discrete(int(space.n), int(space.start))
        case gym.Box():
            return Box(space.shape, np.dtype(space.dtype).name, bound(space.low), bound(space.high))
        case gym.MultiDiscrete():
            sizes = tuple(space.nvec.ravel().tolist()), tuple(space.start.ravel().tolist())
            return MultiDiscrete(*sizes, space.shape, np.dtype(space.dtype).name)
        case gym.MultiBinary():
            return MultiBinary(space.shape)
        case gym.Text():
            return Text(space.max_length, space.min_length, space.characters)
        case gym.Space() if space.dtype == np.dtype(str):  # one of a package's own, as Minigrid's missions
            return Text(LONGEST_TEXT, 0, None)
        case _:
            return None


def _whole(space: Any, what: str, value: object) -> Space | None:
    """A space that holds others; None for another."""

    def inner(part: Any, which: str) -> Space:
        return describe(part, what=f"{what}{which}", value=value)

    match space:
        case gym.Dict():
            return DictSpace({key: inner(part, f"[{key!r}]") for key, part in space.spaces.items()})
        case gym.Tuple():
            return TupleSpace(tuple(inner(part, f"[{place}]") for place, part in enumerate(space.spaces)))
        case gym.OneOf():
            return OneOf(tuple(inner(part, f"[{place}]") for place, part in enumerate(space.spaces)))
        case gym.Sequence():
            return SequenceSpace(inner(space.feature_space, "[...]"), space.stack)
        case gym.Graph():
            edge = None if space.edge_space is None else inner(space.edge_space, ".edges")
            return Graph(inner(space.node_space, ".nodes"), edge)
        case _:
            return None


_ADDRESS = re.compile(r"<(\S+) object at 0x[0-9a-f]+>")


def _shown(space: Any) -> str:
    text = " ".join(str(space).split())
    text = _ADDRESS.sub(r"of class \1", text)  # one without words for itself, perhaps within a Dict
    return text if len(text) <= 120 else f"{text[:117]}..."
