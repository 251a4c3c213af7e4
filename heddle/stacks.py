"""Stacks: observations that show the last k frames, as each frame once and which of them every observation shows.

It never takes them apart, `folding.py` does; and it knows no Arrow, for whatever knows a layout has this.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

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
        """The observations to `out`, [R, T + 1, k, ...], one copy of each frame; its dtype may be a wider one."""
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


def in_turn(width: int, k: int) -> NDArray[np.int64]:
    """[width, k]: the index of observations of one episode."""
    return np.arange(width)[:, None] + np.arange(k)
