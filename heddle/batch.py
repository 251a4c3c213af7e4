"""Batch bytes: Segments to an Arrow IPC stream of one record batch and back, and with `arrow_stream.py`, `codec.py`,
`columns.py` and `same.py` the only place that knows Arrow.

It never trusts what it reads: until size, checksum, schema, structure and contents are right, nobody sees an array.

One row is one segment; `columns.py` says how each array of it travels. Final observations of truncated episodes are
list columns: `final_step` and `final.<leaf>`, as many entries as the segment has such endings. Observations that are
stacks of frames may travel with each frame once, as `codec.py` says. No extension type is registered from Python, and
nothing is ever unpickled.
"""

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from heddle.arrow_stream import REFUSALS, one_line, read_batch
from heddle.checksums import checksum, spot_check
from heddle.codec import Codec, codec_of, frames_of, index_of
from heddle.columns import FixedColumn
from heddle.errors import BatchError
from heddle.folding import Folded
from heddle.layout import Column, ColumnLike, Layout, Per, Segments, make_layout
from heddle.placer import Placer
from heddle.segment_checks import first_problem
from heddle.stacks import Stack, in_turn
from heddle.stencil import Fill, Stencil

__all__ = [
    "Column",
    "ColumnLike",
    "Layout",
    "Per",
    "Segments",
    "checksum",
    "decode",
    "decode_stacks",
    "encode",
    "encode_folded",
    "encode_into",
    "encode_like",
    "finish_in",
    "make_layout",
    "places",
    "spot_check",
]

Take = Callable[[int], memoryview]
"""Gives memory of so many bytes or more."""


def encode(layout: Layout, segments: Segments, *, compression: Literal["lz4", "zstd"] | None = None) -> memoryview:
    """The bytes of `segments`: C-contiguous, format "B", written once from the arrays as they lie.

    Raises:
        ValueError: an array is missing or has another shape or dtype than the layout says.
    """
    codec, batch = _record_batch(layout, segments)
    if compression is not None:
        sink = pa.BufferOutputStream()
        _write(sink, batch, compression)
        return memoryview(sink.getvalue()).cast("B")
    buffer = pa.allocate_buffer(codec.framing_bytes + pa.ipc.get_record_batch_size(batch))
    _write(pa.FixedSizeBufferWriter(buffer), batch, None)
    return memoryview(buffer).cast("B").toreadonly()


def encode_into(layout: Layout, segments: Segments, take: Take) -> memoryview:
    """As `encode`, without compression, into memory that `take` gives for so many bytes or more; what it used of that.

    Arrays that lie in that memory where `places` says stay there, and are not copied.

    Raises:
        ValueError: as `encode` does.
    """
    codec, batch = _record_batch(layout, segments)
    size = codec.framing_bytes + pa.ipc.get_record_batch_size(batch)
    memory = take(size)[:size]
    _write(pa.PythonFile(Placer(memory), mode="w"), batch, None)
    return memory.toreadonly()


def _record_batch(layout: Layout, segments: Segments) -> tuple[Codec, pa.RecordBatch]:
    codec = codec_of(layout, tuple(sorted(segments.stacks)))
    return codec, pa.RecordBatch.from_arrays(list(codec.arrow_columns(segments)), schema=codec.schema)


def encode_folded(layout: Layout, folded: Folded, take: Take, scratch: Take) -> memoryview:
    """As `encode_into`, each frame of a stack once.

    Args:
        scratch: gives memory that is needed no longer than this takes.
    """
    stencil = _folded_stencil(layout, folded.segments.rows, folded.stacks) if folded.is_even else None
    if stencil is None:
        return encode_into(layout, folded.gathered(scratch), take)
    arrays: dict[str, NDArray[Any] | Fill] = {**folded.others()}
    for name, part in folded.parts.items():
        arrays |= {index_of(name): part.index, frames_of(name): part.stack}
    return stencil.write(arrays, take(stencil.size))


@dataclass(frozen=True, slots=True)
class Places:
    """Where the arrays of an encoded batch of so many segments lie, when it has no final observations.

    Attributes:
        size: bytes of that batch.
        offsets: where arrays begin in it: those that travel as they are, no half floats, and that stand before anything
            whose length varies.
        stencil: all that is around them; None where there are other arrays.
        runs: of the stencil.
    """

    size: int
    offsets: dict[str, int]
    stencil: Stencil | None
    runs: tuple[bytes | FixedColumn, ...]


@functools.lru_cache(maxsize=64)
def places(layout: Layout, rows: int) -> Places:
    """Of batches of `rows` segments."""
    codec = codec_of(layout)
    data = encode(layout, Segments.empty(layout, rows))
    begin = np.frombuffer(data, np.uint8).ctypes.data
    arrays, counts = codec.taken_from(read_batch(layout, data, len(data))[1])
    steady = itertools.takewhile(lambda column: isinstance(column, FixedColumn), codec.columns)
    plain = [c.name for c in steady if isinstance(c, FixedColumn) and c.is_plain]
    offsets = {name: arrays[name].ctypes.data - begin for name in plain if arrays[name].size}
    stencil = codec.stencil(arrays, counts, data)
    return Places(len(data), offsets, stencil, () if stencil is None else stencil.runs())


