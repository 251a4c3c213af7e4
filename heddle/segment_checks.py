"""What must hold between the arrays of Segments for anyone to learn from them.

Pure: it looks and says what is wrong first; it never repairs.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heddle.layout import Segments
from heddle.spaces import index_range
from heddle.spaces.cells import TakenApart, first_disagreement, taken_apart, values_problem


def first_problem(segments: Segments) -> str | None:
    """One line about the first thing wrong in the arrays, None when all is well. Shapes and dtypes are taken as right.

    Only valid steps are looked at, what lies beyond a segment's length means nothing; but of stacks that are not put
    together, every frame.
    """
    for check in _CHECKS:
        if problem := check(segments):
            return problem
    return None


def _rows(segments: Segments) -> str | None:
    arrays, steps = segments.arrays, segments.layout.steps
    if not segments.rows:
        return "the batch has no segments"
    if bad := _outside(arrays["length"], 0, steps):
        return f"length {bad} is outside 0..{steps}"
    if bad := _outside(arrays["version"], 0, None):
        return f"version {bad} is negative"
    for name in ("env", "agent"):
        if bad := _outside(arrays[name], 0, None):
            return f"{name} {bad} is negative"
    return None


def _numbers(segments: Segments) -> str | None:
    """Rewards, observations, actions, outputs and states that are not finite numbers."""
    arrays, layout, full = segments.arrays, segments.layout, _is_full(segments)
    for column in layout.columns:
        if np.dtype(column.dtype).kind != "f" or column.name == "episode_return" or column.name.startswith("info."):
            continue
        if (stack := segments.stacks.get(column.name)) is not None:
            if not np.isfinite(stack.frames).all():
                return f"{column.name} has a frame that is not a finite number"
            continue
        array = arrays[column.name]
        # -inf is a fair log-probability or logit of a forbidden action, NaN never is
        good = ~np.isnan(array) if column.name.startswith(("out.", "state.")) else np.isfinite(array)
        if good.all():
            continue
        if column.per == "segment":
            return f"{column.name} is not a finite number"
        valid = np.ones(array.shape[:2], np.bool_) if full else _valid(segments, array.shape[1])
        per_step = good.reshape(*array.shape[:2], -1).all(axis=2) | ~valid
        if not per_step.all():
            row, step = (int(index) for index in np.argwhere(~per_step)[0])
            return f"{column.name} is not a finite number in row {row} at step {step}"
    return None


def _choices(segments: Segments) -> str | None:
    """Integers of observations and actions outside their space."""
    arrays, layout = segments.arrays, segments.layout
    for leaf in layout.action_leaves:
        found = index_range(leaf.space, chosen=True)
        if found and (bad := _misplaced(arrays[leaf.name], *found, valid=segments)):
            return f"{leaf.name} {bad}"
    for leaf in layout.observation_leaves:
        found = index_range(leaf.space, chosen=False)
        if found is None or leaf.ragged:
            continue
        bad = _misplaced(arrays[leaf.name], *found, valid=segments) or _misplaced(arrays[f"final.{leaf.name}"], *found)
        if bad:
            return f"{leaf.name} {bad}"
    return None


def _cells(segments: Segments) -> str | None:
    """Sequences, texts and graphs of observations."""
    every = segments.layout.observation_leaves
    if not any(leaf.ragged for leaf in every):
        return None
    valid = _valid(segments, segments.layout.steps + 1)
    for prefix in ("", "final."):
        taken: dict[str, TakenApart] = {}
        for leaf in every:
            array = segments.arrays[prefix + leaf.name]
            if leaf.ragged:
                taken[leaf.name] = taken_apart(leaf, (array if prefix else array[valid]).tolist())
                if problem := values_problem(leaf, taken[leaf.name][1]):
                    return f"{prefix}{leaf.name} {problem}"
            else:
                taken[leaf.name] = [], array
        if problem := first_disagreement(every, taken):
            return f"{prefix}{problem}"
    return None


def _endings(segments: Segments) -> str | None:
    arrays, full = segments.arrays, _is_full(segments)
    valid = segments.valid()
    lengths, returns = arrays["episode_length"], arrays["episode_return"]
    if not full and ((arrays["terminated"] | arrays["truncated"] | (lengths != 0)) & ~valid).any():
        return "an episode ends beyond the length of its segment"
    if (lengths < 0).any():
        return "an episode length is negative"
    if (np.isfinite(returns) != (lengths > 0))[valid].any():
        return "episode_return and episode_length disagree on where an episode ended"
    return None


def _finals(segments: Segments) -> str | None:
    arrays = segments.arrays
    rows, steps = arrays["final_row"], arrays["final_step"]
    if bad := _outside(steps, 0, segments.layout.steps - 1):
        return f"final_step {bad} is outside 0..{segments.layout.steps - 1}"
    expected = np.zeros(arrays["truncated"].shape, np.int32)
    np.add.at(expected, (rows, steps), 1)
    if (expected != (arrays["truncated"] & ~arrays["terminated"])).any():
        return "final observations are not exactly those of the truncated episodes"
    for leaf in segments.layout.observation_leaves:
        values = arrays[f"final.{leaf.name}"]
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            return f"final.{leaf.name} is not a finite number"
    return None


_CHECKS: tuple[Callable[[Segments], str | None], ...] = (_rows, _numbers, _choices, _cells, _endings, _finals)


def _is_full(segments: Segments) -> bool:
    return bool((segments.arrays["length"] == segments.layout.steps).all())


def _valid(segments: Segments, width: int) -> NDArray[np.bool_]:
    """[R, width]: the steps that count, with the bootstrap row when width is T + 1 (an empty segment has one too)."""
    extra = width - segments.layout.steps
    valid: NDArray[np.bool_] = np.arange(width) < segments.arrays["length"][:, None] + extra
    return valid


def _misplaced(
    array: NDArray[Any], low: NDArray[np.int64], high: NDArray[np.int64], *, valid: Segments | None = None
) -> str:
    """The first value outside low..high, told with those; "" when there is none.

    Args:
        valid: the segments that [R, T or T + 1, ...] belongs to, of which only the valid steps are looked at.
    """
    outside = (array < low) | (array > high)
    if not outside.any():
        return ""
    if valid is not None:
        played = _valid(valid, array.shape[1])
        outside &= played.reshape(*played.shape, *(1,) * (array.ndim - 2))
    places = np.argwhere(outside)
    if not len(places):
        return ""
    place = tuple(places[0])
    inner = place[array.ndim - low.ndim :]
    return f"{array[place]} is outside {low[inner]}..{high[inner]}"


def _outside(array: NDArray[Any], low: int, high: int | None) -> str:
    """The worst value below `low` or above `high`, as text; "" when there is none."""
    if not array.size:
        return ""
    smallest, largest = int(array.min()), int(array.max())
    if smallest < low:
        return str(smallest)
    return str(largest) if high is not None and largest > high else ""
