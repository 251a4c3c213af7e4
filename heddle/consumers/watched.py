"""Watched training: notes what the learner does right now, so that one that hangs can be seen and ended.

It never ends anything itself: a watchdog looks at `doing` from its own thread.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from heddle.checkpoint import Checkpoint
from heddle.clock import Clock
from heddle.consumers.parts import Trains
from heddle.consumers.progress import Progress
from heddle.consumers.reader import Loaded
from heddle.lease import Action
from heddle.policies.base import Arrays


class WatchedTraining:
    """What trains, every call into it written down while it lasts.

    Args:
        limit_s: how long one call may last.
        subject: whose learner it is, for people.
    """

    def __init__(self, training: Trains, *, limit_s: float, subject: str, clock: Clock) -> None:
        self._training = training
        self._limit_s = limit_s
        self._subject = subject
        self._clock = clock
        self._action: Action | None = None

    def doing(self) -> Action | None:
        """The call that runs now; None between two."""
        return self._action

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

    def weights(self) -> Arrays:
        with self._noted("weights"):
            return self._training.weights()

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        with self._noted("state"):
            return self._training.state()

    def keep(self, metas: Sequence[Mapping[str, Any]]) -> None:
        with self._noted("delete old files"):
            self._training.keep(metas)

    @contextmanager
    def _noted(self, what: str) -> Iterator[None]:
        self._action = Action(what, self._clock.monotonic(), self._limit_s, self._subject)
        try:
            yield
        finally:
            self._action = None
