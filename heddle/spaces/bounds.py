"""Bounds of arrays as plain numbers: kept exact, as JSON, and as arrays again."""

import math
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Bound: TypeAlias = float | int | tuple[float | int, ...]
"""One number for all elements, or one an element in C order."""


def bound(values: NDArray[Any]) -> Bound:
    """Bounds of any shape, one an element, as a Box takes them: one number when all agree."""
    return compact(values, values.size)


def compact(given: Any, size: int) -> Bound:
    """One plain number when all elements agree, else a tuple of `size` plain numbers. Raises ValueError."""
    values = np.asarray(given)
    if values.size not in (1, size):
        raise ValueError(f"a bound of {values.size} elements does not fit {size}")
    if not values.size:
        raise ValueError("it has no elements")
    flat = values.reshape(-1)
    if (flat == flat[0]).all():
        return _number(flat[0])
    return tuple(_number(value) for value in flat)


def spread(limit: Bound, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """As a float64 array of `shape`; integers of 64 bits lose their last digits."""
    if isinstance(limit, tuple):
        return np.asarray(limit, np.float64).reshape(shape)
    return np.full(shape, limit, np.float64)


def exact(limit: Bound, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
    """As an array of `dtype` and `shape`; what the dtype cannot hold becomes the nearest that it can."""
    kind = np.dtype(dtype)
    numbers = limit if isinstance(limit, tuple) else (limit,)
    if kind.kind == "f":
        with np.errstate(over="ignore"):
            held = np.array(numbers, np.float64).astype(kind)
    else:
        least, most = (0, 1) if kind.kind == "b" else (int(np.iinfo(kind).min), int(np.iinfo(kind).max))
        held = np.array([_within(number, least, most) for number in numbers], kind)
    return held.reshape(shape) if isinstance(limit, tuple) else np.full(shape, held[0], kind)


def to_plain(limit: Bound) -> Any:
    """For JSON: infinities become strings."""
    if isinstance(limit, tuple):
        return [to_plain(value) for value in limit]
    return limit if math.isfinite(limit) else str(limit)


def from_plain(data: Any) -> Bound:
    """What `to_plain` made. Raises TypeError or ValueError."""
    if isinstance(data, list):
        return tuple(_scalar(value) for value in data)
    return _scalar(data)


def _within(number: float | int, least: int, most: int) -> int:
    if number <= least:
        return least
    return most if number >= most else int(number)


def _number(value: Any) -> float | int:
    return float(value) if value.dtype.kind == "f" else int(value)


def _scalar(data: Any) -> float | int:
    return data if isinstance(data, int | float) else float(data)
