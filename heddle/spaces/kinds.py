"""The kinds of spaces, as values that compare and hash: five that are one leaf each, and five that hold others."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from heddle.spaces.bounds import Bound, compact, exact, spread

_KINDS = {"bool": ("",), "int": ("8", "16", "32", "64"), "uint": ("8", "16", "32", "64"), "float": ("16", "32", "64")}
DTYPES = frozenset(f"{kind}{bits}" for kind, sizes in _KINDS.items() for bits in sizes)  # what Arrow can carry
INTEGERS = frozenset(name for name in DTYPES if name.startswith(("int", "uint")))


@dataclass(frozen=True, slots=True)
class Box:
    """A numeric array of one shape.

    Attributes:
        shape: of one value; () is a scalar. No dimension is 0.
        dtype: numpy name, one of DTYPES.
        low, high: bounds, both included: one number for all elements, or one an element in C order.
    """

    shape: tuple[int, ...]
    dtype: str
    low: Bound = -math.inf
    high: Bound = math.inf

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype {self.dtype!r} is not supported: one of {', '.join(sorted(DTYPES))}")
        object.__setattr__(self, "shape", _shape(self.shape))
        for name in ("low", "high"):
            object.__setattr__(self, name, compact(getattr(self, name), self.size))

    @property
    def size(self) -> int:
        """Number of elements of one value."""
        return math.prod(self.shape)

    def bounds(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Low and high as float64 arrays of `shape` (integer bounds of 64 bits lose their last digits)."""
        return spread(self.low, self.shape), spread(self.high, self.shape)

    def limits(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Low and high as arrays of `shape` and `dtype`, every digit kept."""
        return exact(self.low, self.shape, self.dtype), exact(self.high, self.shape, self.dtype)


@dataclass(frozen=True, slots=True)
class Discrete:
    """One integer from start to start + n - 1."""

    n: int
    start: int = 0

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ValueError(f"n = {self.n} leaves nothing to choose")
        _expect_int64(self.start, self.start + self.n - 1)

    @property
    def shape(self) -> tuple[int, ...]:
        """Always ()."""
        return ()

    @property
    def dtype(self) -> str:
        """Always "int64"."""
        return "int64"

    @property
    def size(self) -> int:
        """Always 1."""
        return 1


@dataclass(frozen=True, slots=True)
class MultiDiscrete:
    """An array of integers, element i from start[i] to start[i] + nvec[i] - 1.

    Attributes:
        nvec: how many values each element has, in C order.
        start: the smallest of each; () stands for zeros.
        shape: of one value; () for the length of `nvec`.
        dtype: of the environment's arrays; a policy chooses int64 indices from 0 all the same.
    """

    nvec: tuple[int, ...]
    start: tuple[int, ...] = ()
    shape: tuple[int, ...] = ()
    dtype: str = "int64"

    def __post_init__(self) -> None:
        nvec = tuple(int(n) for n in self.nvec)
        start = tuple(int(first) for first in self.start) or (0,) * len(nvec)
        shape = _shape(self.shape or (len(nvec),))
        if self.dtype not in INTEGERS:
            raise ValueError(f"dtype {self.dtype!r} is no kind of integer")
        if math.prod(shape) != len(nvec) or len(start) != len(nvec):
            raise ValueError(f"nvec of {len(nvec)} and start of {len(start)} numbers do not fit the shape {shape}")
        if min(nvec) < 1:
            raise ValueError(f"nvec holds {min(nvec)}, which leaves nothing to choose")
        _expect_int64(min(start), max(first + n - 1 for first, n in zip(start, nvec, strict=True)))
        for name, value in (("nvec", nvec), ("start", start), ("shape", shape)):
            object.__setattr__(self, name, value)

    @property
    def size(self) -> int:
        """Number of elements of one value."""
        return len(self.nvec)

    def counts(self) -> NDArray[np.int64]:
        """`nvec` in shape."""
        return np.array(self.nvec, np.int64).reshape(self.shape)

    def starts(self) -> NDArray[np.int64]:
        """`start` in shape."""
        return np.array(self.start, np.int64).reshape(self.shape)


@dataclass(frozen=True, slots=True)
class MultiBinary:
    """An array of zeros and ones."""

    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", _shape(self.shape))

    @property
    def dtype(self) -> str:
        """Always "int8"."""
        return "int8"

    @property
    def size(self) -> int:
        """Number of elements of one value."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class DictSpace:
    """Named spaces, kept sorted by name; a name has no dot, for dots separate the levels of a leaf's name."""

    spaces: "Mapping[str, Space]"

    def __post_init__(self) -> None:
        if not self.spaces:
            raise ValueError("a dict space needs at least one entry")
        for key in self.spaces:
            if not isinstance(key, str) or not key or "." in key:
                raise ValueError(f"key {key!r} must be a non-empty string without a dot")
        object.__setattr__(self, "spaces", dict(sorted(self.spaces.items())))

    def __hash__(self) -> int:
        return hash(tuple(self.spaces.items()))


@dataclass(frozen=True, slots=True)
class TupleSpace:
    """Spaces in order; their leaves are named "0", "1" and so on."""

    spaces: "tuple[Space, ...]"

    def __post_init__(self) -> None:
        if not self.spaces:
            raise ValueError("a tuple space needs at least one entry")
        object.__setattr__(self, "spaces", tuple(self.spaces))


@dataclass(frozen=True, slots=True)
class Text:
    """A string of `min_length` to `max_length` characters, each one of `charset`, which is kept sorted.

    None in place of the charset allows every character.
    """

    max_length: int
    min_length: int
    charset: str | None

    def __post_init__(self) -> None:
        if not 0 <= self.min_length <= self.max_length:
            raise ValueError(f"lengths {self.min_length}..{self.max_length} leave no text")
        if self.charset is not None:
            charset = "".join(sorted(set(self.charset)))
            charset.encode()  # UnicodeEncodeError, a ValueError, for what UTF-8 cannot carry
            object.__setattr__(self, "charset", charset)

    @property
    def shape(self) -> tuple[int, ...]:
        """Always ()."""
        return ()

    @property
    def dtype(self) -> str:
        """Always "object": a str."""
        return "object"

    @property
    def size(self) -> int:
        """Most characters."""
        return self.max_length


@dataclass(frozen=True, slots=True)
class SequenceSpace:
    """Any number of values of one space.

    Attributes:
        space: of each.
        stacked: the environment shows them stacked, one array a leaf, and not as a tuple of values.
    """

    space: "Space"
    stacked: bool = False


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes and edges between them; every edge has two numbers of nodes in `edge_links`.

    Attributes:
        node, edge: the space of one each; no edge space, no edges.
    """

    node: "Space"
    edge: "Space | None" = None


@dataclass(frozen=True, slots=True)
class OneOf:
    """A value of one of several spaces, shown as (which, value)."""

    spaces: "tuple[Space, ...]"

    def __post_init__(self) -> None:
        if not self.spaces:
            raise ValueError("there is nothing to be one of")
        object.__setattr__(self, "spaces", tuple(self.spaces))


Composite: TypeAlias = DictSpace | TupleSpace
LeafSpace: TypeAlias = Box | Discrete | MultiDiscrete | MultiBinary | Text
Space: TypeAlias = LeafSpace | Composite | SequenceSpace | Graph | OneOf


def parts(space: Composite) -> "Iterator[tuple[str | int, Space]]":
    """The spaces within, each with the key by which its value is found: a name, or a place in a tuple."""
    if isinstance(space, DictSpace):
        yield from space.spaces.items()
    else:
        yield from enumerate(space.spaces)


def index_range(space: LeafSpace, *, chosen: bool) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Least and greatest value, both included, shaped as the space, where it holds integers; None for Box and Text.

    Args:
        chosen: of what a policy chooses, counted from 0; otherwise of what an environment shows.
    """
    if isinstance(space, Box | Text):
        return None
    if isinstance(space, MultiBinary):
        low, counts = np.zeros(space.shape, np.int64), np.full(space.shape, 2, np.int64)
    elif isinstance(space, Discrete):
        low, counts = np.array(space.start), np.array(space.n)
    else:
        low, counts = space.starts(), space.counts()
    first = np.zeros_like(low) if chosen else low
    return first, first + (counts - 1)


def _shape(given: tuple[int, ...]) -> tuple[int, ...]:
    shape = tuple(int(size) for size in given)
    if any(size < 1 for size in shape):
        raise ValueError(f"shape {shape} has no elements")
    return shape


def _expect_int64(low: int, high: int) -> None:
    if low < -(2**63) or high >= 2**63:
        raise ValueError(f"its values {low}..{high} do not fit 64 bits")
