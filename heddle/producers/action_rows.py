"""How the actions of a shard are kept for a failure's record: a row a step, as small as they are.

Actions of one leaf are kept as an array of their own; those of several as bytes, one leaf behind the other.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heddle.spaces import ACTION, Leaf, Space, index_range, leaves

Chosen = Mapping[str, NDArray[Any]]


class ActionRows:
    """The rows of one action space.

    Attributes:
        dtype: of the rows.
        row_bytes: of one.
    """

    def __init__(self, action: Space) -> None:
        self._leaves = [(leaf, _smallest(leaf)) for leaf in leaves(action, ACTION)]
        sizes = [math.prod(leaf.space.shape) * dtype.itemsize for leaf, dtype in self._leaves]
        self.row_bytes = sum(sizes)
        self._stops = np.cumsum(sizes).tolist()
        self._single = len(self._leaves) == 1
        self.dtype: np.dtype[Any] = self._leaves[0][1] if self._single else np.dtype(np.uint8)

    def none(self) -> NDArray[Any]:
        """No row at all: [0, ...] of `dtype`."""
        shape = self._leaves[0][0].space.shape if self._single else (self.row_bytes,)
        return np.zeros((0, *shape), self.dtype)

    def pack(self, actions: Chosen, where: tuple[Any, ...]) -> NDArray[Any]:
        """Rows [*where, ...] of `dtype`; a copy.

        Args:
            actions: what a policy chose: leaf -> [*leading, ...].
            where: indexes of the leading dimensions.
        """
        if self._single:
            leaf, dtype = self._leaves[0]
            single: NDArray[Any] = actions[leaf.name][where].astype(dtype)
            return single
        return np.concatenate([_bytes(actions[leaf.name][where], leaf, dtype) for leaf, dtype in self._leaves], axis=-1)

    def unpack(self, rows: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """By leaf, [k, ...], what `pack` was given as `rows` [k, ...]."""
        if self._single:
            leaf = self._leaves[0][0]
            return {leaf.name: rows.astype(leaf.chosen_dtype)}
        found = {}
        for (leaf, dtype), part in zip(self._leaves, np.split(rows, self._stops[:-1], axis=1), strict=True):
            values = np.ascontiguousarray(part).view(dtype).reshape(len(rows), *leaf.space.shape)
            found[leaf.name] = values.astype(leaf.chosen_dtype)
        return found

    def shown(self, rows: NDArray[Any]) -> tuple[Any, ...]:
        """Each of `rows` [k, ...] as plain numbers, in lists where it has several; by leaf where there are several."""
        if self._single:
            return tuple(rows.tolist())
        columns = {name: values.tolist() for name, values in self.unpack(rows).items()}
        return tuple(dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))


def _smallest(leaf: Leaf) -> np.dtype[Any]:
    limits = index_range(leaf.space, chosen=True)
    return np.dtype(leaf.chosen_dtype) if limits is None else np.min_scalar_type(int(limits[1].max()))


def _bytes(values: NDArray[Any], leaf: Leaf, dtype: np.dtype[Any]) -> NDArray[np.uint8]:
    leading = values.shape[: values.ndim - len(leaf.space.shape)]
    size = math.prod(leaf.space.shape)
    return np.ascontiguousarray(values.astype(dtype)).reshape(*leading, size).view(np.uint8)
