"""Plain values as bytes: numbers, text, bytes, numpy arrays, and lists, tuples and dicts of them; checked when read.

It never makes an object of anybody's class, so reading cannot run code.

A file is 8 bytes of magic, the CRC-32 of all that follows, the length of a JSON header, the header, and the bytes of
arrays and byte strings, to which the header refers by offset and length.
"""

import json
import math
import re
import zlib
from typing import Any

import numpy as np

MAGIC = b"HEDDLE1\n"
_START = len(MAGIC) + 8
_DEPTH = 64
_KINDS = "biufcSU"
_DTYPE = re.compile(rf"[<>|=][{_KINDS}][0-9]{{1,9}}")


class PlainError(ValueError):
    """A value that is not plain, or bytes that are no plain value."""


def dump(value: Any) -> bytes:
    """The bytes of `value`.

    Raises:
        PlainError: something within is of another kind; the message names where.
    """
    blobs: list[bytes] = []
    header = json.dumps(_Writer(blobs).tree(value, "", 0), separators=(",", ":"), allow_nan=False).encode()
    body = b"".join([len(header).to_bytes(4, "little"), header, *blobs])
    return b"".join([MAGIC, zlib.crc32(body).to_bytes(4, "little"), body])


def load(data: bytes | memoryview) -> Any:
    """The value that `dump` was given; arrays are copies, to be written to.

    Raises:
        PlainError: damaged bytes, or those of something else.
    """
    view = memoryview(data).cast("B")
    if len(view) < _START or view[: len(MAGIC)] != MAGIC:
        raise PlainError("does not begin as a plain value does")
    if zlib.crc32(view[len(MAGIC) + 4 :]) != int.from_bytes(view[len(MAGIC) : len(MAGIC) + 4], "little"):
        raise PlainError("its checksum does not fit its bytes")
    length = int.from_bytes(view[_START - 4 : _START], "little")
    if length > len(view) - _START:
        raise PlainError("its header is cut short")
    try:
        tree = json.loads(bytes(view[_START : _START + length]))
        return _Reader(view[_START + length :]).value(tree, 0)
    except PlainError:
        raise
    except (ValueError, TypeError, KeyError, IndexError, OverflowError, RecursionError, MemoryError) as error:
        raise PlainError(f"its header cannot be read: {error}") from error


class _Writer:
    def __init__(self, blobs: list[bytes]) -> None:
        self._blobs, self._size = blobs, 0

    def tree(self, value: Any, path: str, depth: int) -> Any:
        """`value` as JSON: what JSON has stands for itself, all else is an object with one tag."""
        kind = type(value)
        if value is None or kind is bool or kind is int or kind is str:
            return value
        if depth > _DEPTH:
            raise PlainError(f"{path or 'the value'} is nested more than {_DEPTH} deep")
        if kind is float:
            return value if math.isfinite(value) else {"f": repr(value)}
        if kind is list or kind is tuple:
            items = [self.tree(item, f"{path}[{place}]", depth + 1) for place, item in enumerate(value)]
            return items if kind is list else {"t": items}
        if kind is dict:
            return {"d": [self._pair(key, item, path, depth + 1) for key, item in value.items()]}
        if kind in (bytes, bytearray):
            return {"b": self._add(bytes(value))}
        if isinstance(value, np.ndarray) and kind is np.ndarray and value.dtype.kind in _KINDS:
            return {"a": [value.dtype.str, list(value.shape), *self._add(value.tobytes())]}
        if isinstance(value, np.generic) and value.dtype.kind in _KINDS:
            return {"s": [value.dtype.str, *self._add(value.tobytes())]}
        raise PlainError(f"{path or 'the value'} is of type {kind.__name__}")

    def _pair(self, key: Any, item: Any, path: str, depth: int) -> list[Any]:
        return [self.tree(key, f"{path}, key {key!r}", depth), self.tree(item, f"{path}[{key!r}]", depth)]

    def _add(self, data: bytes) -> list[int]:
        self._blobs.append(data)
        begin, self._size = self._size, self._size + len(data)
        return [begin, len(data)]


class _Reader:
    def __init__(self, blobs: memoryview) -> None:
        self._blobs = blobs

    def value(self, tree: Any, depth: int) -> Any:
        if depth > 2 * _DEPTH:
            raise PlainError("it is nested too deep")
        if isinstance(tree, list):
            return [self.value(item, depth + 1) for item in tree]
        if not isinstance(tree, dict):
            return tree
        ((tag, content),) = tree.items()
        if tag == "f":
            return float(content)
        if tag == "t":
            return tuple(self.value(item, depth + 1) for item in content)
        if tag == "d":
            return {self.value(key, depth + 1): self.value(item, depth + 1) for key, item in content}
        if tag == "b":
            return bytes(self._slice(*content))
        if tag == "a":
            dtype, shape, *where = content
            return np.frombuffer(self._slice(*where), _dtype(dtype)).reshape(_shape(shape)).copy()
        if tag == "s":
            dtype, *where = content
            (scalar,) = np.frombuffer(self._slice(*where), _dtype(dtype))
            return scalar
        raise PlainError(f"it holds a {tag!r}, which this version does not know")

    def _slice(self, begin: int, length: int) -> memoryview:
        if type(begin) is not int or type(length) is not int or begin < 0 or length < 0:
            raise PlainError("an offset in it is no number")
        if begin + length > len(self._blobs):
            raise PlainError("it is cut short")
        return self._blobs[begin : begin + length]


def _dtype(name: Any) -> np.dtype[Any]:
    if not isinstance(name, str) or not _DTYPE.fullmatch(name):  # numpy takes far more, and raises all sorts of errors
        raise PlainError(f"it holds an array of {name!r}")
    return np.dtype(name)


def _shape(sizes: Any) -> tuple[int, ...]:
    if any(type(size) is not int or size < 0 for size in sizes):
        raise PlainError("a shape in it is no list of sizes")
    return tuple(sizes)
