"""Columns: one array of a batch as an Arrow array and back, and its type, worked out once.

It never looks at what the numbers mean. A fixed shape is a canonical fixed_shape_tensor (or a plain number), so any
Arrow reader can open it. What others cannot read travels as something wider and says so in its field's metadata:
booleans as uint8 0 or 1, float16 as float32. A leaf that differs in length from step to step is a list of T + 1 lists,
one deeper for every sequence that it lies in; a Text is a string.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from heddle.layout import Column
from heddle.spaces import Leaf, Text
from heddle.spaces.cells import boxed, put_together, taken_apart

_WIRE = {"bool": "uint8", "float16": "float32"}


class Coded(Protocol):
    """One column: `arrow_type` of its rows."""

    @property
    def name(self) -> str: ...
    @property
    def arrow_type(self) -> pa.DataType: ...

    def field(self, arrow_type: pa.DataType) -> pa.Field:
        """The column's field, with a type made of the column's own."""
        ...

    def to_arrow(self, values: NDArray[Any] | None, rows: int) -> pa.Array:
        """`rows` values of `arrow_type`. Raises ValueError for an array of another shape or kind."""
        ...

    def from_arrow(self, array: pa.Array) -> NDArray[Any]:
        """[rows, ...] of the column's dtype, read-only. Raises ValueError for what `to_arrow` would not make."""
        ...


@dataclass(frozen=True, slots=True)
class FixedColumn:
    """A column of one shape.

    Attributes:
        shape: of one row's array.
        dtype: of the array; `stored` the one on the wire.
        storage_type: of the tensors' storage; None for plain numbers.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    stored: np.dtype[Any]
    arrow_type: pa.DataType
    value_type: pa.DataType
    storage_type: pa.DataType | None

    def field(self, arrow_type: pa.DataType) -> pa.Field:
        metadata = {b"heddle.dtype": self.dtype.name.encode()} if self.dtype != self.stored else None
        return pa.field(self.name, arrow_type, nullable=False, metadata=metadata)

    def to_arrow(self, values: NDArray[Any] | None, rows: int) -> pa.Array:
        if values is None:
            raise ValueError(f"the segments lack {self.name}")
        if values.shape != (rows, *self.shape) or values.dtype != self.dtype:
            wanted = f"{self.dtype}{[rows, *self.shape]}"
            raise ValueError(f"{self.name} is {values.dtype}{list(values.shape)}, the layout says {wanted}")
        wire = values if self.dtype.kind == "b" else values.astype(self.stored, copy=False)
        buffer = pa.py_buffer(np.ascontiguousarray(wire).reshape(-1).view(np.uint8))
        flat = pa.Array.from_buffers(self.value_type, rows * math.prod(self.shape), [None, buffer], 0)
        if self.storage_type is None:
            return flat
        storage = pa.Array.from_buffers(self.storage_type, rows, [None], 0, children=[flat])
        return pa.ExtensionArray.from_storage(self.arrow_type, storage)

    def from_arrow(self, array: pa.Array) -> NDArray[Any]:
        values = array if self.storage_type is None else array.storage.values
        if array.null_count or array.offset or values.null_count or values.offset:
            raise ValueError(f"{self.name} has nulls or an offset")
        return self._flat(values).reshape(len(array), *self.shape)

    @property
    def is_plain(self) -> bool:
        """Whether its numbers travel as they lie in memory."""
        return self.dtype == self.stored or self.dtype.kind == "b"

    def from_bytes(self, data: bytes | memoryview, offset: int, rows: int) -> NDArray[Any]:
        """[rows, ...] of the column's dtype, as `from_arrow` gives them: the bytes at `offset` of `data`."""
        count = rows * math.prod(self.shape)
        flat = (
            self._checked(np.frombuffer(data, self.stored, count, offset))
            if count
            else _frozen(np.zeros(0, self.dtype))
        )
        return flat.reshape(rows, *self.shape)

    def _flat(self, values: pa.Array) -> NDArray[Any]:
        buffer = values.buffers()[1]
        if buffer is None or not len(values):
            return _frozen(np.zeros(0, self.dtype))
        return self._checked(np.frombuffer(buffer, self.stored, count=len(values)))

    def _checked(self, flat: NDArray[Any]) -> NDArray[Any]:
        """Stored numbers as they are meant, read-only. Raises ValueError for one that is none of the column's dtype."""
        if self.dtype.kind == "b":
            if flat.max() > 1:
                raise ValueError(f"{self.name} has a value that is neither 0 nor 1")
            flat = flat.view(np.bool_)
        elif self.dtype != self.stored:
            with np.errstate(over="ignore"):
                narrow = flat.astype(self.dtype)
            if not np.array_equal(narrow.astype(self.stored), flat, equal_nan=True):
                raise ValueError(f"{self.name} has a value that is no {self.dtype}")
            flat = narrow
        return _frozen(flat if flat.flags.aligned else flat.copy())


