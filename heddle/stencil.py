"""The stencil: what surrounds the arrays of a batch, which is the same in every batch of as many segments.

Bytes that have exactly that around their arrays hold the same arrays in the same places, so neither writing nor reading
them takes Arrow. It never looks at the numbers; whoever makes a stencil of a batch has read that one with every check.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heddle.columns import Coded, FixedColumn
from heddle.layout import Layout, Segments, no_finals

MOST_AROUND = 128 << 10
"""Bytes around arrays beyond which a batch has no stencil: it was made by somebody else, or has next to no steps."""


@dataclass(frozen=True, slots=True)
class Stencil:
    """Of batches of `rows` segments and `size` bytes, without final observations.

    Attributes:
        columns: every one, and where its array begins.
        around: all other bytes, in runs, and where they begin.
        finals: the arrays of final observations, of which there are none.
    """

    rows: int
    size: int
    columns: tuple[tuple[FixedColumn, int], ...]
    around: tuple[tuple[int, bytes], ...]
    finals: dict[str, NDArray[Any]]

    def fits(self, data: bytes | memoryview) -> bool:
        """Whether `data` is such a batch."""
        return len(data) == self.size and all(bytes(data[at : at + len(own)]) == own for at, own in self.around)

    def read(self, layout: Layout, data: bytes | memoryview) -> Segments:
        """The arrays in `data`, which fits, read-only. Raises ValueError for a number that its column cannot hold."""
        arrays = {column.name: column.from_bytes(data, at, self.rows) for column, at in self.columns}
        return Segments(layout, self.rows, arrays | self.finals)

    def write_around(self, arrays: Mapping[str, NDArray[Any]], memory: memoryview) -> memoryview | None:
        """The batch in `memory`, in which each of these arrays lies in its place; None where one does not."""
        if len(memory) < self.size:
            return None
        begin = _address(np.frombuffer(memory, np.uint8))
        for column, at in self.columns:
            array = arrays[column.name]
            if array.shape != (self.rows, *column.shape) or array.dtype != column.dtype:
                return None
            if array.size and (_address(array) != begin + at or not array.flags.c_contiguous):
                return None
        for at, own in self.around:
            memory[at : at + len(own)] = own
        return memory[: self.size].toreadonly()


def stencil_of(columns: Sequence[Coded], segments: Segments, data: bytes | memoryview) -> Stencil | None:
    """Of a batch without final observations that was read from `data`; None where an array does not lie there as it is.

    Args:
        columns: all of its layout.
    """
    begin, placed = _address(np.frombuffer(data, np.uint8)), list[tuple[FixedColumn, int]]()
    for column in columns:
        array = segments.arrays[column.name]
        if not isinstance(column, FixedColumn) or not column.is_plain:
            return None
        at = _address(array) - begin if array.size else 0
        if at < 0 or at + array.nbytes > len(data):
            return None
        placed.append((column, at))
    spans = sorted((at, at + segments.arrays[column.name].nbytes) for column, at in placed)
    around = tuple((start, bytes(data[start:end])) for start, end in _between(spans, len(data)))
    if sum(len(own) for _, own in around) > MOST_AROUND:
        return None
    finals = no_finals(segments.layout)
    for array in finals.values():
        array.flags.writeable = False
    return Stencil(segments.rows, len(data), tuple(placed), around, finals)


def _between(spans: Sequence[tuple[int, int]], size: int) -> Iterator[tuple[int, int]]:
    """What of `size` bytes is in none of `spans`, which are sorted and may overlap."""
    at = 0
    for start, end in [*spans, (size, size)]:
        if start > at:
            yield at, start
        at = max(at, end)


def _address(array: NDArray[Any]) -> int:
    place: int = array.__array_interface__["data"][0]
    return place
