"""Batch bytes: Segments to an Arrow IPC stream of one record batch and back, and the only place that knows Arrow.

It never trusts what it reads: until size, checksum, schema, structure and contents are right, nobody sees an array.

One row is one segment. A column of fixed shape is a canonical fixed_shape_tensor (or a plain number where a segment
has one), so any Arrow reader can open it; booleans travel as uint8 0 or 1 and say so in their field's metadata. Final
observations of truncated episodes are list columns: `final_step` and `final.<leaf>`, as many entries as the segment
has such endings. No extension type is registered from Python, and nothing is ever unpickled.
"""

import functools
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from heddle.errors import BatchError
from heddle.layout import Column, ColumnLike, Layout, Per, Segments, make_layout
from heddle.segment_checks import first_problem
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
    "make_layout",
]

FORMAT = b"1"

# What Arrow raises on bytes that are not what they claim to be; seen by flipping and cutting bytes.
_REFUSALS = (
    pa.ArrowException,
    OSError,
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    OverflowError,
    MemoryError,
    EOFError,
    NotImplementedError,
    StopIteration,
)


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
    batch = _read(codec, data, size_cap)
    try:
        segments = _views(codec, batch)
    except _REFUSALS as error:
        raise BatchError(f"the batch cannot be laid out: {_one_line(error)}") from error
    if problem := first_problem(segments):
        raise BatchError(problem)
    return segments


def checksum(data: bytes | memoryview) -> int:
    """CRC-32 of `data` (zlib's), the number that travels in the pointer."""
    return zlib.crc32(data)


@dataclass(frozen=True, slots=True)
class _Codec:
    """What is worked out once for a layout.

    Attributes:
        schema: exact Arrow schema.
        framing_bytes: of the stream besides the record batch: schema message and end mark.
        finals: list columns of final observations, as columns of one entry.
    """

    layout: Layout
    schema: pa.Schema
    framing_bytes: int
    finals: tuple[Column, ...]


@functools.lru_cache(maxsize=64)
def _codec(layout: Layout) -> _Codec:
    finals = [Column("final_step", "int32", (), "segment")]
    finals += [
        Column(f"final.{leaf.name}", leaf.space.dtype, leaf.space.shape, "segment")
        for leaf in layout.observation_leaves
    ]
    fields = [_field(column, _fixed_type(column, layout.steps)) for column in layout.columns]
    fields += [_field(column, _list_type(column)) for column in finals]
    schema = pa.schema(fields, metadata={b"heddle.format": FORMAT, b"heddle.steps": str(layout.steps).encode()})
    end_mark = 8
    return _Codec(layout, schema, schema.serialize().size + end_mark, tuple(finals))


def _field(column: Column, arrow_type: pa.DataType) -> pa.Field:
    metadata = {b"heddle.dtype": b"bool"} if column.dtype == "bool" else None
    return pa.field(column.name, arrow_type, nullable=False, metadata=metadata)


def _value_type(column: Column) -> pa.DataType:
    return pa.from_numpy_dtype(np.dtype("uint8" if column.dtype == "bool" else column.dtype))


def _fixed_type(column: Column, steps: int) -> pa.DataType:
    shape = column.row_shape(steps)
    return pa.fixed_shape_tensor(_value_type(column), shape) if shape else _value_type(column)


def _list_type(column: Column) -> pa.DataType:
    return pa.list_(pa.field("item", _fixed_type(column, 0), nullable=False))