@dataclass(frozen=True, slots=True)
class RaggedColumn:
    """A column of cells.

    Attributes:
        leaf: whose cells they are.
        steps: cells in one row; None where a row is one cell.
        types: of a cell and of what is within, to the values' own, from the outermost in.
        values: the values' own column; None for a Text.
    """

    name: str
    leaf: Leaf
    steps: int | None
    arrow_type: pa.DataType
    types: tuple[pa.DataType, ...]
    values: FixedColumn | None

    def field(self, arrow_type: pa.DataType) -> pa.Field:
        return self.values.field(arrow_type) if self.values else pa.field(self.name, arrow_type, nullable=False)

    def to_arrow(self, values: NDArray[Any] | None, rows: int) -> pa.Array:
        shape = (rows,) if self.steps is None else (rows, self.steps)
        if values is None or values.shape != shape or values.dtype != object:
            raise ValueError(f"{self.name} is not the objects {list(shape)} that the layout says")
        lengths, flat = taken_apart(self.leaf, values.reshape(-1).tolist())
        array = self.values.to_arrow(flat, len(flat)) if self.values else pa.array(flat, pa.string())
        for arrow_type, counts in zip(reversed(self.types[:-1]), reversed(lengths), strict=True):
            array = list_array(arrow_type, counts, array)
        if self.steps is None:
            return array
        return pa.Array.from_buffers(self.arrow_type, rows, [None], 0, children=[array])

    def from_arrow(self, array: pa.Array) -> NDArray[Any]:
        shape = (len(array),) if self.steps is None else (len(array), self.steps)
        if self.steps is not None:
            if array.null_count or array.offset:
                raise ValueError(f"{self.name} has nulls or an offset")
            array = array.values
        lengths = []
        for _ in self.types[:-1]:
            counts = list_lengths(array, self.name)
            lengths.append(counts)
            array = array.values
        if array.null_count or array.offset:
            raise ValueError(f"{self.name} has nulls or an offset")
        flat = self.values.from_arrow(array) if self.values else array.to_pylist()
        return _frozen(boxed(put_together(self.leaf, lengths, flat)).reshape(shape))


def coded(column: Column, steps: int) -> Coded:
    """A column of the layout; one row a segment."""
    if column.leaf is not None:
        return ragged(column.name, column.leaf, steps + 1)
    return fixed(column.name, column.dtype, column.row_shape(steps))


def fixed(name: str, dtype: str, shape: tuple[int, ...]) -> FixedColumn:
    """A column of one shape."""
    stored = np.dtype(_WIRE.get(dtype, dtype))
    value_type = pa.from_numpy_dtype(stored)
    arrow_type = pa.fixed_shape_tensor(value_type, shape) if shape else value_type
    storage = arrow_type.storage_type if shape else None
    return FixedColumn(name, shape, np.dtype(dtype), stored, arrow_type, value_type, storage)


def ragged(name: str, leaf: Leaf, steps: int | None) -> RaggedColumn:
    """A column of cells."""
    values = None if isinstance(leaf.space, Text) else fixed(name, leaf.space.dtype, leaf.space.shape)
    types = [values.arrow_type if values else pa.string()]
    for _ in range(leaf.depth):
        types.insert(0, list_of(types[0]))
    whole = types[0] if steps is None else pa.list_(pa.field("item", types[0], nullable=False), steps)
    return RaggedColumn(name, leaf, steps, whole, tuple(types), values)


def list_of(arrow_type: pa.DataType) -> pa.DataType:
    """A list type whose items are never null."""
    return pa.list_(pa.field("item", arrow_type, nullable=False))


def list_array(arrow_type: pa.DataType, lengths: NDArray[Any] | Sequence[int], items: pa.Array) -> pa.Array:
    """Lists of these lengths, [R], over `items`. Raises ValueError where an offset would not fit 32 bits."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    if offsets[-1] > np.iinfo(np.int32).max:
        raise ValueError(f"{offsets[-1]} elements are more than a list column can hold")
    buffer = pa.py_buffer(offsets.astype(np.int32))
    return pa.Array.from_buffers(arrow_type, len(lengths), [None, buffer], 0, children=[items])


def list_lengths(lists: pa.Array, name: str) -> NDArray[np.int64]:
    """[R] lengths of the lists; together they are all of `lists.values`. Raises ValueError where they are not."""
    if lists.null_count or lists.offset:
        raise ValueError(f"{name} has nulls or an offset")
    offsets = np.zeros(1, np.int32)
    if len(lists):
        offsets = np.frombuffer(lists.buffers()[1], np.int32, count=len(lists) + 1)
    lengths: NDArray[np.int64] = np.diff(offsets).astype(np.int64)
    if offsets[0] != 0 or (lengths < 0).any():
        raise ValueError(f"list offsets of {name} are out of order")
    if len(lists.values) != offsets[-1]:
        raise ValueError(f"{name} has {len(lists.values)} values for {offsets[-1]} places")
    return lengths


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    array.flags.writeable = False
    return array
