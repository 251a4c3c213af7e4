"""Folding: the observations of a batch as stacks of frames, where their bytes show that they are.

It never trusts what an environment is said to be: each batch is looked at, and one that does not stack stays whole. Nor
does it take two frames for one unless their bytes are the same, so what is put together again is what was taken apart,
bit for bit. Whatever padding an episode begins with is nothing special: frames are told apart by their bytes.
"""

import functools
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from heddle.layout import Layout, Segments
from heddle.same import Frames as SameFrames
from heddle.spaces import Box, Leaf
from heddle.stacks import Frames, Index, Stack

MOST_FRAMES, LEAST_BYTES = 16, 256
"""Observations of more frames, or of frames of fewer bytes, are not looked at: it would not pay."""
MOST_SHARE = 0.75
"""Of the frames of whole observations: where more of them would have to be sent, whole ones are sent."""
LOOKED_AT = 16
"""Pairs of observations that are looked at before all are: what does not stack is found out at once."""


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
class Apart:
    """What `take_apart` found: a Stack whose frames still lie where they were played.

    Attributes:
        pieces: [n, ...] each, together the frames of all segments.
        counts, index, finals: as of a Stack.
        is_even: no episode is cut off, and every segment has as many frames as one of a single episode.
    """

    pieces: Sequence[Frames]
    counts: NDArray[np.int64]
    index: Index
    finals: Index
    is_even: bool

    @property
    def num_frames(self) -> int:
        """N."""
        return int(self.counts.sum())

    def stack(self, out: NDArray[Any]) -> Stack:
        """With all frames copied to `out`, [N, ...]."""
        np.concatenate(self.pieces, out=out)
        return Stack(out, self.counts, self.index, self.finals)


def take_apart(
    shown: NDArray[Any], lengths: Sequence[int], finals: NDArray[Any], final_at: Sequence[tuple[int, int]]
) -> Apart | None:
    """Which frames observations share; None where they are too few to be worth it.

    Args:
        shown: [R, T + 1, k, ...] observations, blank behind `lengths`.
        finals: [K, k, ...] final observations of truncated episodes.
        final_at: row and step of each.
    """
    k, width = shown.shape[2], shown.shape[1]
    seen, ends = SameFrames(shown, 3), SameFrames(finals, 2)
    if not _may_stack(seen, lengths, width, k):
        return None
    most, total = MOST_SHARE * k * (len(shown) * width + len(finals)), 0
    index, last = np.empty(shown.shape[:3], np.int32), np.empty((len(finals), k), np.int32)
    pieces, counts, cut = list[Frames](), list[int](), defaultdict[int, list[tuple[int, int]]](list)
    for place, (row, step) in enumerate(final_at):
        cut[row].append((place, step))
    for row, length in enumerate(lengths):
        count = _take_row(shown[row], seen, row * width * k, length, index[row], pieces)
        if count < 0:
            return None
        for place, step in cut[row]:
            goes_on = ends.same(place * k, (row * width + step) * k + 1, k - 1, seen)
            begin = k - 1 if goes_on else 0
            last[place, :begin] = index[row, step, 1:] if goes_on else ()
            last[place, begin:] = np.arange(count, count + k - begin)
            pieces.append(finals[place, begin:])
            count += k - begin
        counts.append(count)
        if (total := total + count) > most:
            return None
    is_even = not len(finals) and set(counts) == {width + k - 1}
    return Apart(pieces, np.array(counts, np.int64), index, last, is_even)


def _take_row(
    shown: NDArray[Any], seen: SameFrames, first: int, length: int, index: Index, pieces: list[Frames]
) -> int:
    """The frames of one segment, and in `index` who shows which; how many, -1 where it is not blank behind its end.

    Args:
        first: of its frames among all that are `seen`.
    """
    k, same = shown.shape[1], seen.same
    at = range(first, first + len(shown) * k, k)
    begins = [0, *(step for step in range(1, length + 1) if not same(at[step], at[step - 1] + 1, k - 1)), length + 1]
    count = 0
    for begin, end in pairwise(begins):
        is_new = np.ones(k, np.bool_)
        if begin:  # not of the first one, so that a segment of one episode is as many frames as any other
            is_new[1:] = [not same(at[begin] + place, at[begin] + place - 1, 1) for place in range(1, k)]
        pieces += [shown[begin][is_new] if begin else shown[0], shown[begin + 1 : end, -1]]
        own = int(is_new.sum())
        line = np.concatenate([np.cumsum(is_new) - 1, np.arange(own, own + end - begin - 1)])
        index[begin:end] = count + sliding_window_view(line, k)
        count += own + end - begin - 1
    if length + 1 == len(shown):
        return count
    blank = shown[length + 1 :]
    if blank.any() or (blank.dtype.kind == "f" and np.signbit(blank).any()):
        return -1
    pieces.append(np.zeros_like(shown[:1, 0]))
    index[length + 1 :] = count
    return count + 1


def _may_stack(seen: SameFrames, lengths: Sequence[int], width: int, k: int) -> bool:
    """Some pair of observations that follow each other shares all frames but one."""
    steps = [(row * width + step) * k for row, length in enumerate(lengths) for step in range(length)]
    return any(seen.same(at + k, at + 1, k - 1) for at in steps[:: max(1, len(steps) // LOOKED_AT)])


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
        """The arrays that are none of a stack, shaped as the layout says."""
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
