"""The snapshot of a shard: where its play stands between two batches, as bytes.

It never plays, and it never knows a broker or a number of a batch: whoever stores the bytes names them after the batch
that they follow.

The bytes are a magic word, the CRC-32 of all that follows, the length of a JSON header, the header (what the snapshot
is of, and names, dtypes and shapes of arrays), those arrays one after the other, and the environments' own bytes
(`snapshot.py`).
"""

import json
import math
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heddle.errors import SnapshotError

MAGIC = b"HEDSHD1\n"
_START = len(MAGIC) + 8
_NUMBER = re.compile("[<>|=][biufc][0-9]{1,3}")
Array = NDArray[Any]
Shapes = tuple[tuple[str, str, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class Identity:
    """What a snapshot is of; one of anything else is refused.

    Attributes:
        spec: sha256 of the resolved spec.
        seed: root of all chance, which a continued experiment does not share with the one before.
        shard: index.
        num_envs: environments.
    """

    spec: str
    seed: int
    shard: int
    num_envs: int


def pack(identity: Identity, arrays: Mapping[str, Array], envs: bytes) -> bytes:
    """The bytes of a snapshot.

    Args:
        arrays: by name, of numbers, in any shape.
        envs: what `snapshot.take_all` gave.
    """
    shapes = tuple((name, array.dtype.str, array.shape) for name, array in arrays.items())
    header = _header(identity, shapes)
    body = b"".join([len(header).to_bytes(4, "little"), header, *(array.tobytes() for array in arrays.values()), envs])
    return b"".join((MAGIC, zlib.crc32(body).to_bytes(4, "little"), body))


def unpack(
    data: bytes | memoryview, identity: Identity, shapes: Mapping[str, tuple[str | None, tuple[int, ...] | None]]
) -> tuple[dict[str, Array], memoryview]:
    """The arrays, to be written to, and the environments' bytes.

    Args:
        shapes: name -> (dtype, None for any number; shape, None for any) of every array that must be there.

    Raises:
        SnapshotError: damaged, or of something else.
    """
    view = memoryview(data).cast("B")
    if len(view) < _START or view[: len(MAGIC)] != MAGIC:
        raise SnapshotError("does not begin as a snapshot does")
    if zlib.crc32(view[len(MAGIC) + 4 :]) != int.from_bytes(view[len(MAGIC) : len(MAGIC) + 4], "little"):
        raise SnapshotError("is damaged: its checksum does not fit its bytes")
    length = int.from_bytes(view[_START - 4 : _START], "little")
    found = _read_header(bytes(view[_START : _START + length]), identity)
    arrays, at = {}, _START + length
    for name, dtype, shape in found:
        size = math.prod(shape) * np.dtype(dtype).itemsize
        if at + size > len(view):
            raise SnapshotError("is cut short")
        arrays[name] = np.frombuffer(view[at : at + size], dtype).reshape(shape).copy()
        at += size
    _check(arrays, shapes)
    return arrays, view[at:]


@lru_cache(maxsize=64)
def _header(identity: Identity, shapes: Shapes) -> bytes:
    of = [identity.spec, identity.seed, identity.shard, identity.num_envs]
    return json.dumps({"of": of, "arrays": shapes}).encode()


def _read_header(header: bytes, identity: Identity) -> Shapes:
    try:
        content = json.loads(header)
        spec, seed, shard, num_envs = content["of"]
        found = tuple((str(name), _number(dtype), _shape(shape)) for name, dtype, shape in content["arrays"])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise SnapshotError(f"has a header that cannot be read: {type(error).__name__}: {error}") from error
    if Identity(spec, seed, shard, num_envs) != identity:
        raise SnapshotError(f"is of shard {shard} with {num_envs} environments of spec {spec} with seed {seed}")
    return found


def _number(dtype: object) -> str:
    if not isinstance(dtype, str) or not _NUMBER.fullmatch(
        dtype
    ):  # numpy takes far more, and raises all sorts of errors
        raise ValueError(f"{dtype!r} is no dtype of numbers")
    return np.dtype(dtype).str


def _shape(shape: Any) -> tuple[int, ...]:
    if not isinstance(shape, list) or any(type(size) is not int or size < 0 for size in shape):
        raise ValueError(f"{shape!r} is no shape")
    return tuple(shape)


def _check(arrays: Mapping[str, Array], shapes: Mapping[str, tuple[str | None, tuple[int, ...] | None]]) -> None:
    if arrays.keys() != shapes.keys():
        raise SnapshotError(f"holds {', '.join(arrays)}, not {', '.join(shapes)}")
    for name, (dtype, shape) in shapes.items():
        array = arrays[name]
        if (shape is not None and array.shape != shape) or (dtype is not None and array.dtype != np.dtype(dtype)):
            raise SnapshotError(f"holds {name} as {array.dtype} {array.shape}, not as {dtype or 'numbers'} {shape}")
