"""Bounds: observations outside what their Box declares, told once for each part of an observation.

It never looks at what the dtype alone keeps within bounds, and it never decides what follows: well-known environments
leave their bounds now and then (LunarLander flies out of its picture), and are learned all the same.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heddle.layout import Layout, Segments
from heddle.producers.scrutiny import BadNumber
from heddle.spaces import Box, Leaf

Limits = tuple[NDArray[Any], NDArray[Any]]
"""Least and greatest value, [*shape] in the leaf's dtype."""


class Bounds:
    """The parts of an observation whose bounds can be broken, and were not yet."""

    def __init__(self, layout: Layout) -> None:
        self._open = {leaf.name: limits for leaf in layout.observation_leaves if (limits := _limits(leaf)) is not None}

    def broken(self, segments: Segments) -> list[BadNumber]:
        """The first number of each part that is outside; a part that was told is not looked at again."""
        found = {name: one for name, limits in self._open.items() if (one := _broken(name, segments, limits))}
        for name in found:
            del self._open[name]
        return list(found.values())


def _limits(leaf: Leaf) -> Limits | None:
    """Of a leaf; None where every value of its dtype is within."""
    if leaf.ragged or not isinstance(leaf.space, Box) or leaf.space.dtype == "bool":
        return None
    low, high = leaf.space.limits()
    held: Any = np.iinfo(low.dtype) if low.dtype.kind in "iu" else None
    least, most = (-np.inf, np.inf) if held is None else (held.min, held.max)
    return None if (low == least).all() and (high == most).all() else (low, high)


def _broken(name: str, segments: Segments, limits: Limits) -> BadNumber | None:
    array, (low, high) = segments.arrays[name], limits
    if not np.logical_and.reduce((array >= low) & (array <= high), axis=None):
        shown = np.arange(array.shape[1]) <= segments.arrays["length"][:, None]  # the rest is blank
        outside = ((array < low) | (array > high)) & shown.reshape(*shown.shape, *[1] * (array.ndim - 2))
        if outside.any():
            env, row, *inner = (int(index) for index in np.argwhere(outside)[0])
            return _told(name, (env, row), tuple(inner), array[(env, row, *inner)], limits)
    finals = segments.arrays[f"final.{name}"]
    if not len(finals):
        return None
    outside = (finals < low) | (finals > high)
    if not outside.any():
        return None
    place, *inner = (int(index) for index in np.argwhere(outside)[0])
    where = int(segments.arrays["final_row"][place]), int(segments.arrays["final_step"][place]) + 1
    return replace(_told(name, where, tuple(inner), finals[(place, *inner)], limits), is_final=True)


def _told(name: str, where: tuple[int, int], inner: tuple[int, ...], value: Any, limits: Limits) -> BadNumber:
    """Of the number at `inner` in row `where[1]` of environment `where[0]`."""
    place = f"[{', '.join(map(str, inner))}]" if inner else ""
    low, high = (limit[inner].item() for limit in limits)
    return BadNumber(f"{name}{place}", *where, f"is outside {low:.6g}..{high:.6g}", f"{value.item():.6g}")
