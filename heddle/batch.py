"""Batch bytes: Segments to an Arrow IPC stream of one record batch and back, and with `columns.py` the only place
that knows Arrow.

It never trusts what it reads: until size, checksum, schema, structure and contents are right, nobody sees an array.

One row is one segment; `columns.py` says how each array of it travels. Final observations of truncated episodes are
list columns: `final_step` and `final.<leaf>`, as many entries as the segment has such endings. No extension type is
registered from Python, and nothing is ever unpickled.
"""

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from heddle.checksums import checksum, spot_check
from heddle.columns import Coded, FixedColumn, coded, fixed, list_array, list_lengths, list_of, ragged
from heddle.errors import BatchError
from heddle.layout import Column, ColumnLike, Layout, Per, Segments, make_layout
from heddle.placer import Placer
from heddle.segment_checks import first_problem
from heddle.stencil import Stencil, stencil_of
from heddle.wire import declared_bytes

__all__ = [
    "Column",
    "ColumnLike",
    "Layout",
    "Per",
    "Segments",
    "checksum",
    "decode",
    "encode",
    "encode_into",
    "finish_in",
    "make_layout",
    "places",
    "spot_check",
]

_FORMAT = b"2"
STENCILS = 64
"""Sizes of batches of which one layout's are known."""
_END = b"\xff\xff\xff\xff\0\0\0\0"  # of an Arrow stream; a reader would also take a cut for the end

# What Arrow raises on bytes that are not what they claim to be; seen by flipping and cutting bytes.
_VALUES = (ValueError, TypeError, LookupError, OverflowError, NotImplementedError, StopIteration)
_REFUSALS = (pa.ArrowException, OSError, MemoryError, EOFError, *_VALUES)


def encode(layout: Layout, segments: Segments, *, compression: Literal["lz4", "zstd"] | None = None) -> memoryview:
    """The bytes of `segments`: C-contiguous, format "B", written once from the arrays as they lie.

    Raises:
        ValueError: an array is missing or has another shape or dtype than the layout says.
    """
    codec = _codec(layout)
    batch = pa.RecordBatch.from_arrays(list(_arrow_columns(codec, segments)), schema=codec.schema)
    if compression is not None:
        sink = pa.BufferOutputStream()
        _write(sink, batch, compression)
        return memoryview(sink.getvalue()).cast("B")
    buffer = pa.allocate_buffer(codec.framing_bytes + pa.ipc.get_record_batch_size(batch))
    _write(pa.FixedSizeBufferWriter(buffer), batch, None)
    return memoryview(buffer).cast("B").toreadonly()


def encode_into(layout: Layout, segments: Segments, take: Callable[[int], memoryview]) -> memoryview:
    """As `encode`, without compression, into memory that `take` gives for so many bytes or more; what it used of that.

    Arrays that lie in that memory where `places` says stay there, and are not copied.

    Raises:
        ValueError: as `encode` does.
    """
    codec = _codec(layout)
    batch = pa.RecordBatch.from_arrays(list(_arrow_columns(codec, segments)), schema=codec.schema)
    size = codec.framing_bytes + pa.ipc.get_record_batch_size(batch)
    memory = take(size)[:size]
    _write(pa.PythonFile(Placer(memory), mode="w"), batch, None)
    return memory.toreadonly()


@dataclass(frozen=True, slots=True)
class Places:
    """Where the arrays of an encoded batch of so many segments lie, when it has no final observations.

    Attributes:
        size: bytes of that batch.
        offsets: where arrays begin in it: those that travel as they are, no half floats, and that stand before anything
            whose length varies.
        stencil: all that is around them; None where there are other arrays.
    """

    size: int
    offsets: dict[str, int]
    stencil: Stencil | None


@functools.lru_cache(maxsize=64)
def places(layout: Layout, rows: int) -> Places:
    """Of batches of `rows` segments."""
    codec = _codec(layout)
    data = encode(layout, Segments.empty(layout, rows))
    begin = np.frombuffer(data, np.uint8).ctypes.data
    segments = _views(codec, _read(codec, data, len(data)))
    steady = itertools.takewhile(lambda column: isinstance(column, FixedColumn), codec.columns)
    plain = [c.name for c in steady if isinstance(c, FixedColumn) and c.is_plain]
    arrays = segments.arrays
    offsets = {name: arrays[name].ctypes.data - begin for name in plain if arrays[name].size}
    return Places(len(data), offsets, stencil_of(codec.columns, segments, data))


