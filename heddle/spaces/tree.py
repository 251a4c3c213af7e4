"""Leaves: the arrays that a space, however nested, is made of, and their names.

A Sequence adds a dimension of varying length to every leaf within, a Graph one to those of its nodes and one to those
of its edges. A OneOf has a leaf "index" and the leaves of all its alternatives, of which those not taken are blank.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from heddle.spaces.kinds import (
    Box,
    DictSpace,
    Discrete,
    Graph,
    LeafSpace,
    MultiDiscrete,
    OneOf,
    SequenceSpace,
    Space,
    Text,
    TupleSpace,
    parts,
)

OBSERVATION = "obs"
ACTION = "action"

LINK = Box((2,), "int64", 0, 2**63 - 1)
"""Of one edge: the numbers of the nodes it joins, from 0."""


@dataclass(frozen=True, slots=True)
class Each:
    """In a path: all that follows is done with every element of a sequence."""


@dataclass(frozen=True, slots=True)
class Field:
    """In a path: a part of a graph."""

    name: str


@dataclass(frozen=True, slots=True)
class Alternative:
    """In a path: the value of a OneOf, where it is this alternative's."""

    number: int


Step: TypeAlias = str | int | Each | Field | Alternative


@dataclass(frozen=True, slots=True)
class Leaf:
    """One array of a space.

    Attributes:
        name: dotted, starting with the root, e.g. "obs.camera".
        space: its own.
        path: the way from the root's value down to this leaf: keys, and numbers for places in a tuple.
        within: the sequences it lies in, from the outermost in; the edges and the links of a graph lie in one.
    """

    name: str
    space: LeafSpace
    path: tuple[Step, ...] = ()
    within: tuple[str, ...] = ()

    @property
    def depth(self) -> int:
        """How many sequences it lies in."""
        return len(self.within)

    @property
    def ragged(self) -> bool:
        """True when its values differ in length, so that an array of objects holds them: see `cells`."""
        return self.depth > 0 or isinstance(self.space, Text)

    @property
    def direct(self) -> bool:
        """True when its value is found by keys alone, and is one array of fixed shape."""
        return not self.ragged and all(isinstance(step, str | int) for step in self.path)

    @property
    def chosen_dtype(self) -> str:
        """Of what a policy chooses for an action leaf: int64 indices for a MultiDiscrete, else the space's own."""
        return "int64" if isinstance(self.space, MultiDiscrete) else self.space.dtype

    def pick(self, value: Any) -> Any:
        """This leaf's part of a whole value: value["arm"]["joints"], with a tuple for every sequence on the way.

        Raises:
            KeyError, IndexError, TypeError, AttributeError: the value lacks it.
        """
        return _follow(self, value, 0)


def leaves(space: Space, root: str = OBSERVATION) -> list[Leaf]:
    """Every leaf of `space`, sorted by name level by level; those of a tuple in order."""
    return list(_walk(space, Leaf(root, Discrete(1)), stacked=False))


def flatten(space: Space, value: Any, root: str = OBSERVATION) -> dict[str, Any]:
    """One value of `space` as a dict by leaf name. Raises as `Leaf.pick` does where the value lacks a leaf."""
    return {leaf.name: leaf.pick(value) for leaf in leaves(space, root)}


def is_action(name: str) -> bool:
    """True for the name of an action leaf."""
    return name == ACTION or name.startswith(f"{ACTION}.")


def blank(space: LeafSpace) -> Any:
    """What stands where there is nothing: zeros, the smallest integers of the space, or an empty text."""
    if isinstance(space, Text):
        return ""
    if isinstance(space, Discrete):
        return np.array(space.start, np.int64)
    if isinstance(space, MultiDiscrete):
        return space.starts().astype(space.dtype)
    return np.zeros(space.shape, space.dtype)


def _walk(space: Space, at: Leaf, *, stacked: bool) -> Iterator[Leaf]:
    """The leaves of `space`, whose name and path begin as those of `at`.

    Args:
        stacked: in a sequence whose values are stacked leaf by leaf, and not yet taken apart.
    """
    if isinstance(space, DictSpace | TupleSpace):
        for key, part in parts(space):
            yield from _walk(part, _below(at, str(key), key), stacked=stacked)
        return
    if stacked:
        at = Leaf(at.name, at.space, (*at.path, Each()), at.within)
    if isinstance(space, OneOf):
        yield from _walk(Discrete(len(space.spaces)), _below(at, "index", 0), stacked=False)
        for number, part in enumerate(space.spaces):
            yield from _walk(part, _below(at, str(number), Alternative(number)), stacked=False)
    elif isinstance(space, SequenceSpace):
        path = at.path if space.stacked else (*at.path, Each())
        yield from _walk(space.space, Leaf(at.name, at.space, path, (*at.within, at.name)), stacked=space.stacked)
    elif isinstance(space, Graph):
        within: list[tuple[str, str, Space]] = [("nodes", "nodes", space.node)]
        if space.edge is not None:
            within += [("edges", "edges", space.edge), ("edge_links", "edges", LINK)]
        for name, of, part in within:
            below = _below(at, name, Field(name))
            inner = Leaf(below.name, at.space, below.path, (*at.within, f"{at.name}.{of}"))
            yield from _walk(part, inner, stacked=True)
    else:
        yield Leaf(at.name, space, at.path, at.within)


def _below(at: Leaf, name: str, step: Step) -> Leaf:
    return Leaf(f"{at.name}.{name}", at.space, (*at.path, step), at.within)


def _follow(leaf: Leaf, value: Any, done: int) -> Any:
    for place in range(done, len(leaf.path)):
        step = leaf.path[place]
        if isinstance(step, str | int):
            value = value[step]
        elif isinstance(step, Each):
            if isinstance(value, str | bytes | Mapping):
                raise TypeError(f"a {type(value).__name__} is no sequence")
            return tuple(_follow(leaf, element, place + 1) for element in value)
        elif isinstance(step, Field):
            value = getattr(value, step.name)
            if value is None:  # a graph without edges
                return ()
        elif int(value[0]) == step.number:
            value = value[1]
        else:
            return () if any(isinstance(later, Each) for later in leaf.path[place:]) else blank(leaf.space)
    return value
