"""Watched training: every call into the learner is noted while it lasts, so that one that hangs can be seen and ended.

It never ends anything itself.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from heddle.checkpoint import Checkpoint
from heddle.consumers.parts import Trains
from heddle.consumers.progress import Progress
from heddle.consumers.reader import Loaded
from heddle.consumers.watch import Watch
from heddle.policies.base import Arrays


class WatchedTraining:
    """What trains, every call into it written down while it lasts.

    Args:
        limit_s: how long one call may last.
    """

    def __init__(self, training: Trains, watch: Watch, *, limit_s: float) -> None:
        self._training = training
        self._watch = watch
        self._limit_s = limit_s

    @property
    def min_steps(self) -> int:
        return self._training.min_steps

    def resume(self, checkpoint: Checkpoint) -> None:
        with self._noted("resume"):
            self._training.resume(checkpoint)

    def update(self, batches: Sequence[Loaded], progress: Progress) -> dict[str, float]:
        with self._noted(f"update {progress.update + 1}"):
            return self._training.update(batches, progress)

    def probe(self, loaded: Loaded, progress: Progress) -> None:
        with self._noted(f"probe of shard {loaded.pointer.shard}"):
            self._training.probe(loaded, progress)

    def complaint(self) -> str:
        return self._training.complaint()

    def weights(self) -> Arrays:
        with self._noted("weights"):
            return self._training.weights()

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        with self._noted("state"):
            return self._training.state()

    def keep(self, metas: Sequence[Mapping[str, Any]]) -> None:
        with self._noted("delete old files"):
            self._training.keep(metas)

    def _noted(self, what: str) -> AbstractContextManager[None]:
        return self._watch.noted(what, self._limit_s)
