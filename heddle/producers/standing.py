"""Where a shard's play stands between two batches: what a snapshot holds, gathered and put back.

It never steps an environment and never decides when a snapshot is taken.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from heddle.errors import NotSnapshottable, SnapshotError
from heddle.layout import Layout
from heddle.producers.episodes import Episodes
from heddle.producers.noise import NoiseTape
from heddle.producers.plain import dump, load
from heddle.producers.snapshot import restore_all, take_all
from heddle.producers.snapshot_shard import Array, Identity, pack, unpack
from heddle.producers.tally import Tally
from heddle.shard import ShardPlan
from heddle.spaces import Leaf
from heddle.spaces.cells import boxed, to_cell
from heddle.spec import ExperimentSpec

_COUNTS = ("episode", "begun_at", "taken", "length")


def identity_of(plan: ShardPlan, spec: ExperimentSpec, seed: int, num_envs: int) -> Identity:
    """What a snapshot of this shard is of; `seed` is the root of all its chance."""
    return Identity(spec.sha256(), seed, plan.index, num_envs)


@dataclass(slots=True)
class Standing:
    """The parts of a player that last from one batch to the next.

    Attributes:
        identity: what a snapshot is of.
        layout: of the batches.
        envs, tally, episodes, tape: the player's own.
        state: of the policy.
        now: the observations to act on next, by leaf; empty before the first segment.
        own: arrays [n] that a player of a special kind needs as well, by name.
        moving: an environment is being stepped, so that there is nothing to be kept.
    """

    identity: Identity
    layout: Layout
    envs: Sequence[Any]
    tally: Tally
    episodes: Episodes
    tape: NoiseTape
    state: dict[str, Array]
    now: list[Array] = field(default_factory=list)
    own: dict[str, Array] = field(default_factory=dict)
    moving: bool = False

    def pack(self) -> bytes:
        """The snapshot, once something was played.

        Raises:
            NotSnapshottable: an environment cannot be kept.
        """
        if self.moving:
            raise NotSnapshottable("without a barrier some of its environments are always at a step")
        counts = (self.episodes.numbers, self.episodes.begun_at, self.tape.taken(), self.tally.lengths)
        arrays: dict[str, Array] = {
            name: np.array(values, np.int64) for name, values in zip(_COUNTS, counts, strict=True)
        }
        arrays["return"] = np.array(self.tally.returns, np.float64)
        leaves = self.layout.observation_leaves
        for leaf, array in zip(leaves, self.now, strict=True):
            arrays[f"now.{leaf.name}"] = np.frombuffer(dump(array.tolist()), np.uint8) if leaf.ragged else array
        arrays.update((f"state.{name}", np.asarray(array)) for name, array in self.state.items())
        arrays.update((f"own.{name}", array.astype(np.uint8)) for name, array in self.own.items())
        return pack(self.identity, arrays, take_all(self.envs))

    def resume(self, snapshot: bytes) -> bytes:
        """Bring back what another one packed; before anything is played.

        Returns:
            The environments' part of it.

        Raises:
            SnapshotError: it does not fit, or is damaged; environments are then of no more use.
        """
        arrays, envs = unpack(snapshot, self.identity, self._shapes())
        counts = {name: arrays[name].tolist() for name in _COUNTS}
        if min(map(min, (counts["episode"], counts["taken"], counts["length"]))) < 0 or max(counts["begun_at"]) > 0:
            raise SnapshotError("holds a count that cannot be")
        restore_all(self.envs, envs)
        self.episodes.resume(counts["episode"], counts["begun_at"])
        self.tape.resume(counts["episode"], counts["taken"])
        self.tally.returns, self.tally.lengths = arrays["return"].tolist(), counts["length"]
        self.now = [self._now(leaf, arrays[f"now.{leaf.name}"]) for leaf in self.layout.observation_leaves]
        self.state = {name: arrays[f"state.{name}"] for name in self.state}
        self.own = {name: arrays[f"own.{name}"].astype(array.dtype) for name, array in self.own.items()}
        return bytes(envs)

    def take_over(self, other: "Standing") -> None:
        """Stand where another one of the same environments stands; before anything is played."""
        self.episodes.numbers = list(other.episodes.numbers)
        if not other.now:  # its first episodes have not begun, nor have ours
            return
        self.episodes.resume(other.episodes.numbers, other.episodes.begun_at)
        self.tape.resume(other.episodes.numbers, other.tape.taken())
        self.tally.returns, self.tally.lengths = list(other.tally.returns), list(other.tally.lengths)
        self.now = [array.copy() for array in other.now]
        self.state = {name: np.array(array) for name, array in other.state.items()}

    def _now(self, leaf: Leaf, array: Array) -> Array:
        if not leaf.ragged:
            return array
        try:
            return boxed([to_cell(leaf, cell) for _, cell in zip(self.envs, load(array.tobytes()), strict=True)])
        except (ValueError, TypeError) as error:
            raise SnapshotError(f"holds {leaf.name} that cannot be read: {error}") from error

    def _shapes(self) -> dict[str, tuple[str | None, tuple[int, ...] | None]]:
        n = self.identity.num_envs
        shapes: dict[str, tuple[str | None, tuple[int, ...] | None]] = {name: ("int64", (n,)) for name in _COUNTS}
        shapes["return"] = ("float64", (n,))
        for leaf in self.layout.observation_leaves:
            shapes[f"now.{leaf.name}"] = ("uint8", None) if leaf.ragged else (leaf.space.dtype, (n, *leaf.space.shape))
        shapes |= {f"state.{name}": (None, array.shape) for name, array in self.state.items()}
        shapes |= {f"own.{name}": ("uint8", array.shape) for name, array in self.own.items()}
        return shapes
