"""What decoded segments must be, written down anew from the table in heddle/layout.py: the fuzzer's own opinion.

It uses none of the checks that it checks.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations, takewhile
from typing import Any

import numpy as np

from heddle.layout import Segments
from heddle.spaces import Discrete, Leaf, LeafSpace, MultiBinary, MultiDiscrete, Text


def unlawful(segments: Segments) -> str | None:
    """The first thing that is not as it must be, row by row and step by step; None when all is."""
    layout, arrays, steps = segments.layout, segments.arrays, segments.layout.steps
    if segments.rows < 1:
        return "no rows"
    for column in layout.columns:
        array = arrays[column.name]
        if array.shape != (segments.rows, *column.row_shape(steps)) or array.dtype != np.dtype(column.dtype):
            return f"{column.name} is {array.dtype}{array.shape}"
        if array.flags.writeable:
            return f"{column.name} can be written"
        array.tobytes()  # touches every byte
    for name in ("length", "version", "env", "agent"):
        if (arrays[name] < 0).any():
            return f"{name} below 0"
    if (arrays["length"] > steps).any():
        return "longer than a segment"
    for row in range(segments.rows):
        if problem := _unlawful_row(segments, row):
            return f"row {row}: {problem}"
    return _unlawful_finals(segments)


def _unlawful_row(segments: Segments, row: int) -> str | None:
    layout, length = segments.layout, int(segments.arrays["length"][row])
    shown = {leaf.name: leaf.space for leaf in layout.observation_leaves if not leaf.ragged}
    for column in layout.columns:
        used = {"step": length, "step+1": length + 1, "segment": None}[column.per]
        values = segments.arrays[column.name][row] if used is None else segments.arrays[column.name][row, :used]
        if column.name in shown and _outside(shown[column.name], values):
            return f"{column.name} outside its space"
        top = layout.action.n if column.name == "action" and isinstance(layout.action, Discrete) else None
        if top is not None and ((values < 0) | (values >= top)).any():
            return "an action outside its space"
        if np.dtype(column.dtype).kind == "f" and not _fair(column.name, values):
            return f"{column.name} is not a number"
    for name in ("terminated", "truncated", "episode_length"):
        if segments.arrays[name][row, length:].any():
            return f"{name} beyond the end"
    for step in range(length + 1):
        cells = {leaf.name: segments.arrays[leaf.name][row, step] for leaf in layout.observation_leaves}
        if problem := _unlawful_cells(layout.observation_leaves, cells):
            return f"step {step}: {problem}"
    ended = segments.arrays["episode_length"][row, :length] > 0
    if (np.isfinite(segments.arrays["episode_return"][row, :length]) != ended).any():
        return "returns and lengths disagree"
    return None


def _fair(name: str, values: "np.typing.NDArray[np.floating]") -> bool:
    if name == "episode_return" or name.startswith("info."):
        return True
    if name.startswith(("out.", "state.")):
        return not bool(np.isnan(values).any())
    return bool(np.isfinite(values).all())


def _unlawful_finals(segments: Segments) -> str | None:
    arrays = segments.arrays
    told = sorted(zip(arrays["final_row"].tolist(), arrays["final_step"].tolist(), strict=True))
    due = np.argwhere(arrays["truncated"] & ~arrays["terminated"]).tolist()
    if [list(pair) for pair in told] != due:
        return "final observations of other steps than those that were truncated"
    every = segments.layout.observation_leaves
    for place in range(len(told)):
        if problem := _unlawful_cells(every, {leaf.name: arrays[f"final.{leaf.name}"][place] for leaf in every}):
            return f"final {place}: {problem}"
    for leaf in every:
        if leaf.ragged:
            continue
        final = arrays[f"final.{leaf.name}"]
        if final.shape != (len(told), *leaf.space.shape) or final.dtype != np.dtype(leaf.space.dtype):
            return f"final.{leaf.name} is {final.dtype}{final.shape}"
        if final.dtype.kind == "f" and not np.isfinite(final).all():
            return f"final.{leaf.name} is not a number"
        if _outside(leaf.space, final):
            return f"final.{leaf.name} outside its space"
    return None


def _outside(space: LeafSpace, values: Any) -> bool:
    """Integers that an environment may not show."""
    if isinstance(space, Discrete):
        return bool(((values < space.start) | (values >= space.start + space.n)).any())
    if isinstance(space, MultiBinary):
        return bool(((values != 0) & (values != 1)).any())
    if isinstance(space, MultiDiscrete):
        flat = np.reshape(values, (-1, space.size))
        return any(
            not first <= value < first + n
            for row in flat.tolist()
            for value, first, n in zip(row, space.start, space.nvec, strict=True)
        )
    return False


def _unlawful_cells(every: Sequence[Leaf], cells: Mapping[str, Any]) -> str | None:
    """One observation's texts, sequences and graphs."""
    ragged = [leaf for leaf in every if leaf.ragged]
    for leaf in ragged:
        if not _is_cell(leaf, cells[leaf.name], leaf.depth):
            return f"{leaf.name} is no cell of its space"
    for one, other in combinations(ragged, 2):
        levels = zip(one.within, other.within, strict=False)
        common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], levels))
        if _counts(cells[one.name], common) != _counts(cells[other.name], common):
            return f"{one.name} and {other.name} differ in length"
    for leaf in ragged:
        if leaf.name.endswith(".edge_links"):
            nodes = len(cells[leaf.name.replace("edge_links", "nodes")])
            if any(not 0 <= node < nodes for link in cells[leaf.name].tolist() for node in link):
                return f"{leaf.name} leads nowhere"
    return None


def _is_cell(leaf: Leaf, cell: Any, depth: int) -> bool:
    space = leaf.space
    if isinstance(space, Text) and depth == 0:
        known = space.charset or ""
        return type(cell) is str and len(cell) <= space.max_length and all(character in known for character in cell)
    if isinstance(space, Text) or depth > 1:
        return type(cell) is tuple and all(_is_cell(leaf, inner, depth - 1) for inner in cell)
    fits = isinstance(cell, np.ndarray) and cell.shape[1:] == space.shape and cell.dtype == np.dtype(space.dtype)
    return fits and not cell.flags.writeable and not _outside(space, cell) and bool(np.isfinite(cell).all())


def _counts(cell: Any, levels: int) -> Any:
    """How many elements there are, so many levels deep."""
    if levels == 0:
        return None
    return [len(cell), *(_counts(inner, levels - 1) for inner in cell)]
