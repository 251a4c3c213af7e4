"""The track: what was done in the running episode of each environment, so that a failure can be played again.

It keeps copies of whole segments' actions and throws away what no running episode reaches back to, or what is too
much. It never touches an environment.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heddle.broker.failure_types import REPLAY_BYTES, Start
from heddle.producers.action_rows import ActionRows, Chosen

MOST_BYTES = 4 << 20
"""Of the actions of all environments of a shard."""


@dataclass(frozen=True, slots=True)
class Episode:
    """One episode of an environment as far as it was played here.

    Attributes:
        row: step at which it began, counted since the player was made.
        count: which one under this claim, from 1.
        seed: that it was reset with; None when it began before this claim.
        steps_before: of it that were played before this claim.
    """

    row: int
    count: int
    seed: int | None
    steps_before: int = 0


@dataclass(frozen=True, slots=True)
class Spot:
    """A place in an episode.

    Attributes:
        seed, count: as in `Episode`.
        step: of the episode, from 1; 0 is the reset.
        actions: [k, ...] of the episode up to and with this step; only the last ones when start is "unknown".
        start: what the actions follow.
        snapshot: the state of the shard's environments that they follow, where that is a snapshot.
    """

    seed: int | None
    count: int
    step: int
    actions: NDArray[Any]
    start: Start
    snapshot: bytes = b""


class Track:
    """The episodes of `n` environments.

    Attributes:
        rows: how the actions are kept.
    """

    def __init__(self, n: int, rows: ActionRows) -> None:
        self.rows = rows
        self._most_rows = min(REPLAY_BYTES // rows.row_bytes, MOST_BYTES // (n * rows.row_bytes))
        self._episodes: list[deque[Episode]] = [deque() for _ in range(n)]
        self._counts = [0] * n
        self._kept: deque[NDArray[Any]] = deque()
        self._rows = 0  # of all that is kept
        self._base = 0  # steps of all segments before the running one
        self._snapshots: list[bytes] = [b""] * n

    def begin(self, env: int, row: int, seed: int) -> None:
        """An episode of `env` begins at step `row` of the running segment."""
        self._counts[env] += 1
        self._snapshots[env] = b""
        self._episodes[env].append(Episode(self._base + row, self._counts[env], seed))

    def resume(self, snapshot: bytes, seeds: Sequence[int], begun_at: Sequence[int]) -> None:
        """Every episode goes on where `snapshot`, of all environments at once, left it.

        Args:
            seeds: that they were reset with; begun_at: step at which they began, negative or 0.
        """
        for env, (seed, begun) in enumerate(zip(seeds, begun_at, strict=True)):
            self._counts[env] = 1
            self._snapshots[env] = snapshot
            self._episodes[env] = deque([Episode(self._base, 1, seed, -begun)])

    def keep(self, actions: Chosen, steps: int) -> None:
        """A segment is over: `actions` by leaf, [n, T, ...], of which `steps` were played."""
        self._kept.append(self.rows.pack(actions, (slice(None), slice(steps))))
        self._rows += steps
        self._base += steps
        oldest = self._base
        for episodes in self._episodes:
            while len(episodes) > 1 and episodes[1].row <= self._base:
                episodes.popleft()
            if episodes:
                oldest = min(oldest, episodes[0].row)
        while self._kept and (
            self._rows > self._most_rows or self._base - self._rows + len(self._kept[0][0]) <= oldest
        ):
            self._rows -= len(self._kept.popleft()[0])

    def spot(self, env: int, step: int, actions: Chosen) -> Spot | None:
        """Where `env` is after step `step` of the running segment; None before its first episode.

        Args:
            step: -1 is the row before the segment's first step.
            actions: of the running segment, by leaf, [n, T, ...].
        """
        here = self._base + step
        episode = next((e for e in reversed(self._episodes[env]) if e.row <= here), None)
        if episode is None:
            return None
        first = max(0, episode.row - self._base)
        running = self.rows.pack(actions, (env, slice(first, step + 1)))
        done = np.concatenate([*(kept[env] for kept in self._kept), running])
        wanted = here + 1 - episode.row
        start: Start = "snapshot" if self._snapshots[env] else "unknown" if episode.steps_before else "reset"
        if wanted > len(done):
            start = "unknown"
        snapshot = self._snapshots[env] if start == "snapshot" else b""
        kept = done[len(done) - min(wanted, len(done)) :]
        return Spot(episode.seed, episode.count, episode.steps_before + wanted, kept, start, snapshot)

    def reset(self, env: int, row: int | None = None) -> Spot | None:
        """Where `env` is while it is being reset: where its newest episode begins, or the one from row `row` on."""
        found = [episode for episode in self._episodes[env] if row is None or episode.row == self._base + row]
        if not found:
            return None
        return Spot(found[-1].seed, found[-1].count, 0, self.rows.none(), "reset")
