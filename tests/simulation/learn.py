"""Learning in the simulation: a model that is nothing but the list of batches it was trained on.

It never reads or saves; the shipped loop does, and hands it decoded batches.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from heddle.checkpoint import Checkpoint
from heddle.consumers.evaluation import note_episodes
from heddle.consumers.progress import Progress
from heddle.consumers.reader import Loaded
from heddle.consumers.sides import Sides
from heddle.policies.base import Arrays
from tests.simulation.play import Nature

Trained = tuple[int, int, str, int, int, int]
"""shard, epoch, nonce, seq of a batch, and its own name: player, first step."""


class SimTraining:
    """Stands for `Training`.

    Attributes:
        seen: what it was trained on, in order; a checkpoint carries it.
        update_s: seconds that an update takes.
    """

    min_steps = 1

    def __init__(self, nature: Nature, *, update_s: float) -> None:
        self.seen: list[Trained] = []
        self.update_s = update_s
        self._hub = nature.hub
        self._nature = nature
        self._salt = 0

    def resume(self, checkpoint: Checkpoint) -> None:
        self.seen = list(checkpoint.learner_meta["seen"])
        self._salt = checkpoint.learner_meta["salt"]

    def update(self, batches: Sequence[Loaded], progress: Progress) -> dict[str, float]:
        self._learn(batches)
        self._salt = self._hub.rng.getrandbits(60)
        for item in batches:
            pointer, segments = item.pointer, item.segments
            self.seen.append((pointer.shard, pointer.epoch, pointer.nonce, pointer.seq, *segments.name))  # type: ignore[attr-defined]
        progress.add_batches(batches=len(batches), steps=sum(item.pointer.steps for item in batches))
        return note_episodes(progress, [item.segments for item in batches], Sides())

    def complaint(self) -> str:
        return ""

    def probe(self, loaded: Loaded, progress: Progress) -> None:
        self._learn([loaded])

    def weights(self) -> Arrays:
        """Other weights after every update, also after one on the same batches in another life."""
        return {"what": np.array([self._salt], np.int64)}

    def _learn(self, batches: Sequence[Loaded]) -> None:
        self._hub.wait(self.update_s)
        if any(item.segments.name[1] in self._nature.poison for item in batches):  # type: ignore[attr-defined]
            process = self._hub.task().process
            process.kill()
            process.check()

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        return {}, {"seen": list(self.seen), "salt": self._salt}

    def keep(self, metas: Sequence[Mapping[str, Any]]) -> None:
        """There are no files."""
