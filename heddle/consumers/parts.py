"""The parts of a seated trainer, and what its loop asks of whoever trains.

Nothing here acts: `building.py` puts them together, `loop.py` works with them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from heddle.broker import Broker
from heddle.checkpoint import Checkpoint
from heddle.clock import Clock
from heddle.consumers.evaluation import Evaluator
from heddle.consumers.intake import Intake
from heddle.consumers.ledger import Ledger
from heddle.consumers.patience import Patience
from heddle.consumers.progress import Progress
from heddle.consumers.publisher import Publisher
from heddle.consumers.reader import Loaded, Reader
from heddle.consumers.report import Report
from heddle.consumers.saver import Saver
from heddle.consumers.seat import Seat
from heddle.consumers.setting import Setting
from heddle.consumers.traced import Traces
from heddle.policies.base import Arrays
from heddle.stop import StopFlag

PARTITION = 0


class Trains(Protocol):
    """What a loop asks of whoever trains: a learner behind `Training`, or the body of a user's own loop."""

    @property
    def min_steps(self) -> int:
        """Fewest steps an update can be given."""
        ...

    def resume(self, checkpoint: Checkpoint) -> None:
        """Go on where a checkpoint stands. Raises CheckpointError."""
        ...

    def update(self, batches: Sequence[Loaded], progress: Progress) -> dict[str, float]:
        """Train on these, and count them in `progress`; metrics.

        Raises:
            ExperimentFailed: it cannot be trained.
            Interrupted: nobody is there to train any more: these count as not trained.
        """
        ...

    def probe(self, loaded: Loaded, progress: Progress) -> None:
        """Train on one batch and forget it again, to see whether the process dies of it."""
        ...

    def complaint(self) -> str:
        """Why the experiment shall pause after the last update, told once; "" for nothing."""
        ...

    def weights(self) -> Arrays:
        """Of the policy, copies."""
        ...

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        """Everything else that a continuation needs, copies."""
        ...

    def keep(self, metas: Sequence[Mapping[str, Any]]) -> None:
        """These are its values in all checkpoints on disk: files of its own that none of them names can go."""
        ...


@dataclass(slots=True)
class Parts:
    """What a seated trainer works with.

    Attributes:
        partition: always 0 so far.
        broker_run: which run of the server this trainer began with; "" when it does not tell.
        told: metrics of the update that was resumed; {} at the very start.
        traces: takes spans; None when nobody traces.
    """

    broker: Broker
    experiment: str
    seat: Seat
    setting: Setting
    training: Trains
    progress: Progress
    reader: Reader
    ledger: Ledger
    intake: Intake
    publisher: Publisher
    evaluator: Evaluator | None
    saver: Saver
    report: Report
    patience: Patience
    clock: Clock
    stop: StopFlag
    partition: int = PARTITION
    broker_run: str = ""
    told: dict[str, float] = field(default_factory=dict)
    traces: Traces | None = None

    def close(self) -> None:
        """Let go of files and threads; what is being published gets a moment, where it is ours to publish."""
        self.report.close()
        if self.reader.shelf.prefetch is not None:
            self.reader.shelf.prefetch.close()
        if self.stop.now or self.seat.is_lost:
            self.publisher.close(timeout_s=0.0)
        else:
            self.publisher.close()
