"""Blocks: large pieces of this process's memory, used again once nobody looks at them any more.

A new piece of some megabytes is zeroed page by page when it is first written to, which takes longer than filling it.
"""

import weakref
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

ALIGNED = 64
KEPT_FREE = 64 << 20
"""Bytes that are kept while nobody uses them."""


class Blocks:
    """Pieces of memory; threads may share it."""

    def __init__(self, kept_free: int = KEPT_FREE) -> None:
        self._kept_free = kept_free
        self._free = deque[NDArray[np.uint8]]()

    def take(self, size: int) -> memoryview:
        """`size` bytes, writable and aligned, with anything in them; ours again when the last view of them is gone."""
        block = self._found(size)
        if block is None:
            whole = np.empty(size + ALIGNED, np.uint8)
            start = -int(whole.__array_interface__["data"][0]) % ALIGNED
            block = whole[start : start + size]
        lent: NDArray[Any] = np.frombuffer(block.data, np.uint8)  # an object of its own, with the lifetime of its views
        weakref.finalize(lent, self._give_back, block).atexit = False
        return lent.data[:size]

    def _found(self, size: int) -> NDArray[np.uint8] | None:
        """A free one that is not much too large."""
        for _ in range(len(self._free)):
            try:
                block = self._free.popleft()
            except IndexError:  # another thread took it
                return None
            if size <= len(block) <= 2 * size:
                return block
            self._free.append(block)
        return None

    def _give_back(self, block: NDArray[np.uint8]) -> None:
        """At any moment, in any thread; the oldest make room."""
        self._free.append(block)
        while sum(len(one) for one in self._free.copy()) > self._kept_free:
            try:
                self._free.popleft()
            except IndexError:
                return
