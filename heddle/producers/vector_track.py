"""Where the environments of a vector environment are, so that a failure can say where it happened.

It keeps no actions of earlier segments: one environment of many that are stepped as one cannot be played again alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from heddle.producers.action_rows import ActionRows
from heddle.producers.track import Episode, Spot


class VectorTrack:
    """As `Track`, for environments whose segments differ in length.

    Attributes:
        rows: how the actions are shown.
    """

    def __init__(self, n: int, rows: ActionRows) -> None:
        self.rows = rows
        self._episodes: list[list[Episode]] = [[] for _ in range(n)]

    def begin(self, env: int, row: int, seed: int) -> None:
        """An episode of `env` begins at step `row` of the running segment."""
        episodes = self._episodes[env]
        episodes.append(Episode(row, episodes[-1].count + 1 if episodes else 1, seed))

    def resume(self, snapshot: bytes, seeds: Sequence[int], begun_at: Sequence[int]) -> None:
        """Every episode goes on; arguments as of `Track`."""
        for env, (seed, begun) in enumerate(zip(seeds, begun_at, strict=True)):
            self._episodes[env] = [Episode(begun, 1, seed)]

    def shift(self, steps: Sequence[int]) -> None:
        """A segment is over, of so many steps for each environment."""
        for env, (episodes, played) in enumerate(zip(self._episodes, steps, strict=True)):
            self._episodes[env] = [replace(one, row=one.row - played) for one in episodes[-1:]]

    def spot(self, env: int, step: int, actions: Mapping[str, NDArray[Any]]) -> Spot | None:
        """Where `env` is after step `step` of the running segment; None before its first episode.

        Args:
            actions: leaf -> [n, T, ...], of the segment.
        """
        episode = next((one for one in reversed(self._episodes[env]) if one.row <= step), None)
        if episode is None:
            return None
        done = self.rows.pack(actions, (env, slice(max(0, episode.row), step + 1)))
        return Spot(episode.seed, episode.count, step + 1 - episode.row, done, "unknown")

    def reset(self, env: int, row: int | None = None) -> Spot | None:
        """As of `Track`."""
        found = [one for one in self._episodes[env] if row is None or one.row == row]
        if not found:
            return None
        return Spot(found[-1].seed, found[-1].count, 0, self.rows.none(), "unknown")
