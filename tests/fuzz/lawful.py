"""What decoded segments must be, written down anew from the table in heddle/layout.py: the fuzzer's own opinion.

It uses none of the checks that it checks.
"""

import numpy as np

from heddle.layout import Segments
from heddle.spaces import Discrete


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
    discrete = {leaf.name: leaf.space for leaf in layout.observation_leaves if isinstance(leaf.space, Discrete)}
    for column in layout.columns:
        used = {"step": length, "step+1": length + 1, "segment": None}[column.per]
        values = segments.arrays[column.name][row] if used is None else segments.arrays[column.name][row, :used]
        if column.name in discrete:
            space = discrete[column.name]
            if ((values < space.start) | (values >= space.start + space.n)).any():
                return f"{column.name} outside its space"
        top = layout.action.n if column.name == "action" and isinstance(layout.action, Discrete) else None
        if top is not None and ((values < 0) | (values >= top)).any():
            return "an action outside its space"
        if np.dtype(column.dtype).kind == "f" and not _fair(column.name, values):
            return f"{column.name} is not a number"
    for name in ("terminated", "truncated", "episode_length"):
        if segments.arrays[name][row, length:].any():
            return f"{name} beyond the end"
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
    for leaf in segments.layout.observation_leaves:
        final = arrays[f"final.{leaf.name}"]
        if final.shape != (len(told), *leaf.space.shape) or final.dtype != np.dtype(leaf.space.dtype):
            return f"final.{leaf.name} is {final.dtype}{final.shape}"
        if final.dtype.kind == "f" and not np.isfinite(final).all():
            return f"final.{leaf.name} is not a number"
        if (
            isinstance(leaf.space, Discrete)
            and ((final < leaf.space.start) | (final >= leaf.space.start + leaf.space.n)).any()
        ):
            return f"final.{leaf.name} outside its space"
    return None
