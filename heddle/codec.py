"""Codecs: which columns a layout's batches have, as Arrow's schema says it, and their arrays to and from these columns.

It never reads or writes a stream; `batch.py` does. Leaves that travel as stacks have, in place of their own column and
their final observations, three: `frames.<leaf>`, a list of frames, each once; `stack.<leaf>` [T + 1, k], which of them
each observation shows; and `final_stack.<leaf>`, likewise of final observations.
"""

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from heddle.columns import Coded, FixedColumn, coded, fixed, list_array, list_lengths, list_of, ragged
from heddle.layout import Layout, Segments
from heddle.spaces import Leaf
from heddle.stacks import Stack
from heddle.stencil import Stencil, stencil_of

PLAIN, STACKED = b"2", b"3"
"""Formats: of whole observations, which every version reads, and of stacks."""
STENCILS = 64
"""Sizes of batches of which one layout's are known."""
END = b"\xff\xff\xff\xff\0\0\0\0"  # of an Arrow stream; a reader would also take a cut for the end
_FRAMES, _INDEX, _FINALS = "frames.", "stack.", "final_stack."

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Codec:
    """What is worked out once for a layout: `framing_bytes` is all of the stream but the record batch.

    Attributes:
        stacks: names of the leaves that travel as stacks.
        columns: one value a segment. finals, frames: lists, of final observations and of frames.
        stencils: of batches of any stacks that Arrow has read, by their bytes, each with its codec.
    """

    layout: Layout
    stacks: tuple[str, ...]
    columns: tuple[Coded, ...]
    finals: tuple[Coded, ...]
    frames: tuple[FixedColumn, ...]
    schema: pa.Schema
    framing_bytes: int
    stencils: "dict[int, tuple[Codec, Stencil]]" = field(default_factory=dict, compare=False)

    def learn(self, arrays: Arrays, counts: Mapping[str, NDArray[np.int64]], data: bytes | memoryview) -> None:
        """Others that are like this batch, which is sound, need not be read by Arrow.

        Args:
            arrays, counts: as `taken_from` gives them.
            data: the batch.
        """
        if len(arrays["final_row"]) or (found := self.stencil(arrays, counts, data)) is None:
            return
        known = codec_of(self.layout).stencils
        if len(known) >= STENCILS:
            known.clear()
        known[len(data)] = (self, found)

    def stencil(
        self, arrays: Arrays, counts: Mapping[str, NDArray[np.int64]], data: bytes | memoryview
    ) -> Stencil | None:
        """Of a batch without final observations; None where an array does not lie in `data` as it is.

        Args:
            arrays, counts: as `taken_from` gives them.
        """
        finals = {column.name: arrays[column.name] for column in self.finals} | {"final_row": arrays["final_row"]}
        return stencil_of([*self.columns, *self.frames], arrays, data, finals=finals, counts=dict(counts))

    def taken_from(self, batch: pa.RecordBatch) -> tuple[Arrays, dict[str, NDArray[np.int64]]]:
        """The arrays of a record batch of this schema, as views, and how many frames each segment has, by leaf.

        Returns:
            Arrays by name with the shapes and dtypes of `layout.py`, of a stack its frames and indexes as in
            `stacks.Stack`; and leaf -> [R] int64.

        Raises:
            ValueError: it is none that `arrow_columns` makes.
        """
        arrays: Arrays = {}
        for place, column in enumerate(self.columns):
            arrays[column.name] = column.from_arrow(batch.column(place))
        lengths: NDArray[np.int64] | None = None
        for place, column in enumerate(self.finals, start=len(self.columns)):
            lists = batch.column(place)
            mine = list_lengths(lists, column.name)
            if lengths is not None and not np.array_equal(lengths, mine):
                raise ValueError(f"{column.name} has other lengths than final_step")
            lengths = mine
            arrays[column.name] = column.from_arrow(lists.values)
        assert lengths is not None
        arrays["final_row"] = np.repeat(np.arange(batch.num_rows, dtype=np.int32), lengths)
        arrays["final_row"].flags.writeable = False
        counts, first = dict[str, NDArray[np.int64]](), len(self.columns) + len(self.finals)
        for place, (name, own) in enumerate(zip(self.stacks, self.frames, strict=True), start=first):
            lists = batch.column(place)
            counts[name] = list_lengths(lists, own.name)
            arrays[own.name] = own.from_arrow(lists.values)
        return arrays, counts

    def segments(self, arrays: Arrays, counts: Mapping[str, NDArray[np.int64]]) -> Segments:
        """Of arrays as `taken_from` gives them: stacks are views of their frames, or lie in `Segments.stacks`.

        Raises:
            ValueError: an index names a frame that there is not.
        """
        own, stacks = dict(arrays), dict[str, Stack]()
        for name in self.stacks:
            parts = own.pop(_FRAMES + name), counts[name], own.pop(_INDEX + name), own.pop(_FINALS + name)
            stack = Stack(*parts)
            if problem := stack.problem(own["final_row"]):
                raise ValueError(f"{name} {problem}")
            own[f"final.{name}"] = stack.last(own["final_row"])
            if (view := stack.view()) is None:
                stacks[name] = stack
            else:
                own[name] = view
        return Segments(self.layout, len(own["length"]), own, stacks=stacks)

    def arrow_columns(self, segments: Segments) -> Iterator[pa.Array]:
        """One of R values a column, in the order of the schema.

        Raises:
            ValueError: an array is not as the layout says.
        """
        rows, arrays = segments.rows, _index_arrays(segments)
        for column in self.columns:
            yield column.to_arrow(arrays.get(column.name), rows)
        final_row, final_step = arrays["final_row"], arrays["final_step"]
        if len(final_row) and (final_row.min() < 0 or final_row.max() >= rows):
            raise ValueError(f"final_row is outside 0..{rows - 1}")
        counts = np.bincount(final_row, minlength=rows)
        order = np.lexsort((final_step, final_row))
        in_order = bool((order[1:] > order[:-1]).all())
        for column in self.finals:
            values = arrays.get(column.name)
            items = column.to_arrow(values if in_order or values is None else values[order], len(order))
            yield list_array(list_of(column.arrow_type), counts, items)
        for name, own in zip(self.stacks, self.frames, strict=True):
            stack = segments.stacks[name]
            items = own.to_arrow(stack.frames, len(stack.frames))
            yield list_array(list_of(own.arrow_type), stack.counts, items)