def _arrow_columns(codec: _Codec, segments: Segments) -> Iterator[pa.Array]:
    layout, rows = codec.layout, segments.rows
    for column in layout.columns:
        shape = (rows, *column.row_shape(layout.steps))
        yield _fixed_array(_fixed_type(column, layout.steps), _bytes_of(segments, column, shape), rows)
    counts = np.bincount(segments.arrays["final_row"], minlength=rows) if rows else np.zeros(0, np.int64)
    offsets = np.zeros(rows + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    order = np.lexsort((segments.arrays["final_step"], segments.arrays["final_row"]))
    in_order = bool((order[1:] > order[:-1]).all())
    for column in codec.finals:
        values = segments.arrays[column.name]
        flat = _bytes_of(segments, column, (segments.num_finals, *column.shape))
        if not in_order:
            flat = pa.py_buffer(np.ascontiguousarray(values[order]))
        items = _fixed_array(_fixed_type(column, 0), flat, segments.num_finals)
        list_type = _list_type(column)
        yield pa.Array.from_buffers(list_type, rows, [None, pa.py_buffer(offsets)], null_count=0, children=[items])


def _fixed_array(arrow_type: pa.DataType, flat: pa.Buffer, rows: int) -> pa.Array:
    """`rows` values of a plain or tensor type over the flat elements in `flat`."""
    if not isinstance(arrow_type, pa.FixedShapeTensorType):
        return pa.Array.from_buffers(arrow_type, rows, [None, flat], null_count=0)
    elements = rows * math.prod(arrow_type.shape)
    values = pa.Array.from_buffers(arrow_type.value_type, elements, [None, flat], null_count=0)
    storage_type = arrow_type.storage_type
    storage = pa.Array.from_buffers(storage_type, rows, [None], null_count=0, children=[values])
    return pa.ExtensionArray.from_storage(arrow_type, storage)


def _bytes_of(segments: Segments, column: Column, shape: tuple[int, ...]) -> pa.Buffer:
    array = segments.arrays.get(column.name)
    if array is None:
        raise ValueError(f"the segments lack {column.name}")
    if array.shape != shape or array.dtype != np.dtype(column.dtype):
        raise ValueError(f"{column.name} is {array.dtype}{list(array.shape)}, the layout says {column.dtype}{shape}")
    return pa.py_buffer(np.ascontiguousarray(array).reshape(-1).view(np.uint8))


def _write(sink: Any, batch: pa.RecordBatch, compression: str | None) -> None:
    options = pa.ipc.IpcWriteOptions(compression=compression, use_threads=False)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    sink.flush()


def _read(codec: _Codec, data: bytes | memoryview, size_cap: int) -> pa.RecordBatch:
    """The one record batch in `data`, structurally valid and of exactly the layout's schema."""
    try:
        source = pa.BufferReader(pa.py_buffer(data))
        messages = pa.ipc.MessageReader.open_stream(source)
        schema = pa.ipc.read_schema(messages.read_next_message())
        if not schema.equals(codec.schema, check_metadata=True):
            raise BatchError(f"the schema is not this experiment's: {_schema_difference(codec.schema, schema)}")
        message = messages.read_next_message()
        if message.type != "record batch":
            raise BatchError(f"a {message.type} message stands where the record batch should")
        unpacked = declared_bytes(message.metadata, message.body)
        if unpacked > size_cap:
            raise BatchError(f"the batch unpacks to {unpacked} bytes, more than the cap of {size_cap}")
        batch = pa.ipc.read_record_batch(message, codec.schema)
        batch.validate(full=True)
    except _REFUSALS as error:
        raise BatchError(f"not a whole Arrow stream of one batch: {_one_line(error)}") from error
    _expect_end(messages, source, len(data))
    return batch


def _expect_end(messages: Any, source: Any, size: int) -> None:
    try:
        extra = messages.read_next_message()
    except StopIteration:
        if source.tell() != size:
            raise BatchError(f"{size - source.tell()} bytes follow the end of the stream") from None
        return
    except _REFUSALS as error:
        raise BatchError(f"not a whole Arrow stream of one batch: {_one_line(error)}") from error
    raise BatchError(f"a {extra.type} message follows the record batch")


def _views(codec: _Codec, batch: pa.RecordBatch) -> Segments:
    layout, rows = codec.layout, batch.num_rows
    arrays: dict[str, NDArray[Any]] = {}
    for place, column in enumerate(layout.columns):
        arrays[column.name] = _flat(batch.column(place), column).reshape(rows, *column.row_shape(layout.steps))
    offsets: NDArray[np.int32] | None = None
    for place, column in enumerate(codec.finals, start=len(layout.columns)):
        lists = batch.column(place)
        mine = _offsets(lists, rows)
        if offsets is not None and not np.array_equal(offsets, mine):
            raise ValueError(f"{column.name} has other lengths than final_step")
        offsets = mine
        values = lists.values
        if len(values) != mine[-1]:
            raise ValueError(f"{column.name} has {len(values)} values for {mine[-1]} places")
        arrays[column.name] = _flat(values, column).reshape(len(values), *column.shape)
    assert offsets is not None  # final_step always exists
    arrays["final_row"] = _frozen(np.repeat(np.arange(rows, dtype=np.int32), np.diff(offsets)))
    return Segments(layout, rows, arrays)


def _offsets(lists: pa.Array, rows: int) -> NDArray[np.int32]:
    if lists.null_count or lists.offset:
        raise ValueError("a list column has nulls or an offset")
    if not rows:
        return np.zeros(1, np.int32)
    offsets = np.frombuffer(lists.buffers()[1], np.int32, count=rows + 1)
    if offsets[0] != 0 or (np.diff(offsets) < 0).any():
        raise ValueError("list offsets are out of order")
    return offsets


def _flat(array: pa.Array, column: Column) -> NDArray[Any]:
    """All elements of a plain or tensor array, in order, read-only."""
    if array.null_count or array.offset:
        raise ValueError(f"{column.name} has nulls or an offset")
    values = array.storage.values if isinstance(array, pa.FixedShapeTensorArray) else array
    if values.null_count or values.offset:
        raise ValueError(f"{column.name} has nulls or an offset")
    buffer = values.buffers()[1]
    dtype = np.dtype("uint8" if column.dtype == "bool" else column.dtype)
    if buffer is None or not len(values):
        return _frozen(np.zeros(0, column.dtype))
    flat = np.frombuffer(buffer, dtype, count=len(values))
    if column.dtype == "bool":
        if flat.max() > 1:
            raise ValueError(f"{column.name} has a value that is neither 0 nor 1")
        flat = flat.view(np.bool_)
    return _frozen(flat if flat.flags.aligned else flat.copy())


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    array.flags.writeable = False
    return array


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
