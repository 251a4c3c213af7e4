"""Whether a value lies in a space, and if not, why."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heddle.spaces.cells import TakenApart, first_disagreement, taken_apart, to_cell
from heddle.spaces.kinds import (
    Box,
    DictSpace,
    Graph,
    LeafSpace,
    OneOf,
    SequenceSpace,
    Space,
    Text,
    TupleSpace,
    index_range,
)
from heddle.spaces.tree import OBSERVATION, Alternative, Leaf, leaves


def validate_value(space: Space, value: Any, root: str = OBSERVATION) -> str | None:
    """Say why `value` is not in `space`, in one line naming the leaf; None when it is.

    Floats must be finite. A float of another precision than the space's is accepted, an integer for a float too.
    """
    if isinstance(space, DictSpace):
        return _dict_problem(space, value, root)
    if isinstance(space, TupleSpace):
        return _tuple_problem(space, value, root)
    if isinstance(space, Text | SequenceSpace | Graph | OneOf):
        return _varied_problem(space, value, root)
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        return f"{root} is not an array: {error}"
    return _leaf_problem(space, array, root)


def _dict_problem(space: DictSpace, value: Any, root: str) -> str | None:
    if not isinstance(value, Mapping):
        return f"{root} should be a dict with {', '.join(space.spaces)}, not {type(value).__name__}"
    if missing := [key for key in space.spaces if key not in value]:
        return f"{root} lacks {', '.join(missing)}"
    if extra := [str(key) for key in value if key not in space.spaces]:
        return f"{root} has {', '.join(extra)}, which its space does not"
    reasons = (validate_value(part, value[key], f"{root}.{key}") for key, part in space.spaces.items())
    return next((reason for reason in reasons if reason), None)


def _tuple_problem(space: TupleSpace, value: Any, root: str) -> str | None:
    if not isinstance(value, tuple | list):
        return f"{root} should be a tuple of {len(space.spaces)}, not {type(value).__name__}"
    if len(value) != len(space.spaces):
        return f"{root} is a tuple of {len(value)}, its space of {len(space.spaces)}"
    reasons = (validate_value(part, value[key], f"{root}.{key}") for key, part in enumerate(space.spaces))
    return next((reason for reason in reasons if reason), None)


def _leaf_problem(space: LeafSpace, array: NDArray[Any], name: str) -> str | None:
    if array.shape != space.shape:
        return f"{name} has shape {array.shape}, its space {space.shape}"
    if not casts(array.dtype, np.dtype(space.dtype)):
        return f"{name} has dtype {array.dtype}, its space {space.dtype}"
    return _number_problem(space, array, name)


def _number_problem(space: LeafSpace, array: NDArray[Any], name: str) -> str | None:
    """What is wrong with numbers [..., *shape] of the right kind."""
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        return f"{name} is not finite"
    if isinstance(space, Box):
        low, high = space.limits()
        if array.dtype.kind == "f":
            array = array.astype(space.dtype)  # as it will be stored: a float64 pi is above a float32 bound of pi
    else:
        found = index_range(space, chosen=False)
        assert found is not None
        low, high = found
    outside = (array < low) | (array > high)
    if outside.any():
        where = np.unravel_index(int(np.argmax(outside)), outside.shape) if outside.shape else ()
        spot = "" if not where else f" at {tuple(int(index) for index in where)}"
        inner = where[array.ndim - low.ndim :]
        return f"{name} = {array[where].item()}{spot} is outside {low[inner].item()}..{high[inner].item()}"
    return None


def _varied_problem(space: Space, value: Any, root: str) -> str | None:
    """As `validate_value`, for what holds texts, sequences, graphs or alternatives: leaf by leaf."""
    taken: dict[str, TakenApart] = {}
    every = leaves(space, root)
    for leaf in every:
        try:
            cell = to_cell(leaf, leaf.pick(value))
        except ValueError as error:
            return str(error)
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            return f"{leaf.name} cannot be found in a {type(value).__name__}: {type(error).__name__}: {error}"
        if not leaf.ragged:
            taken[leaf.name] = [], cell
        else:
            taken[leaf.name] = taken_apart(leaf, [cell])
        if problem := _part_problem(leaf, taken[leaf.name][1]):
            return problem
    return first_disagreement(every, taken)


def _part_problem(leaf: Leaf, values: Any) -> str | None:
    if not isinstance(leaf.space, Text):
        return _number_problem(leaf.space, values, leaf.name)
    taken = all(not isinstance(step, Alternative) for step in leaf.path)
    short = [text for text in values if len(text) < leaf.space.min_length]
    return f"{leaf.name} = {short[0]!r} is shorter than {leaf.space.min_length}" if short and taken else None


def casts(given: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    """Within a kind; and any integer or bool for any integer, whose range is looked at."""
    return np.can_cast(given, wanted, casting="same_kind") or (given.kind in "biu" and wanted.kind in "iu")