def _index_arrays(segments: Segments) -> Arrays:
    """All arrays but frames, under the names of their columns."""
    found = dict(segments.arrays)
    for name, stack in segments.stacks.items():
        found[_INDEX + name], found[_FINALS + name] = stack.index, stack.finals
    return found


def index_of(name: str) -> str:
    """The column of a leaf's index."""
    return _INDEX + name


def frames_of(name: str) -> str:
    """The column of a leaf's frames."""
    return _FRAMES + name


def codec_of(layout: Layout, stacks: tuple[str, ...] = ()) -> Codec:
    """Of a layout's batches.

    Args:
        stacks: leaves, sorted, that travel as stacks; each is one of arrays of a fixed shape.
    """
    return _codec_of(layout, stacks)


@functools.lru_cache(maxsize=64)
def _codec_of(layout: Layout, stacks: tuple[str, ...]) -> Codec:
    """`codec_of`, which always gives both: to the cache an argument that is left out is another one."""
    columns = [
        fixed(_INDEX + column.name, "int32", (layout.steps + 1, column.shape[0]))
        if column.name in stacks
        else coded(column, layout.steps)
        for column in layout.columns
    ]
    leaves = layout.observation_leaves
    finals = [fixed("final_step", "int32", ()), *(_final(leaf, leaf.name in stacks) for leaf in leaves)]
    by_name = {leaf.name: leaf.space for leaf in leaves}
    frames = [fixed(_FRAMES + name, by_name[name].dtype, by_name[name].shape[1:]) for name in stacks]
    fields = [column.field(column.arrow_type) for column in columns]
    fields += [column.field(list_of(column.arrow_type)) for column in (*finals, *frames)]
    metadata = {b"heddle.format": STACKED if stacks else PLAIN, b"heddle.steps": str(layout.steps).encode()}
    schema = pa.schema(fields, metadata=metadata)
    framing_bytes = schema.serialize().size + len(END)
    return Codec(layout, stacks, tuple(columns), tuple(finals), tuple(frames), schema, framing_bytes)


def _final(leaf: Leaf, is_stack: bool) -> Coded:
    if is_stack:
        return fixed(_FINALS + leaf.name, "int32", (leaf.space.shape[0],))
    name = f"final.{leaf.name}"
    return ragged(name, leaf, None) if leaf.ragged else fixed(name, leaf.space.dtype, leaf.space.shape)
