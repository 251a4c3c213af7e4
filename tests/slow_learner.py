"""Behaviour cloning that takes its time, so that a trainer can be killed between two updates."""

from heddle.clock import SystemClock
from heddle.consumers.learners import Bc, TrainBatch


class SlowBc(Bc):
    """As `bc`."""

    def update(self, batch: TrainBatch, progress: float) -> dict[str, float]:
        SystemClock().sleep(0.05)
        return super().update(batch, progress)
