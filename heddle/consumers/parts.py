"""The parts of a seated trainer, and how they are put together from a spec, a checkpoint and a seat.

It never trains and never reads experience.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from heddle.broker import Broker
from heddle.checkpoint import Checkpoint
from heddle.clock import Clock
from heddle.consumers.curve_file import CurveFile
from heddle.consumers.evaluation import Evaluator
from heddle.consumers.intake import Intake
from heddle.consumers.ledger import Ledger
from heddle.consumers.ordering import Ordering
from heddle.consumers.patience import Patience
from heddle.consumers.progress import Progress, carried_of
from heddle.consumers.publisher import Publisher
from heddle.consumers.quorum import rules_of
from heddle.consumers.reader import Loaded, Reader
from heddle.consumers.report import Report
from heddle.consumers.restoring import Restored, restore, resume
from heddle.consumers.saver import Saver, marks_of
from heddle.consumers.seat import Seat
from heddle.consumers.setting import Describe, Setting, read_setting
from heddle.consumers.shelf import Shelf, offered_shelf
from heddle.consumers.sides import Sides
from heddle.consumers.traced import Traces
from heddle.consumers.watch import Noted, unwatched
from heddle.errors import HeddleError
from heddle.plane import Plane, open_plane
from heddle.policies.base import Arrays
from heddle.policies.initial import begin_with_files
from heddle.policies.lag import Gap
from heddle.stop import StopFlag
from heddle.tracing import Tracing

log = logging.getLogger("heddle.trainer")

PARTITION = 0
SKIPPED = 100
"""Version numbers that a trainer leaves out when the broker may have forgotten some that were published: far more than
are published between two checkpoints."""


class Interrupted(HeddleError):
    """Whoever trains leaves in the middle of a batch, which then counts as not trained."""


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
            Interrupted: it was not trained, and nobody is there to train any more.
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


@dataclass(frozen=True, slots=True)
class Source:
    """Where a trainer's parts come from.

    Attributes:
        home: the experiment's own folder.
        train: makes what trains; may raise EnvError.
        describe, noted: see `setting.read_setting`.
        plane: opens this host's shared memory.
        tracing: takes spans; None when nobody traces.
    """

    broker: Broker
    experiment: str
    home: Path
    train: Callable[[Setting], Trains]
    describe: Describe | None
    patience: Patience
    clock: Clock
    stop: StopFlag
    noted: Noted = unwatched
    plane: Callable[[], Plane] = open_plane
    tracing: Tracing | None = None


def build(source: Source, seat: Seat) -> Parts:
    """The parts of the holder of `seat`. The fence is up: the newest checkpoint found is the last of its writer.

    Raises:
        CheckpointMissing: the checkpoints are not here.
        CheckpointError, EnvError, WeightsError: this experiment cannot be trained.
    """
    broker, experiment, call = source.broker, source.experiment, source.patience.call
    setting = call(
        "read the spec", lambda: read_setting(broker, experiment, describe=source.describe, noted=source.noted)
    )
    saver = Saver(source.home, experiment, setting.spec, setting.spaces_json(), seat_epoch=seat.epoch)
    restored = restore(
        saver,
        setting,
        flow=lambda: call("read flow", lambda: broker.experience.flow(experiment, PARTITION)),
        newest=lambda: call("read metrics", lambda: broker.events.metrics_newest(experiment)),
    )
    if restored.checkpoint is None:
        begin_with_files(setting.policy, setting.spec.policy)
    training = source.train(setting)
    restored = resume(training.resume, restored, saver)
    checkpoint, own = restored.checkpoint, restored.own
    progress = Progress()
    if checkpoint is not None:
        progress = Progress.resumed(checkpoint, same_stream=own is not None)
        log.info("resumed update=%d env_steps=%d", checkpoint.update, checkpoint.env_steps)
    shelf = offered_shelf(broker, experiment, setting, seat_epoch=seat.epoch, plane=source.plane, call=call)
    ledger = _ledger(source, seat, own, shelf)
    ctl = call("read ctl", lambda: broker.experiments.ctl(experiment))
    broker_run = call("ask which run of the broker this is", broker.conn.run_id)
    publisher = _publisher(source, seat, restored, published=ctl.policy, broker_run=broker_run)
    reader = _reader(source, setting, seat, ledger, training, progress, publisher, shelf)
    return Parts(
        broker=broker,
        experiment=experiment,
        seat=seat,
        setting=setting,
        training=training,
        progress=progress,
        reader=reader,
        ledger=ledger,
        intake=_intake(source, setting, reader, ledger, min_steps=training.min_steps, gap=publisher.gap),
        publisher=publisher,
        evaluator=_evaluator(source, setting, seat, own, ctl.eval_policy),
        saver=saver,
        report=Report(
            broker,
            experiment,
            seat_epoch=seat.epoch,
            trainer=seat.trainer,
            clock=source.clock,
            file=CurveFile(source.home, setting.spec.canonical_json()),
        ),
        patience=source.patience,
        clock=source.clock,
        stop=source.stop,
        broker_run=broker_run,
        told=dict(own.extra.get("metrics", {})) if own else {},
        traces=None if source.tracing is None else Traces(source.tracing, experiment, PARTITION),
    )


def _ledger(source: Source, seat: Seat, own: Checkpoint | None, shelf: Shelf) -> Ledger:
    return Ledger(
        source.broker,
        source.experiment,
        PARTITION,
        seat_epoch=seat.epoch,
        ordering=Ordering(marks_of(own, PARTITION) if own else {}),
        carried=carried_of(own.extra) if own else {},
        shelf=shelf,
    )


def _publisher(source: Source, seat: Seat, restored: Restored, *, published: int, broker_run: str) -> Publisher:
    """It goes on above every version that was published or checkpointed, or may have been published and forgotten."""
    own = restored.own
    checkpointed = restored.checkpoint.policy_version if restored.checkpoint else 0
    version = max(published, checkpointed)
    remembers = own is not None and broker_run != "" and own.extra.get("broker") == broker_run
    return Publisher(
        source.broker,
        source.experiment,
        seat_epoch=seat.epoch,
        version=version,
        same=frozenset({own.policy_version} if own is not None else ()),
        skip=0 if remembers or (own is None and not published) else SKIPPED,
    )


def _reader(
    source: Source,
    setting: Setting,
    seat: Seat,
    ledger: Ledger,
    training: Trains,
    progress: Progress,
    publisher: Publisher,
    shelf: Shelf,
) -> Reader:
    return Reader(
        source.broker,
        source.experiment,
        PARTITION,
        seat_epoch=seat.epoch,
        ledger=ledger,
        layout=setting.layout,
        plans=setting.plans,
        size_cap=setting.spec.limits.batch_bytes,
        patience=source.patience,
        clock=source.clock,
        probe=lambda loaded: training.probe(loaded, progress),
        latest=lambda: publisher.version,
        shelf=shelf,
    )


def _intake(source: Source, setting: Setting, reader: Reader, ledger: Ledger, *, min_steps: int, gap: Gap) -> Intake:
    broker, experiment, call = source.broker, source.experiment, source.patience.call
    return Intake(
        reader,
        ledger,
        rules_of(setting.spec, min_steps=min_steps),
        clock=source.clock,
        flow=lambda: call("read flow", lambda: broker.experience.flow(experiment, PARTITION)),
        is_full=lambda: call("look at memory", broker.conn.out_of_memory),
        gap=gap,
    )


def _evaluator(
    source: Source, setting: Setting, seat: Seat, own: Checkpoint | None, eval_policy: int
) -> Evaluator | None:
    if setting.spec.eval is None:
        return None
    evaluator = Evaluator(
        source.broker,
        source.experiment,
        seat_epoch=seat.epoch,
        every_updates=setting.spec.eval.every_updates,
        state=own.extra.get("eval") if own else None,
        sides=Sides.of(setting.spec.policy),
    )
    evaluator.continue_or_drop(eval_policy)
    if setting.spec.trainer.ack == "update":
        evaluator.drop()  # what came of it after that checkpoint was acked, and is gone
    return evaluator
