"""The stencil: what surrounds the arrays of a batch, which is the same in every batch of as many segments.

Bytes that have exactly that around their arrays hold the same arrays in the same places, so neither writing nor reading
them takes Arrow. It never looks at the numbers; whoever makes a stencil of a batch has read that one with every check.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heddle.columns import Coded, FixedColumn

Fill = Callable[[NDArray[Any]], object]
"""Writes an array to where it shall lie."""
MOST_AROUND = 128 << 10
"""Bytes around arrays beyond which a batch has no stencil: it was made by somebody else, or has next to no steps."""


@dataclass(frozen=True, slots=True)
class Stencil:
    """Of batches of `size` bytes, without final observations.

    Attributes:
        columns: every one, where its array begins, and how many values it holds: one a segment, or all frames.
        around: all other bytes, in runs, and where they begin.
        finals: the arrays of final observations, of which there are none: [0, ...].
        counts: [R] how many frames each segment has, by leaf that travels as a stack.
    """

    size: int
    columns: tuple[tuple[FixedColumn, int, int], ...]
    around: tuple[tuple[int, bytes], ...]
    finals: dict[str, NDArray[Any]]
    counts: dict[str, NDArray[np.int64]]

    def fits(self, data: bytes | memoryview) -> bool:
        """Whether `data` is such a batch."""
        return len(data) == self.size and all(bytes(data[at : at + len(own)]) == own for at, own in self.around)

    def read(self, data: bytes | memoryview) -> dict[str, NDArray[Any]]:
        """The arrays in `data`, which fits, read-only, shaped as their columns say: [R, ...] or [frames, ...].

        Raises:
            ValueError: a number is none that its column can hold.
        """
        return {column.name: column.from_bytes(data, at, rows) for column, at, rows in self.columns} | self.finals

    def write_around(self, arrays: Mapping[str, NDArray[Any]], memory: memoryview) -> memoryview | None:
        """The batch in `memory`, in which each of these arrays, shaped as of `read`, lies in its place; else None."""
        if len(memory) < self.size:
            return None
        begin = _address(np.frombuffer(memory, np.uint8))
        for column, at, rows in self.columns:
            array = arrays[column.name]
            if array.shape != (rows, *column.shape) or array.dtype != column.dtype:
                return None
            if array.size and (_address(array) != begin + at or not array.flags.c_contiguous):
                return None
        return self._around(memory)

    def runs(self) -> tuple[bytes | FixedColumn, ...]:
        """What lies behind each other in the batch, columns without bytes left out, for `joined`."""
        lying = [(at, column) for column, at, rows in self.columns if rows * math.prod(column.shape)]
        everything: list[tuple[int, bytes | FixedColumn]] = [*lying, *self.around]
        return tuple(one for _, one in sorted(everything, key=lambda each: each[0]))

    def joined(self, arrays: Mapping[str, NDArray[Any]], runs: Sequence[bytes | FixedColumn]) -> bytes | None:
        """The batch in memory of its own; None where an array is not as it must be, or does not lie in one piece.

        Args:
            arrays: shaped as `read` gives them.
            runs: as the method of that name gives them.
        """
        for column, _, rows in self.columns:
            array = arrays.get(column.name)
            if array is None or array.shape != (rows, *column.shape) or array.dtype != column.dtype:
                return None
            if not array.flags.c_contiguous:
                return None
        lying: list[Any] = [run if isinstance(run, bytes) else arrays[run.name] for run in runs]
        return b"".join(lying)

    def write(self, arrays: Mapping[str, NDArray[Any] | Fill], memory: memoryview) -> memoryview:
        """The batch in `memory`, to which each array, shaped as `read` gives it, is copied, or which it fills.

        Raises:
            ValueError: one is not as it must be; what is in `memory` is of no use then.
        """
        for column, at, rows in self.columns:
            shape, given = (rows, *column.shape), arrays.get(column.name)
            if given is None:
                raise ValueError(f"the segments lack {column.name}")
            place = np.frombuffer(memory, column.dtype, math.prod(shape), at).reshape(shape)
            if not isinstance(given, np.ndarray):
                given(place)
            elif given.shape != shape or given.dtype != column.dtype:
                raise ValueError(f"{column.name} is {given.dtype}{list(given.shape)}, not {column.dtype}{list(shape)}")
            else:
                place[...] = given
        return self._around(memory)

    def _around(self, memory: memoryview) -> memoryview:
        for at, own in self.around:
            memory[at : at + len(own)] = own
        return memory[: self.size].toreadonly()


def stencil_of(
    columns: Sequence[Coded],
    arrays: Mapping[str, NDArray[Any]],
    data: bytes | memoryview,
    *,
    finals: dict[str, NDArray[Any]],
    counts: dict[str, NDArray[np.int64]],
) -> Stencil | None:
    """Of a batch without final observations that was read from `data`; None where an array does not lie there as it is.

    Args:
        columns: all of them, but for final observations.
        arrays: what was read, shaped as `Stencil.read` gives them.
        finals, counts: as of the Stencil.
    """
    begin, placed = _address(np.frombuffer(data, np.uint8)), list[tuple[FixedColumn, int, int]]()
    for column in columns:
        array = arrays[column.name]
        if not isinstance(column, FixedColumn) or not column.is_plain:
            return None
        at = _address(array) - begin if array.size else 0
        if at < 0 or at + array.nbytes > len(data):
            return None
        placed.append((column, at, len(array)))
    spans = sorted((at, at + arrays[column.name].nbytes) for column, at, _ in placed)
    around = tuple((start, bytes(data[start:end])) for start, end in _between(spans, len(data)))
    if sum(len(own) for _, own in around) > MOST_AROUND:
        return None
    return Stencil(len(data), tuple(placed), around, finals, counts)


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
