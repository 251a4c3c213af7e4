"""Spaces: Heddle's own description of what an environment shows and accepts.

It never imports an environment library: `producers/envs.py` translates, everything else works on these values.

A space is a Box (numeric array with bounds), a Discrete (one integer) or a dict of spaces, nested as deep as wanted.
Everywhere else observations and actions are `dict[str, ndarray]` keyed by leaf name: a plain space has the one leaf
"obs" (or "action"); a dict space has "obs.camera", "obs.arm.joints" and so on.

An observation leaf holds what the environment returned, a Discrete one with its `start`. An action leaf of a Discrete
space holds an index from 0; the player adds `start` for the environment alone.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

OBSERVATION = "obs"
ACTION = "action"

_KINDS = {"bool": ("",), "int": ("8", "16", "32", "64"), "uint": ("8", "16", "32", "64"), "float": ("16", "32", "64")}
DTYPES = frozenset(f"{kind}{bits}" for kind, sizes in _KINDS.items() for bits in sizes)  # what Arrow can carry

Bound: TypeAlias = float | int | tuple[float | int, ...]


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
        object.__setattr__(self, "shape", tuple(int(size) for size in self.shape))
        if any(size < 1 for size in self.shape):
            raise ValueError(f"shape {self.shape} has no elements")
        for name in ("low", "high"):
            object.__setattr__(self, name, _compact(getattr(self, name), self.size))

    @property
    def size(self) -> int:
        """Number of elements of one value."""
        return math.prod(self.shape)

    def bounds(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Low and high as float64 arrays of `shape` (integer bounds of 64 bits lose their last digits)."""
        return _spread(self.low, self.shape), _spread(self.high, self.shape)


@dataclass(frozen=True, slots=True)
class Discrete:
    """One integer from start to start + n - 1."""

    n: int
    start: int = 0

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ValueError(f"n = {self.n} leaves nothing to choose")

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


Space: TypeAlias = Box | Discrete | DictSpace
LeafSpace: TypeAlias = Box | Discrete


@dataclass(frozen=True, slots=True)
class Leaf:
    """One array of a space.

    Attributes:
        name: dotted, starting with the root, e.g. "obs.camera".
        space: the Box or Discrete.
        path: the keys from the root's value down to this leaf; () for a plain space.
    """

    name: str
    space: LeafSpace
    path: tuple[str, ...] = ()

    def pick(self, value: Any) -> Any:
        """This leaf's part of a whole value, e.g. value["arm"]["joints"]. Raises KeyError or TypeError."""
        for key in self.path:
            value = value[key]
        return value


def leaves(space: Space, root: str = OBSERVATION) -> list[Leaf]:
    """Every leaf of `space`, sorted by name level by level."""
    return list(_walk(space, root, ()))


def flatten(space: Space, value: Any, root: str = OBSERVATION) -> dict[str, Any]:
    """One value of `space` as a dict by leaf name. Raises KeyError or TypeError where the value lacks a leaf."""
    return {leaf.name: leaf.pick(value) for leaf in leaves(space, root)}


def validate_value(space: Space, value: Any, root: str = OBSERVATION) -> str | None:
    """Say why `value` is not in `space`, in one line naming the leaf; None when it is.

    Floats must be finite. A float of another precision than the space's is accepted, an integer for a float too.
    """
    if isinstance(space, DictSpace):
        if not isinstance(value, Mapping):
            return f"{root} should be a dict with {', '.join(space.spaces)}, not {type(value).__name__}"
        if missing := [key for key in space.spaces if key not in value]:
            return f"{root} lacks {', '.join(missing)}"
        if extra := [str(key) for key in value if key not in space.spaces]:
            return f"{root} has {', '.join(extra)}, which its space does not"
        reasons = (validate_value(part, value[key], f"{root}.{key}") for key, part in space.spaces.items())
        return next((reason for reason in reasons if reason), None)
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        return f"{root} is not an array: {error}"
    return _leaf_problem(space, array, root)