def finish_in(layout: Layout, segments: Segments, memory: memoryview) -> memoryview | None:
    """As `encode_into`, when all arrays lie in `memory` where `places` says: only what is around them is written.

    None where one does not, or there are final observations; nothing was written then.
    """
    if segments.num_finals:
        return None
    stencil = places(layout, segments.rows).stencil
    return None if stencil is None else stencil.write_around(segments.arrays, memory)


def decode(layout: Layout, data: bytes | memoryview, *, crc32: int | None, size_cap: int) -> Segments:
    """Read-only arrays over `data`, without copying where alignment allows; `data` must outlive them unchanged.

    Args:
        crc32: what `checksum` gave the writer; None when it is not known.
        size_cap: most bytes that `data`, and what it unpacks to, may have.

    Raises:
        BatchError: anything at all is off; the message is one line that names it.
    """
    if len(data) > size_cap:
        raise BatchError(f"the batch has {len(data)} bytes, more than the cap of {size_cap}")
    if crc32 is not None and (actual := checksum(data)) != crc32:
        raise BatchError(f"the checksum is {actual:08x}, announced was {crc32:08x}")
    codec = _codec(layout)
    stencil = codec.stencils.get(len(data))
    fitting = stencil if stencil is not None and stencil.fits(data) else None
    batch = _read(codec, data, size_cap) if fitting is None else None
    try:
        segments = _views(codec, batch) if fitting is None else fitting.read(layout, data)
    except _REFUSALS as error:
        raise BatchError(f"the batch cannot be laid out: {_one_line(error)}") from error
    if fitting is None:
        codec.learn(segments, data)
    if problem := first_problem(segments):
        raise BatchError(problem)
    return segments


@dataclass(frozen=True, slots=True)
class _Codec:
    """What is worked out once for a layout: `framing_bytes` is all of the stream but the record batch.

    Attributes:
        stencils: of batches that Arrow has read, by their bytes.
    """

    layout: Layout
    columns: tuple[Coded, ...]
    finals: tuple[Coded, ...]
    schema: pa.Schema
    framing_bytes: int
    stencils: dict[int, Stencil] = field(default_factory=dict, compare=False)

    def learn(self, segments: Segments, data: bytes | memoryview) -> None:
        """Others that are like this batch, which is sound, need not be read by Arrow."""
        if not segments.num_finals and (found := stencil_of(self.columns, segments, data)) is not None:
            if len(self.stencils) >= STENCILS:
                self.stencils.clear()
            self.stencils[len(data)] = found


@functools.lru_cache(maxsize=64)
def _codec(layout: Layout) -> _Codec:
    columns = [coded(column, layout.steps) for column in layout.columns]
    finals: list[Coded] = [fixed("final_step", "int32", ())]
    for leaf in layout.observation_leaves:
        name = f"final.{leaf.name}"
        finals.append(ragged(name, leaf, None) if leaf.ragged else fixed(name, leaf.space.dtype, leaf.space.shape))
    fields = [column.field(column.arrow_type) for column in columns]
    fields += [column.field(list_of(column.arrow_type)) for column in finals]
    schema = pa.schema(fields, metadata={b"heddle.format": _FORMAT, b"heddle.steps": str(layout.steps).encode()})
    return _Codec(layout, tuple(columns), tuple(finals), schema, schema.serialize().size + len(_END))


def _arrow_columns(codec: _Codec, segments: Segments) -> Iterator[pa.Array]:
    rows, arrays = segments.rows, segments.arrays
    for column in codec.columns:
        yield column.to_arrow(arrays.get(column.name), rows)
    final_row, final_step = arrays["final_row"], arrays["final_step"]
    if len(final_row) and (final_row.min() < 0 or final_row.max() >= rows):
        raise ValueError(f"final_row is outside 0..{rows - 1}")
    counts = np.bincount(final_row, minlength=rows)
    order = np.lexsort((final_step, final_row))
    in_order = bool((order[1:] > order[:-1]).all())
    for column in codec.finals:
        values = arrays.get(column.name)
        items = column.to_arrow(values if in_order or values is None else values[order], len(order))
        yield list_array(list_of(column.arrow_type), counts, items)


