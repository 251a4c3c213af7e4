"""Checksums of a batch's bytes, as they travel in its pointer.

Pure: what a wrong one means is its reader's affair.
"""

import zlib

import numpy as np
from numpy.typing import NDArray

_ENDS, _SPOT, _SPOTS = 16 << 10, 256, 64


def checksum(data: bytes | memoryview) -> int:
    """CRC-32 of `data` (zlib's), the number that travels in the pointer."""
    return zlib.crc32(data)


def spot_check(data: bytes | memoryview) -> int:
    """As `checksum`, of the length, both ends and a sample of `data`: of bytes that never leave a machine's memory.

    What may be wrong there is that they are another batch's, cut, or not written at all.
    """
    size = len(data)
    if size <= 4 * _ENDS:
        return zlib.crc32(data)
    found = zlib.crc32(data[:_ENDS], zlib.crc32(size.to_bytes(8, "little")))
    spots = range(_ENDS, size - _ENDS, max(_SPOT, (size - 2 * _ENDS) // _SPOTS))
    sample: NDArray[np.uint8] = np.ndarray((len(spots), _SPOT), np.uint8, data, spots.start, (spots.step, 1))
    return zlib.crc32(data[size - _ENDS :], zlib.crc32(sample.tobytes(), found))
