"""Leaves: the arrays that a space, however nested, is made of, and their names."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from heddle.spaces.kinds import DictSpace, LeafSpace, MultiDiscrete, Space, TupleSpace, parts

OBSERVATION = "obs"
ACTION = "action"


@dataclass(frozen=True, slots=True)
class Leaf:
    """One array of a space.

    Attributes:
        name: dotted, starting with the root, e.g. "obs.camera".
        space: its own.
        path: the keys from the root's value down to this leaf, numbers for places in a tuple; () for a plain space.
    """

    name: str
    space: LeafSpace
    path: tuple[str | int, ...] = ()

    def pick(self, value: Any) -> Any:
        """This leaf's part of a whole value, e.g. value["arm"]["joints"]. Raises KeyError, IndexError or TypeError."""
        for key in self.path:
            value = value[key]
        return value

    @property
    def chosen_dtype(self) -> str:
        """Of what a policy chooses for an action leaf: int64 indices for a MultiDiscrete, else the space's own."""
        return "int64" if isinstance(self.space, MultiDiscrete) else self.space.dtype


def leaves(space: Space, root: str = OBSERVATION) -> list[Leaf]:
    """Every leaf of `space`, sorted by name level by level; those of a tuple in order."""
    return list(_walk(space, root, ()))


def flatten(space: Space, value: Any, root: str = OBSERVATION) -> dict[str, Any]:
    """One value of `space` as a dict by leaf name. Raises as `Leaf.pick` does where the value lacks a leaf."""
    return {leaf.name: leaf.pick(value) for leaf in leaves(space, root)}


def is_action(name: str) -> bool:
    """True for the name of an action leaf."""
    return name == ACTION or name.startswith(f"{ACTION}.")


def _walk(space: Space, name: str, path: tuple[str | int, ...]) -> Iterator[Leaf]:
    if isinstance(space, DictSpace | TupleSpace):
        for key, part in parts(space):
            yield from _walk(part, f"{name}.{key}", (*path, key))
    else:
        yield Leaf(name, space, path)