def to_json(space: Space) -> dict[str, Any]:
    """A dict that `json.dumps` takes and `from_json` reads back to an equal space; infinities become strings."""
    if isinstance(space, DictSpace):
        return {"type": "dict", "spaces": {key: to_json(part) for key, part in space.spaces.items()}}
    if isinstance(space, Discrete):
        return {"type": "discrete", "n": space.n, "start": space.start}
    return {
        "type": "box",
        "shape": list(space.shape),
        "dtype": space.dtype,
        "low": _bound_to_json(space.low),
        "high": _bound_to_json(space.high),
    }


def from_json(data: str | Mapping[str, Any]) -> Space:
    """Read what `to_json` made, as a dict or as text.

    Raises:
        ValueError: it is not the description of a space.
    """
    loaded = json.loads(data) if isinstance(data, str) else data
    try:
        kind = loaded["type"]
        if kind == "dict":
            return DictSpace({key: from_json(part) for key, part in loaded["spaces"].items()})
        if kind == "discrete":
            return Discrete(int(loaded["n"]), int(loaded["start"]))
        if kind == "box":
            low, high = _bound_from_json(loaded["low"]), _bound_from_json(loaded["high"])
            return Box(tuple(loaded["shape"]), loaded["dtype"], low, high)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a space: {error!r} in {str(loaded)[:80]}") from error
    raise ValueError(f"not a space: type {kind!r}")


def _walk(space: Space, name: str, path: tuple[str, ...]) -> Iterator[Leaf]:
    if isinstance(space, DictSpace):
        for key, part in space.spaces.items():
            yield from _walk(part, f"{name}.{key}", (*path, key))
    else:
        yield Leaf(name, space, path)


def _leaf_problem(space: LeafSpace, array: NDArray[Any], name: str) -> str | None:
    if array.shape != space.shape:
        return f"{name} has shape {array.shape}, its space {space.shape}"
    if not np.can_cast(array.dtype, space.dtype, casting="same_kind"):
        return f"{name} has dtype {array.dtype}, its space {space.dtype}"
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        return f"{name} is not finite"
    if isinstance(space, Discrete):
        if not space.start <= int(array) < space.start + space.n:
            return f"{name} = {int(array)} is outside {space.start}..{space.start + space.n - 1}"
        return None
    low, high = space.bounds()
    array = array.astype(space.dtype)  # as it will be stored: a float64 pi is above a float32 bound of pi
    outside = (array < low) | (array > high)
    if outside.any():
        where = np.unravel_index(int(np.argmax(outside)), outside.shape) if outside.shape else ()
        spot = "" if not where else f" at {tuple(int(index) for index in where)}"
        return f"{name} = {array[where]}{spot} is outside {low[where]}..{high[where]}"
    return None


def bound(values: NDArray[Any]) -> Bound:
    """An array of bounds, one an element, as a Box takes it: one number when all agree."""
    return _compact(values, values.size)


def _compact(given: Any, size: int) -> Bound:
    """One plain number when all elements agree, else a tuple of `size` plain numbers."""
    values = np.asarray(given)
    if values.size not in (1, size):
        raise ValueError(f"a bound of {values.size} elements does not fit {size}")
    if not values.size:
        raise ValueError("it has no elements")
    flat = values.reshape(-1)
    if (flat == flat[0]).all():
        return _number(flat[0])
    return tuple(_number(value) for value in flat)


def _number(value: Any) -> float | int:
    return float(value) if value.dtype.kind == "f" else int(value)


def _spread(bound: Bound, shape: tuple[int, ...]) -> NDArray[Any]:
    if isinstance(bound, tuple):
        return np.asarray(bound, np.float64).reshape(shape)
    return np.full(shape, bound, np.float64)


def _bound_to_json(bound: Bound) -> Any:
    if isinstance(bound, tuple):
        return [_bound_to_json(value) for value in bound]
    return bound if math.isfinite(bound) else str(bound)


def _bound_from_json(data: Any) -> Bound:
    if isinstance(data, list):
        return tuple(_scalar_from_json(value) for value in data)
    return _scalar_from_json(data)


def _scalar_from_json(data: Any) -> float | int:
    return data if isinstance(data, int | float) else float(data)
