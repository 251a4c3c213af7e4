"""Arrow streams of one record batch, read: bytes of a batch to the columns in them.

It never trusts what it reads, and never looks into a column: `batch.py` does, by what `codec.py` says.
"""

from typing import Any

import pyarrow as pa

from heddle.codec import END, Codec, codec_of, frames_of
from heddle.errors import BatchError
from heddle.folding import stackable
from heddle.layout import Layout
from heddle.wire import declared_bytes

_VALUES = (ValueError, TypeError, LookupError, OverflowError, NotImplementedError, StopIteration)
REFUSALS = (pa.ArrowException, OSError, MemoryError, EOFError, *_VALUES)
"""What Arrow raises on bytes that are not what they claim to be; seen by flipping and cutting bytes."""


def read_batch(layout: Layout, data: bytes | memoryview, size_cap: int) -> tuple[Codec, pa.RecordBatch]:
    """The one record batch in `data`, structurally valid and of exactly the layout's schema, whole or with stacks.

    Raises:
        BatchError: `data` is anything else, or unpacks to more than `size_cap` bytes.
    """
    try:
        source = pa.BufferReader(pa.py_buffer(data))
        messages = pa.ipc.MessageReader.open_stream(source)
        schema = pa.ipc.read_schema(_next(messages, "schema"))
        codec = codec_of(layout, _stacks_in(layout, schema))
        if not schema.equals(codec.schema, check_metadata=True):
            raise BatchError(f"the schema is not this experiment's: {_schema_difference(codec.schema, schema)}")
        message = _next(messages, "record batch")
        unpacked = declared_bytes(message.metadata, message.body)
        if unpacked > size_cap:
            raise BatchError(f"the batch unpacks to {unpacked} bytes, more than the cap of {size_cap}")
        batch = pa.ipc.read_record_batch(message, codec.schema)
        batch.validate(full=True)
    except REFUSALS as error:
        raise BatchError(f"not a whole Arrow stream of one batch: {one_line(error)}") from error
    _expect_end(messages, source, data)
    return codec, batch


def _stacks_in(layout: Layout, schema: pa.Schema) -> tuple[str, ...]:
    """The leaves that a schema says are stacks."""
    names = set(schema.names)
    return tuple(name for name in stackable(layout) if frames_of(name) in names)


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
        if bytes(data[-len(END) :]) != END:
            raise BatchError("the stream has no end mark: it was cut") from None
        return
    except REFUSALS as error:
        raise BatchError(f"not a whole Arrow stream of one batch: {one_line(error)}") from error
    raise BatchError(f"a {extra.type} message follows the record batch")


def _schema_difference(expected: pa.Schema, found: pa.Schema) -> str:
    if missing := [name for name in expected.names if name not in found.names]:
        return f"column {missing[0]} is missing"
    if extra := [name for name in found.names if name not in expected.names]:
        return f"column {one_line(extra[0])} is unknown"
    for name in expected.names:
        places = found.get_all_field_indices(name)
        if len(places) != 1 or not expected.field(name).equals(found.field(places[0]), check_metadata=True):
            return f"column {name} is {one_line(found.field(places[0]).type)}, expected {expected.field(name).type}"
    return "the order of columns or the metadata differs"


def one_line(thing: object) -> str:
    """What it says, in ASCII and at most 200 characters of it; its kind where it says nothing."""
    text = " ".join(str(thing).split())[:200] or type(thing).__name__
    return text.encode("ascii", "backslashreplace").decode()