@functools.lru_cache(maxsize=64)
def _folded_stencil(layout: Layout, rows: int, stacks: tuple[str, ...]) -> Stencil | None:
    """Of batches of `rows` segments whose stacks are even and of which no episode was cut off."""
    segments = Segments.empty(layout, rows)
    for name in stacks:
        shown = segments.arrays.pop(name)
        k, final = shown.shape[2], segments.arrays.pop(f"final.{name}")
        counts = np.full(rows, layout.steps + k, np.int64)
        index = np.broadcast_to(in_turn(layout.steps + 1, k), shown.shape[:3]).astype(np.int32)
        frames = np.zeros((int(counts.sum()), *shown.shape[3:]), shown.dtype)
        segments.stacks[name] = Stack(frames, counts, index, np.zeros((len(final), k), np.int32))
    data = encode(layout, segments)
    codec, batch = read_batch(layout, data, len(data))
    return codec.stencil(*codec.taken_from(batch), data)


def finish_in(layout: Layout, segments: Segments, memory: memoryview) -> memoryview | None:
    """As `encode_into`, when all arrays lie in `memory` where `places` says: only what is around them is written.

    None where one does not, or there are final observations; nothing was written then.
    """
    if segments.num_finals:
        return None
    stencil = places(layout, segments.rows).stencil
    return None if stencil is None else stencil.write_around(segments.arrays, memory)


def encode_like(layout: Layout, segments: Segments, take: Take | None = None) -> memoryview | None:
    """As `encode`, or with `take` as `encode_into`, without Arrow: by what surrounds the arrays of every such batch.

    None where there are final observations, and without `take` where an array is not as it must be. Slow for the first
    of so many rows.

    Raises:
        ValueError: with `take`, as `encode` does; what it gave is of no use then.
    """
    known = None if segments.num_finals or segments.stacks else places(layout, segments.rows)
    if known is None or known.stencil is None:
        return None
    if take is not None:
        return known.stencil.write(segments.arrays, take(known.size))
    made = known.stencil.joined(segments.arrays, known.runs)
    return None if made is None else memoryview(made)


def decode(layout: Layout, data: bytes | memoryview, *, crc32: int | None, size_cap: int) -> Segments:
    """Read-only arrays over `data`, without copying where alignment allows; `data` must outlive them unchanged.

    Observations that came as stacks of frames are put together: views of the frames where that is possible.

    Args:
        crc32: what `checksum` gave the writer; None when it is not known.
        size_cap: most bytes that `data`, and what it unpacks to, may have.

    Raises:
        BatchError: anything at all is off; the message is one line that names it.
    """
    return decode_stacks(layout, data, crc32=crc32, size_cap=size_cap).whole()


def decode_stacks(layout: Layout, data: bytes | memoryview, *, crc32: int | None, size_cap: int) -> Segments:
    """As `decode`, but observations of which no view can be made stay stacks: see `Segments.whole`."""
    if len(data) > size_cap:
        raise BatchError(f"the batch has {len(data)} bytes, more than the cap of {size_cap}")
    if crc32 is not None and (actual := checksum(data)) != crc32:
        raise BatchError(f"the checksum is {actual:08x}, announced was {crc32:08x}")
    codec, stencil = codec_of(layout).stencils.get(len(data), (None, None))
    fitting = stencil if stencil is not None and stencil.fits(data) else None
    batch = None
    if codec is None or fitting is None:
        codec, batch = read_batch(layout, data, size_cap)
    try:
        arrays, counts = (fitting.read(data), fitting.counts) if fitting else codec.taken_from(batch)
        if codec.stacks:
            _demand_below(codec.layout, arrays, size_cap)
        segments = codec.segments(arrays, counts)
    except REFUSALS as error:
        raise BatchError(f"the batch cannot be laid out: {one_line(error)}") from error
    if fitting is None:
        codec.learn(arrays, counts, data)
    if problem := first_problem(segments):
        raise BatchError(problem)
    return segments


def _demand_below(layout: Layout, arrays: dict[str, Any], size_cap: int) -> None:
    """A few frames that are shown again and again must not ask for all of memory."""
    size = layout.bytes_of(len(arrays["length"]), len(arrays["final_row"]))
    if size > size_cap:
        raise BatchError(f"the batch unpacks to {size} bytes, more than the cap of {size_cap}")


def _write(sink: Any, batch: pa.RecordBatch, compression: str | None) -> None:
    options = pa.ipc.IpcWriteOptions(compression=compression, use_threads=False)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