def _write(sink: Any, batch: pa.RecordBatch, compression: str | None) -> None:
    options = pa.ipc.IpcWriteOptions(compression=compression, use_threads=False)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)


def _read(codec: _Codec, data: bytes | memoryview, size_cap: int) -> pa.RecordBatch:
    """The one record batch in `data`, structurally valid and of exactly the layout's schema."""
    try:
        source = pa.BufferReader(pa.py_buffer(data))
        messages = pa.ipc.MessageReader.open_stream(source)
        schema = pa.ipc.read_schema(_next(messages, "schema"))
        if not schema.equals(codec.schema, check_metadata=True):
            raise BatchError(f"the schema is not this experiment's: {_schema_difference(codec.schema, schema)}")
        message = _next(messages, "record batch")
        unpacked = declared_bytes(message.metadata, message.body)
        if unpacked > size_cap:
            raise BatchError(f"the batch unpacks to {unpacked} bytes, more than the cap of {size_cap}")
        batch = pa.ipc.read_record_batch(message, codec.schema)
        batch.validate(full=True)
    except _REFUSALS as error:
        raise BatchError(f"not a whole Arrow stream of one batch: {_one_line(error)}") from error
    _expect_end(messages, source, data)
    return batch


def _next(messages: Any, kind: str) -> Any:
    """The next message, of that type: Arrow crashes when it is asked to read one as another."""
    message = messages.read_next_message()
    if message.type != kind:
        raise BatchError(f"a message of type {message.type} stands where a {kind} should")
    return message


def _expect_end(messages: Any, source: Any, data: bytes | memoryview) -> None:
    try:
        extra = messages.read_next_message()
    except StopIteration:
        if source.tell() != len(data):
            raise BatchError(f"{len(data) - source.tell()} bytes follow the end of the stream") from None
        if bytes(data[-len(_END) :]) != _END:
            raise BatchError("the stream has no end mark: it was cut") from None
        return
    except _REFUSALS as error:
        raise BatchError(f"not a whole Arrow stream of one batch: {_one_line(error)}") from error
    raise BatchError(f"a {extra.type} message follows the record batch")


def _views(codec: _Codec, batch: pa.RecordBatch) -> Segments:
    rows = batch.num_rows
    arrays: dict[str, NDArray[Any]] = {}
    for place, column in enumerate(codec.columns):
        arrays[column.name] = column.from_arrow(batch.column(place))
    lengths: NDArray[np.int64] | None = None
    for place, column in enumerate(codec.finals, start=len(codec.columns)):
        lists = batch.column(place)
        mine = list_lengths(lists, column.name)
        if lengths is not None and not np.array_equal(lengths, mine):
            raise ValueError(f"{column.name} has other lengths than final_step")
        lengths = mine
        arrays[column.name] = column.from_arrow(lists.values)
    assert lengths is not None
    arrays["final_row"] = np.repeat(np.arange(rows, dtype=np.int32), lengths)
    arrays["final_row"].flags.writeable = False
    return Segments(codec.layout, rows, arrays)


def _schema_difference(expected: pa.Schema, found: pa.Schema) -> str:
    if missing := [name for name in expected.names if name not in found.names]:
        return f"column {missing[0]} is missing"
    if extra := [name for name in found.names if name not in expected.names]:
        return f"column {_one_line(extra[0])} is unknown"
    for name in expected.names:
        places = found.get_all_field_indices(name)
        if len(places) != 1 or not expected.field(name).equals(found.field(places[0]), check_metadata=True):
            return f"column {name} is {_one_line(found.field(places[0]).type)}, expected {expected.field(name).type}"
    return "the order of columns or the metadata differs"


def _one_line(thing: object) -> str:
    text = " ".join(str(thing).split())[:200] or type(thing).__name__
    return text.encode("ascii", "backslashreplace").decode()
