"""Policy lag: how many versions a segment is behind, and whether that is too many.

Arithmetic only; it never knows where versions come from.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Gap:
    """Numbers that a trainer left out when it came: an earlier one may have given them to weights nobody remembers.

    Attributes:
        first: the lowest of them.
        size: how many.
    """

    first: int = 0
    size: int = 0

    def close(self, version: int) -> int:
        """The number that `version` would have, had only one number been used between those around the gap."""
        if version < self.first:
            return version + self.size
        return max(version, self.first + self.size - 1) if self.size else version


NO_GAP = Gap()


def lag(version: int, latest: int, gap: Gap = NO_GAP) -> int:
    """Versions that `version` is behind `latest`; 0 for one from the future (a trainer that fell back)."""
    return max(0, gap.close(latest) - gap.close(version))


def is_stale(version: int, latest: int, max_lag: int | None, gap: Gap = NO_GAP) -> bool:
    """True when a segment of `version` is too old to train on; never when there is no limit."""
    return max_lag is not None and lag(version, latest, gap) > max_lag


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


def summarise(versions: Sequence[int], latest: int, gap: Gap = NO_GAP) -> LagSummary:
    """Summary of the lags of segments with these versions."""
    if not len(versions):
        return LagSummary(0.0, 0, ())
    lags = np.array([lag(int(version), latest, gap) for version in versions], dtype=np.int64)
    return LagSummary(float(lags.mean()), int(lags.max()), tuple(int(count) for count in np.bincount(lags)))
