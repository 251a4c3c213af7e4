"""The placer: a file that lies in memory, and in which most of what is written to it stands already.

It never knows what is written. Arrow writes a batch to it; what was played where it shall lie is not copied.
"""

from typing import Any

import numpy as np


class Placer:
    """A file that lies in memory: what stands already where it shall go is left there, all else is copied."""

    closed = False

    def __init__(self, memory: memoryview) -> None:
        self._bytes = np.frombuffer(memory, np.uint8)
        self._begin, self._at = self._bytes.ctypes.data, 0

    def write(self, data: Any) -> int:
        size = len(memoryview(data).cast("B"))
        target = self._bytes[self._at : self._at + size]
        if len(target) < size:
            raise ValueError(f"{size} bytes do not fit behind {self._at} of {len(self._bytes)}")
        if size:
            source = np.frombuffer(data, np.uint8)
            where = source.ctypes.data - self._begin
            if where != self._at:
                if 0 <= where < len(self._bytes):
                    raise ValueError(f"an array lies at {where} of the memory that it is written to, not at {self._at}")
                target[:] = source
        self._at += size
        return size

    def tell(self) -> int:
        return self._at

    def flush(self) -> None:
        """All of it is there."""

    def close(self) -> None:
        """Nothing is held open."""

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False
