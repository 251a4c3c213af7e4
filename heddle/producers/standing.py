"""Where a shard's play stands between two batches: what a snapshot holds, gathered and put back.

It never steps an environment and never decides when a snapshot is taken.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heddle.errors import SnapshotError
from heddle.layout import Layout
from heddle.producers.episodes import Episodes
from heddle.producers.noise import NoiseTape
from heddle.producers.snapshot import restore_all, take_all
from heddle.producers.snapshot_shard import Array, Identity, pack, unpack
from heddle.producers.tally import Tally

_COUNTS = ("episode", "begun_at", "taken", "length")


@dataclass(frozen=True, slots=True)
class Standing:
    """The parts of a player that last from one batch to the next.

    Attributes:
        identity: what a snapshot is of.
        layout: of the batches, for the observations acted on next.
        envs, tally, episodes, tape: the player's own.
    """

    identity: Identity
    layout: Layout
    envs: Sequence[Any]
    tally: Tally
    episodes: Episodes
    tape: NoiseTape

    def pack(self, now: Sequence[Array], state: Mapping[str, Array]) -> bytes:
        """The snapshot.

        Args:
            now: the observations to act on next, by leaf; empty before the first segment.
            state: of the policy.

        Raises:
            NotSnapshottable: an environment cannot be kept.
        """
        counts = (self.episodes.numbers, self.episodes.begun_at, self.tape.taken(), self.tally.lengths)
        arrays: dict[str, Array] = {
            name: np.array(values, np.int64) for name, values in zip(_COUNTS, counts, strict=True)
        }
        arrays["return"] = np.array(self.tally.returns, np.float64)
        leaves = self.layout.observation_leaves
        arrays.update((f"now.{leaf.name}", array) for leaf, array in zip(leaves, now, strict=True))
        arrays.update((f"state.{name}", np.asarray(array)) for name, array in state.items())
        return pack(self.identity, arrays, take_all(self.envs))

    def resume(self, snapshot: bytes, state: Mapping[str, Array]) -> tuple[list[NDArray[Any]], dict[str, Array]]:
        """Bring everything back; returns the observations to act on next and the policy's state.

        Args:
            state: of the policy when episodes begin, for its shapes.

        Raises:
            SnapshotError: it does not fit; environments are then of no more use.
        """
        arrays, envs = unpack(snapshot, self.identity, self._shapes(state))
        counts = {name: arrays[name].tolist() for name in _COUNTS}
        if min(map(min, (counts["episode"], counts["taken"], counts["length"]))) < 0 or max(counts["begun_at"]) > 0:
            raise SnapshotError("holds a count that cannot be")
        restore_all(self.envs, envs)
        self.episodes.resume(counts["episode"], counts["begun_at"])
        self.tape.resume(counts["episode"], counts["taken"])
        self.tally.returns, self.tally.lengths = arrays["return"].tolist(), counts["length"]
        now = [arrays[f"now.{leaf.name}"] for leaf in self.layout.observation_leaves]
        return now, {name: arrays[f"state.{name}"] for name in state}

    def _shapes(self, state: Mapping[str, Array]) -> dict[str, tuple[str | None, tuple[int, ...]]]:
        n = self.identity.num_envs
        shapes: dict[str, tuple[str | None, tuple[int, ...]]] = {name: ("int64", (n,)) for name in _COUNTS}
        shapes["return"] = ("float64", (n,))
        for leaf in self.layout.observation_leaves:
            shapes[f"now.{leaf.name}"] = (leaf.space.dtype, (n, *leaf.space.shape))
        shapes |= {f"state.{name}": (None, array.shape) for name, array in state.items()}
        return shapes
