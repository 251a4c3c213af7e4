"""A sum tree: draws an index in proportion to its priority, in logarithmic time.

It never draws chance itself.
"""

import numpy as np
from numpy.typing import NDArray

Index = NDArray[np.int64]
Float64 = NDArray[np.float64]


class SumTree:
    """Priorities of `size` indexes, all 0 at first.

    Source: Schaul et al. 2016, arXiv:1511.05952, appendix B.2.1.
    """

    def __init__(self, size: int) -> None:
        self._depth = max(0, (size - 1).bit_length())
        self._first = 1 << self._depth
        self._sums: Float64 = np.zeros(2 * self._first)

    @property
    def total(self) -> float:
        """Sum of all priorities."""
        return float(self._sums[1])

    def get(self, index: Index) -> Float64:
        """Priorities [M] of indexes [M]."""
        return np.asarray(self._sums[self._first + index])

    def set(self, index: Index, priorities: Float64 | float) -> None:
        """Set the priorities of indexes [M], each at least 0; of an index that is named twice, the last one."""
        if not len(index):
            return
        self._sums[self._first + index] = priorities
        nodes = np.unique((self._first + index) >> 1)
        for _ in range(self._depth):
            self._sums[nodes] = self._sums[2 * nodes] + self._sums[2 * nodes + 1]
            nodes = np.unique(nodes >> 1)

    def find(self, mass: Float64) -> Index:
        """The indexes [M] at which the running sum of priorities first exceeds each mass [M], on [0, total).

        An index of priority 0 is never found, whatever the rounding, while the total is above 0.
        """
        nodes = np.ones(len(mass), np.int64)
        rest = np.array(mass, np.float64)
        for _ in range(self._depth):
            left = 2 * nodes
            below = self._sums[left]
            right = (rest >= below) & (self._sums[left + 1] > 0)
            rest = np.where(right, rest - below, rest)
            nodes = left + right
        return nodes - self._first
