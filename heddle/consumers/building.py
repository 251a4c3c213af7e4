"""Building: how a trainer's parts are put together from a spec, a checkpoint and a seat.

It never trains and never reads experience.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from heddle.broker import Broker
from heddle.checkpoint import Checkpoint
from heddle.clock import Clock
from heddle.consumers.curve_file import CurveFile
from heddle.consumers.evaluation import Evaluator
from heddle.consumers.intake import Intake
from heddle.consumers.ledger import Ledger
from heddle.consumers.ordering import Ordering
from heddle.consumers.parts import PARTITION, Parts, Trains
from heddle.consumers.patience import Patience
from heddle.consumers.prefetch import prefetch_for
from heddle.consumers.progress import Progress, carried_of
from heddle.consumers.publisher import Publisher
from heddle.consumers.quorum import rules_of
from heddle.consumers.reader import Reader
from heddle.consumers.report import Report
from heddle.consumers.restoring import Restored, restore, resume
from heddle.consumers.saver import Saver, marks_of
from heddle.consumers.seat import Seat
from heddle.consumers.setting import Describe, Setting, read_setting
from heddle.consumers.shelf import Shelf, offered_shelf
from heddle.consumers.sides import Sides
from heddle.consumers.traced import Traces
from heddle.consumers.watch import Noted, unwatched
from heddle.plane import Plane, open_plane
from heddle.policies.initial import begin_with_files
from heddle.policies.lag import Gap
from heddle.stop import StopFlag
from heddle.tracing import Tracing

log = logging.getLogger("heddle.trainer")

SKIPPED = 100
"""Version numbers that a trainer leaves out when the broker may have forgotten some that were published: far more than
are published between two checkpoints."""


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


@dataclass(frozen=True, slots=True)
class _Base:
    """What the parts are made from: where they come from, and how far the run has got.

    Attributes:
        restored: what it goes on from, taken by `training` already.
        progress: counts that continue.
    """

    source: Source
    seat: Seat
    setting: Setting
    saver: Saver
    restored: Restored
    training: Trains
    progress: Progress

    @property
    def own(self) -> Checkpoint | None:
        """The checkpoint that it goes on from, where that is about the same stream."""
        return self.restored.own


def build(source: Source, seat: Seat) -> Parts:
    """The parts of the holder of `seat`. The fence is up: the newest checkpoint found is the last of its writer.

    Raises:
        CheckpointMissing: the checkpoints are not here.
        CheckpointError, EnvError, WeightsError: this experiment cannot be trained.
    """
    base = _base(source, seat)
    broker, experiment, call, setting = source.broker, source.experiment, source.patience.call, base.setting
    shelf = offered_shelf(broker, experiment, setting, seat_epoch=seat.epoch, plane=source.plane, call=call)
    shelf.prefetch = prefetch_for(broker.experience, experiment, PARTITION, base.setting)
    ledger = _ledger(base, shelf)
    ctl = call("read ctl", lambda: broker.experiments.ctl(experiment))
    broker_run = call("ask which run of the broker this is", broker.conn.run_id)
    publisher = _publisher(base, published=ctl.policy, broker_run=broker_run)
    reader = _reader(base, ledger, publisher, shelf)
    return Parts(
        broker=broker,
        experiment=experiment,
        seat=seat,
        setting=setting,
        training=base.training,
        progress=base.progress,
        reader=reader,
        ledger=ledger,
        intake=_intake(base, reader, ledger, gap=publisher.gap),
        publisher=publisher,
        evaluator=_evaluator(base, ctl.eval_policy),
        saver=base.saver,
        report=_report(base),
        patience=source.patience,
        clock=source.clock,
        stop=source.stop,
        broker_run=broker_run,
        told=dict(base.own.extra.get("metrics", {})) if base.own else {},
        traces=None if source.tracing is None else Traces(source.tracing, experiment, PARTITION),
    )


def _base(source: Source, seat: Seat) -> _Base:
    """The spec, then the checkpoint, then what trains, which takes the checkpoint: each needs the one before."""
    broker, experiment, call = source.broker, source.experiment, source.patience.call
    setting = call(
        "read the spec", lambda: read_setting(broker, experiment, describe=source.describe, noted=source.noted)
    )
    saver = Saver(source.home, experiment, setting.spec, setting.spaces_json(), seat_epoch=seat.epoch)
    saver.always["origin"] = setting.stored.origin
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
    return _Base(source, seat, setting, saver, restored, training, _progress(restored))


def _progress(restored: Restored) -> Progress:
    if (checkpoint := restored.checkpoint) is None:
        return Progress()
    log.info("resumed update=%d env_steps=%d", checkpoint.update, checkpoint.env_steps)
    return Progress.resumed(checkpoint, same_stream=restored.own is not None)


def _ledger(base: _Base, shelf: Shelf) -> Ledger:
    return Ledger(
        base.source.broker,
        base.source.experiment,
        PARTITION,
        seat_epoch=base.seat.epoch,
        ordering=Ordering(marks_of(base.own, PARTITION) if base.own else {}),
        carried=carried_of(base.own.extra) if base.own else {},
        shelf=shelf,
    )


def _publisher(base: _Base, *, published: int, broker_run: str) -> Publisher:
    """It goes on above every version that was published or checkpointed, or may have been published and forgotten."""
    own = base.own
    checkpointed = base.restored.checkpoint.policy_version if base.restored.checkpoint else 0
    version = max(published, checkpointed)
    remembers = own is not None and broker_run != "" and own.extra.get("broker") == broker_run
    return Publisher(
        base.source.broker,
        base.source.experiment,
        seat_epoch=base.seat.epoch,
        version=version,
        same=frozenset({own.policy_version} if own is not None else ()),
        skip=0 if remembers or (own is None and not published) else SKIPPED,
        apart=not base.setting.spec.rollout.sync,
    )


def _reader(base: _Base, ledger: Ledger, publisher: Publisher, shelf: Shelf) -> Reader:
    source, setting = base.source, base.setting
    return Reader(
        source.broker,
        source.experiment,
        PARTITION,
        seat_epoch=base.seat.epoch,
        ledger=ledger,
        layout=setting.layout,
        plans=setting.plans,
        size_cap=setting.spec.limits.batch_bytes,
        patience=source.patience,
        clock=source.clock,
        probe=lambda loaded: base.training.probe(loaded, base.progress),
        latest=lambda: publisher.version,
        shelf=shelf,
    )


def _intake(base: _Base, reader: Reader, ledger: Ledger, *, gap: Gap) -> Intake:
    source = base.source
    broker, experiment, call = source.broker, source.experiment, source.patience.call
    return Intake(
        reader,
        ledger,
        rules_of(base.setting.spec, min_steps=base.training.min_steps),
        clock=source.clock,
        flow=lambda: call("read flow", lambda: broker.experience.flow(experiment, PARTITION)),
        is_full=lambda: call("look at memory", broker.conn.out_of_memory),
        gap=gap,
    )


def _evaluator(base: _Base, eval_policy: int) -> Evaluator | None:
    spec, own = base.setting.spec, base.own
    if spec.eval is None:
        return None
    evaluator = Evaluator(
        base.source.broker,
        base.source.experiment,
        seat_epoch=base.seat.epoch,
        every_updates=spec.eval.every_updates,
        state=own.extra.get("eval") if own else None,
        sides=Sides.of(spec.policy),
    )
    evaluator.continue_or_drop(eval_policy)
    if spec.trainer.ack == "update":
        evaluator.drop()  # what came of it after that checkpoint was acked, and is gone
    return evaluator


def _report(base: _Base) -> Report:
    return Report(
        base.source.broker,
        base.source.experiment,
        seat_epoch=base.seat.epoch,
        trainer=base.seat.trainer,
        clock=base.source.clock,
        file=CurveFile(base.source.home, base.setting.spec.canonical_json(), base.setting.stored.origin),
    )
