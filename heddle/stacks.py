"""Stacks: observations that show the last k frames, as each frame once and which of them every observation shows.

It never takes two frames for one unless their bytes are the same, so what is put together again is what was taken
apart, bit for bit. Whatever padding an episode begins with is nothing special: frames are told apart by their bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided, sliding_window_view
from numpy.typing import NDArray

from heddle.same import Frames as SameFrames

MOST_SHARE = 0.75
"""Of the frames of whole observations: where more of them would have to be sent, whole ones are sent."""
LOOKED_AT = 16
"""Pairs of observations that are looked at before all are: what does not stack is found out at once."""

Frames = NDArray[Any]
Index = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Stack:
    """One leaf of the observations of R segments.

    Attributes:
        frames: [N, ...], those of all segments, one segment after the other.
        counts: [R] how many of them are whose.
        index: [R, T + 1, k] int32, which of its segment's frames each observation shows.
        finals: [K, k] int32, likewise of the final observations of truncated episodes.
    """

    frames: Frames
    counts: NDArray[np.int64]
    index: Index
    finals: Index

    def problem(self, final_rows: NDArray[Any]) -> str | None:
        """What is wrong with the indexes, None when every one names a frame of its segment.

        Args:
            final_rows: [K] whose the final observations are.
        """
        for index, counts in ((self.index, self.counts[:, None, None]), (self.finals, self.counts[final_rows, None])):
            outside = (index < 0) | (index >= counts)
            if outside.any():
                return f"shows frame {index[outside][0]}, which its segment has not"
        return None

    def view(self) -> NDArray[Any] | None:
        """[R, T + 1, k, ...] read-only over the frames, nothing copied; None where an episode begins on the way."""
        rows, width, k = self.index.shape
        if not (self.counts == width + k - 1).all() or not (self.index == in_turn(width, k)).all():
            return None
        one = self.frames.strides[0]
        shape = (rows, width, k, *self.frames.shape[1:])
        strides = (one * (width + k - 1), one, one, *self.frames.strides[1:])
        return as_strided(self.frames, shape, strides, writeable=False)

    def observations(self) -> NDArray[Any]:
        """[R, T + 1, k, ...], read-only."""
        made: NDArray[Any] = self.frames[self._in_all()]
        made.flags.writeable = False
        return made

    def write(self, out: NDArray[Any]) -> None:
        """The observations to `out`, one copy of each frame; its dtype may be a wider one."""
        if out.dtype == self.frames.dtype:
            self.frames.take(self._in_all(), axis=0, out=out, mode="clip")  # as they are in range; "raise" would buffer
        else:
            np.copyto(out, self.observations(), casting="unsafe")

    def last(self, final_rows: NDArray[Any]) -> NDArray[Any]:
        """[K, k, ...]: the final observations, read-only."""
        made: NDArray[Any] = self.frames[self.finals + self._starts()[final_rows, None]]
        made.flags.writeable = False
        return made

    def _in_all(self) -> NDArray[np.int64]:
        places: NDArray[np.int64] = self.index + self._starts()[:, None, None]
        return places

    def _starts(self) -> NDArray[np.int64]:
        starts: NDArray[np.int64] = np.cumsum(self.counts) - self.counts
        return starts


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
    most = MOST_SHARE * k * (len(shown) * width + len(finals))
    index, last = np.empty(shown.shape[:3], np.int32), np.empty((len(finals), k), np.int32)
    pieces, counts = list[Frames](), list[int]()
    for row, length in enumerate(lengths):
        count = _take_row(shown[row], seen, row * width * k, length, index[row], pieces)
        if count < 0:
            return None
        for place in (place for place, at in enumerate(final_at) if at[0] == row):
            step = final_at[place][1]
            goes_on = ends.same(place * k, (row * width + step) * k + 1, k - 1, seen)
            begin = k - 1 if goes_on else 0
            last[place, :begin] = index[row, step, 1:] if goes_on else ()
            last[place, begin:] = np.arange(count, count + k - begin)
            pieces.append(finals[place, begin:])
            count += k - begin
        counts.append(count)
        if sum(counts) > most:
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


def in_turn(width: int, k: int) -> NDArray[np.int64]:
    """[width, k]: the index of observations of one episode."""
    return np.arange(width)[:, None] + np.arange(k)
