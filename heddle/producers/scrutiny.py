"""What environments and policies answer while they are played, looked at as cheaply as can be.

It never plays: the player asks once a batch, or where something is recorded that numpy would not refuse by itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heddle.layout import Layout, Segments
from heddle.policies.base import Acted, Arrays
from heddle.producers.contract import BadAnswer
from heddle.producers.kinds import demand_dict
from heddle.producers.reel import Reel, check_array
from heddle.spaces import Leaf, index_range, is_action
from heddle.spaces.cells import taken_apart, values_problem

__all__ = ["BadAnswer", "BadNumber", "Numbers", "check_state", "note_info", "record_info"]


def check_state(acted: Acted, fresh_state: Arrays, rows: int) -> None:
    """Once a batch: what the policy carries on is what it said it would.

    Raises:
        BadAnswer: a state is missing, or has another shape or kind than was declared.
    """
    for name, fresh in fresh_state.items():
        check_array(f"state[{name!r}]", acted.state.get(name), fresh.dtype, (rows, *fresh.shape[1:]))


def record_info(reel: Reel, env: int, step: int, info: Any) -> None:
    """Write the wanted keys of one `info`; what it lacks stays NaN.

    Raises:
        BadAnswer: it is no dict, or a value is not one number.
    """
    demand_dict(info)
    for key, array in reel.infos:
        note_info(array, (env, step), key, info)


def note_info(array: NDArray[Any], place: tuple[int, int], key: str, info: Any) -> None:
    """Write one key of one `info` to its place in `array` [n, T], if it is there. Raises BadAnswer as `record_info`."""
    if (value := info.get(key)) is not None:
        try:
            array[place] = value
        except (TypeError, ValueError) as error:
            raise BadAnswer(f"info[{key!r}] is {str(value)[:60]}, expected one number") from error


VALUES_SHOWN = 6


@dataclass(frozen=True, slots=True)
class BadNumber:
    """A value that nobody can learn from.

    Attributes:
        name: its column.
        env: row, which is the environment's number within the shard.
        step: within the segment.
        reason: what is wrong with it.
        value: itself, or the first few numbers of it, as text.
        is_final: it is in the last observation of a truncated episode, behind which the next one begins.
        instead: what becomes of it where that is no failure.
    """

    name: str
    env: int
    step: int
    reason: str
    value: str = ""
    is_final: bool = False
    instead: str = "it is trained as it is"


class Numbers:
    """What is looked at in every batch of a layout, found out once: with few steps in it the looking costs most."""

    def __init__(self, layout: Layout) -> None:
        self._seen = layout.observation_leaves
        self._leaves = every = [*self._seen, *layout.action_leaves]
        names = [leaf.name for leaf in every if not leaf.ragged and np.dtype(leaf.space.dtype).kind == "f"]
        named = {column.name for column in layout.columns}
        self._floats = ["reward", *names, *(name for name in ("out.log_prob", "out.value") if name in named)]
        self._ranges = [(leaf.name, *found) for leaf in every if (found := _one_range(leaf)) is not None]
        quick = {*self._floats, *(name for name, _, _ in self._ranges)}
        self._others = [leaf for leaf in every if leaf.name not in quick]

    def first_bad(self, segments: Segments) -> BadNumber | None:
        """The first number that is not finite, or no integer of its space; None when all are well.

        Looks at whole arrays: what lies beyond a segment's length must have been blanked.
        """
        arrays, both = segments.arrays, np.logical_and.reduce
        for name in self._floats:
            if not both(np.isfinite(arrays[name]), axis=None):
                return _first_bad(self._leaves, segments)
        for name, low, high in self._ranges:
            array = arrays[name]
            if array.size and (array.min() < low or array.max() > high):
                return _first_bad(self._leaves, segments)
        if any(_bad_leaf(leaf, segments) for leaf in self._others):
            return _first_bad(self._leaves, segments)
        return None

    def bad_shown(self, arrays: Mapping[str, NDArray[Any]], rows: Sequence[int]) -> BadNumber | None:
        """The same for what a policy is shown in the middle of a segment: of each environment the row it stands at."""
        for leaf in self._seen:
            shown = arrays[leaf.name][np.arange(len(rows)), list(rows)][:, None]
            found = _bad_cell(leaf, shown) if leaf.ragged else _bad_element(leaf, shown)
            if found is not None:
                return replace(found, step=rows[found.env])
        return None


def _first_bad(every: Sequence[Leaf], segments: Segments) -> BadNumber | None:
    arrays = segments.arrays
    reward = arrays["reward"]
    if not np.isfinite(reward).all():
        return _located("reward", reward, ~np.isfinite(reward), "is not a finite number")
    for leaf in every:
        if (found := _bad_leaf(leaf, segments)) is not None:
            return found
    for name in ("out.log_prob", "out.value"):
        given = arrays.get(name)
        if given is not None and not np.isfinite(given).all():
            return _located(name, given, ~np.isfinite(given), "is not a finite number")
    return None


def _one_range(leaf: Leaf) -> tuple[int, int] | None:
    """Least and greatest integer of a leaf whose elements all have the same; None for others."""
    limits = None if leaf.ragged else index_range(leaf.space, chosen=is_action(leaf.name))
    if limits is None or not all((limit == limit.flat[0]).all() for limit in limits):
        return None
    return int(limits[0].flat[0]), int(limits[1].flat[0])


def _bad_leaf(leaf: Leaf, segments: Segments) -> BadNumber | None:
    array = segments.arrays[leaf.name]
    return _bad_cell(leaf, array) if leaf.ragged else _bad_element(leaf, array, segments)


def _bad_element(leaf: Leaf, array: NDArray[Any], segments: Segments | None = None) -> BadNumber | None:
    """The first value of a leaf of fixed shape that is not as it must be; beyond the lengths of `segments` none is."""
    limits = index_range(leaf.space, chosen=is_action(leaf.name))
    if limits is not None:
        low, high = limits
        if ((array >= low) & (array <= high)).all():
            return None
        bad = ((array < low) | (array > high)).reshape(*array.shape[:2], -1).any(axis=2)
        bad &= np.ones(bad.shape, np.bool_) if segments is None else _played(segments, array.shape[1])
        return _located(leaf.name, array, bad, f"is outside {_span(low, high)}") if bad.any() else None
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        return _located(leaf.name, array, ~np.isfinite(array), "is not a finite number")
    return None


def _played(segments: Segments, width: int) -> NDArray[np.bool_]:
    extra = width - segments.layout.steps
    played: NDArray[np.bool_] = np.arange(width) < segments.arrays["length"][:, None] + extra
    return played


def _located(name: str, array: NDArray[Any], bad: NDArray[np.bool_], reason: str) -> BadNumber:
    row, step = np.argwhere(bad.reshape(*bad.shape[:2], -1).any(axis=2))[0]
    value = array[row, step].reshape(-1)
    shown = ", ".join(f"{number:.6g}" for number in value[:VALUES_SHOWN].tolist())
    if array.ndim > 2:
        shown = f"[{shown}{', ...' * (value.size > VALUES_SHOWN)}]"
    return BadNumber(name, int(row), int(step), reason, shown)


def _bad_cell(leaf: Leaf, cells: NDArray[Any]) -> BadNumber | None:
    """The first cell with values that are not as they must be."""
    if not values_problem(leaf, taken_apart(leaf, cells.reshape(-1).tolist())[1]):
        return None
    for row, step in np.ndindex(cells.shape):
        if problem := values_problem(leaf, taken_apart(leaf, [cells[row, step]])[1]):
            return BadNumber(leaf.name, row, step, problem)
    raise AssertionError(f"{leaf.name} is bad as a whole and well in every part")


def _span(low: NDArray[np.int64], high: NDArray[np.int64]) -> str:
    if (low == low.flat[0]).all() and (high == high.flat[0]).all():
        return f"{low.flat[0]}..{high.flat[0]}"
    return f"{low.tolist()}..{high.tolist()}"
