"""Arrow's message metadata, read by hand: how many bytes a record batch will take once unpacked.

It never touches the payload but for the eight bytes in front of each packed buffer, and imports no Arrow.

A packed buffer states its own unpacked size and a reader allocates what it states, so a few bytes could ask for all of
memory. Layout: flatbuffers (flatbuffers.dev, "FlatBuffer internals"), tables Message and RecordBatch of Arrow's
Message.fbs: buffer_bytes is [(int64 offset, int64 length)], packed buffers begin with int64 size, -1 when left alone.
"""

import struct

_HEADER = 2  # slot of Message.header
_BUFFERS = 2  # slot of RecordBatch.buffers
_COMPRESSION = 3  # slot of RecordBatch.compression


def declared_bytes(metadata: bytes | memoryview, body: bytes | memoryview) -> int:
    """Bytes that the record batch described by `metadata` says it has when unpacked.

    Raises:
        ValueError: the metadata points outside itself or the body, or states a negative size.
    """
    view, payload = memoryview(metadata).cast("B"), memoryview(body).cast("B")
    try:
        message = _at(view, 0, "<I", 0)
        header = _table(view, message, _HEADER)
        if header is None:
            raise ValueError("the message has no header")
        batch = _followed(view, header)
        vector = _table(view, batch, _BUFFERS)
        if vector is None:
            return 0
        if _table(view, batch, _COMPRESSION) is None:
            return len(payload)  # views of the body: nothing is allocated
        start = _followed(view, vector)
        count = _at(view, start, "<I", 0)
        buffers = [struct.unpack_from("<qq", view, start + 4 + 16 * index) for index in range(count)]
        return sum(_unpacked(payload, offset, length) for offset, length in buffers)
    except struct.error as error:
        raise ValueError(f"the message's metadata is cut short: {error}") from error


def _unpacked(payload: memoryview, offset: int, length: int) -> int:
    if offset < 0 or length < 0 or offset + length > len(payload):
        raise ValueError(f"a buffer at {offset} of {length} bytes lies outside the body of {len(payload)}")
    if length == 0:
        return 0
    (size,) = struct.unpack_from("<q", payload, offset)
    if size < -1:
        raise ValueError(f"a packed buffer states {size} bytes")
    return length if size == -1 else int(size)


def _table(view: memoryview, table: int, slot: int) -> int | None:
    """Position of field number `slot` of the table at `table`; None when the table leaves it out."""
    vtable = table - _at(view, table, "<i", 0)
    entry = 4 + 2 * slot
    if entry + 2 > _at(view, vtable, "<H", 0):
        return None
    offset = _at(view, vtable, "<H", entry)
    return table + offset if offset else None


def _followed(view: memoryview, position: int) -> int:
    return position + _at(view, position, "<I", 0)


def _at(view: memoryview, position: int, form: str, offset: int) -> int:
    if position + offset < 0:
        raise ValueError("the message's metadata points in front of itself")
    (value,) = struct.unpack_from(form, view, position + offset)
    return int(value)
