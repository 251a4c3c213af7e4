"""Folding: the observations of a batch as stacks of frames, where their bytes show that they are.

It never trusts what an environment is said to be: each batch is looked at, and one that does not stack stays whole.
"""

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heddle.layout import Layout, Segments
from heddle.spaces import Box, Leaf
from heddle.stacks import Apart, take_apart

MOST_FRAMES, LEAST_BYTES = 16, 256
"""Observations of more frames, or of frames of fewer bytes, are not looked at: it would not pay."""


@functools.lru_cache(maxsize=64)
def stackable(layout: Layout) -> tuple[str, ...]:
    """Leaves that may travel as stacks, sorted: arrays of several frames, in experiments without ragged leaves."""
    leaves = layout.observation_leaves
    if any(leaf.ragged for leaf in leaves):
        return ()
    return tuple(sorted(leaf.name for leaf in leaves if _has_frames(leaf)))


@functools.lru_cache(maxsize=64)
def foldable(layout: Layout) -> tuple[str, ...]:
    """Those of them that are worth looking at."""
    spaces = {leaf.name: leaf.space for leaf in layout.observation_leaves}
    return tuple(name for name in stackable(layout) if _is_worth_it(spaces[name].shape, spaces[name].dtype))


def _has_frames(leaf: Leaf) -> bool:
    space = leaf.space
    plain = isinstance(space, Box) and np.dtype(space.dtype).kind in "iuf" and space.dtype != "float16"
    return plain and len(space.shape) >= 2 and space.shape[0] >= 2


def _is_worth_it(shape: tuple[int, ...], dtype: str) -> bool:
    return shape[0] <= MOST_FRAMES and math.prod(shape[1:]) * np.dtype(dtype).itemsize >= LEAST_BYTES


@dataclass(frozen=True, slots=True)
class Folded:
    """A batch of which some observations were found to be stacks.

    Attributes:
        segments: whole, as they were played.
        parts: by leaf.
    """

    segments: Segments
    parts: Mapping[str, Apart]

    @property
    def stacks(self) -> tuple[str, ...]:
        """Names of the leaves that are stacks, sorted."""
        return tuple(sorted(self.parts))

    @property
    def is_even(self) -> bool:
        """Others of as many segments have as many frames."""
        return all(part.is_even for part in self.parts.values())

    def gathered(self, memory: Callable[[int], memoryview]) -> Segments:
        """With all frames copied, each leaf's to memory of so many bytes or more."""
        stacks = {}
        for name, part in self.parts.items():
            like = part.pieces[0]
            shape = (part.num_frames, *like.shape[1:])
            out = np.frombuffer(memory(math.prod(shape) * like.itemsize), like.dtype, math.prod(shape))
            stacks[name] = part.stack(out.reshape(shape))
        return Segments(self.segments.layout, self.segments.rows, self.others(), stacks=stacks)

    def others(self) -> dict[str, NDArray[Any]]:
        """The arrays that are none of a stack."""
        gone = {*self.parts, *(f"final.{name}" for name in self.parts)}
        return {name: array for name, array in self.segments.arrays.items() if name not in gone}


def fold(segments: Segments) -> Folded | None:
    """`segments` as stacks; None where no leaf is worth it. They must stay as they are for as long as this is used."""
    arrays = segments.arrays
    lengths = arrays["length"].tolist()
    at = list(zip(arrays["final_row"].tolist(), arrays["final_step"].tolist(), strict=True))
    parts = {name: take_apart(arrays[name], lengths, arrays[f"final.{name}"], at) for name in foldable(segments.layout)}
    found = {name: part for name, part in parts.items() if part is not None}
    return Folded(segments, found) if found else None
