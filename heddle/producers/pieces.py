"""Pieces: memory of a worker's own in which a batch is played and from which it is sent, used again once that is over.

It never knows who sends it: a piece is free when nobody looks at what was sent any more.
"""

import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

ALIGNED = 64
KEPT_FREE = 1
"""Free pieces that are kept beside the one that was taken."""


class Piece:
    """One, from `Pieces.take` until `discard`, or until what it `sent` is gone.

    Attributes:
        size: its bytes.
        is_taken: somebody plays in it, or looks at what was sent.
    """

    def __init__(self, size: int) -> None:
        whole = np.empty(size + ALIGNED, np.uint8)
        start = -int(whole.__array_interface__["data"][0]) % ALIGNED
        self._block: NDArray[np.uint8] = whole[start : start + size]
        self.size, self.is_taken = size, True

    def view(self) -> memoryview:
        """Its bytes, writable."""
        return self._block.data

    def sent(self, size: int) -> memoryview:
        """The first bytes, read-only: when the last view of them is gone the piece is free."""
        lent: NDArray[Any] = np.frombuffer(self._block.data, np.uint8)  # an object of its own, which lives as they do
        weakref.finalize(lent, self.discard).atexit = False
        return lent.data[:size].toreadonly()

    def discard(self) -> None:
        """Nobody wants what is in it."""
        self.is_taken = False


class Pieces:
    """Those of one experiment; one thread takes them, any may let them go."""

    def __init__(self) -> None:
        self._all: list[Piece] = []

    def take(self, size: int) -> Piece:
        """One of at least `size` bytes."""
        free = [piece for piece in self._all if not piece.is_taken]
        found = next((piece for piece in free if size <= piece.size <= 2 * size), None)
        surplus = [piece for piece in free if piece is not found][KEPT_FREE:]
        self._all = [piece for piece in self._all if piece not in surplus]
        if found is None:
            found = Piece(size)
            self._all.append(found)
        found.is_taken = True
        return found

    def __contains__(self, piece: object) -> bool:
        return piece in self._all
