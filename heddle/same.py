"""Whether frames have the same bytes, at the speed of memcmp: NaN is itself here, and -0 is not 0.

It never looks at what bytes mean. Arrow compares buffers three times as fast as numpy does arrays.
"""

import math
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


class Frames:
    """The bytes of an array [..., *frame], counted in frames from its beginning; good while the array is.

    Args:
        lead: dimensions in front of a frame's own.
    """

    def __init__(self, array: NDArray[Any], lead: int) -> None:
        self._size = array.itemsize * math.prod(array.shape[lead:])
        self._buffer = pa.py_buffer(np.ascontiguousarray(array).reshape(-1).view(np.uint8))

    def same(self, one: int, other: int, count: int, of: "Frames | None" = None) -> bool:
        """Whether `count` frames from `one` on have the bytes of those from `other` on, of this array or of `of`."""
        size, theirs = count * self._size, self._buffer if of is None else of._buffer
        found: bool = self._buffer.slice(one * self._size, size).equals(theirs.slice(other * self._size, size))
        return found
