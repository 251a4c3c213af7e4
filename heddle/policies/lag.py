"""Policy lag: how many versions a segment is behind, and whether that is too many.

Arithmetic only; it never knows where versions come from.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


def lag(version: int, latest: int) -> int:
    """Versions that `version` is behind `latest`; 0 for one from the future (a trainer that fell back)."""
    return max(0, latest - version)


def is_stale(version: int, latest: int, max_lag: int | None) -> bool:
    """True when a segment of `version` is too old to train on; never when there is no limit."""
    return max_lag is not None and lag(version, latest) > max_lag


@dataclass(frozen=True, slots=True)
class LagSummary:
    """Lags of one update.

    Attributes:
        mean, max: over segments, in versions; 0 without segments.
        histogram: number of segments with lag 0, 1, 2, ... up to `max`.
    """

    mean: float
    max: int
    histogram: tuple[int, ...]


def summarise(versions: Sequence[int], latest: int) -> LagSummary:
    """Summary of the lags of segments with these versions."""
    if not len(versions):
        return LagSummary(0.0, 0, ())
    lags = np.maximum(0, latest - np.asarray(versions, dtype=np.int64))
    return LagSummary(float(lags.mean()), int(lags.max()), tuple(int(count) for count in np.bincount(lags)))
