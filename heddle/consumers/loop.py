"""The loop: one seated trainer from its first publish to the end of the run, or of its seat.

It never claims the seat. Each turn reads facts, asks a pure function, and does what it says:
update, publish (so that workers go on), checkpoint, ack.
"""

import logging
from pathlib import Path

from heddle.broker.experience_types import Flow, Pointer
from heddle.broker.types import Ctl
from heddle.consumers.budget import reached
from heddle.consumers.evaluations import Evaluations
from heddle.consumers.intake import Taken
from heddle.consumers.journey import Journeys
from heddle.consumers.oddities import Oddities, where_of
from heddle.consumers.parts import Parts
from heddle.consumers.pausing import pause_if_asked
from heddle.consumers.report import flow_metrics, lag_metrics, progress_metrics, waited_metrics
from heddle.consumers.resuming import settle
from heddle.errors import CheckpointError, ExperimentFailed
from heddle.policies.weights import not_finite

log = logging.getLogger("heddle.trainer")

BLOCK_MS = 250
IDLE_CHECKPOINT_S = 2.0
"""With nothing to train on for so long, what is trained is made durable and acked: the broker may be out of memory."""
MOST_BURIED = 20
"""Batches a shard that may go to dead with nothing trained between them; else it would run for ever, so it fails."""
SAVE_AGAIN_S = 5.0
"""A full disk is asked again after this long."""


class Loop:
    """Runs until the budget is used, somebody says stop, or this process shall end.

    Attributes:
        training_on: entries that the learner has now, or had when it raised.
        evaluations: of its policies.
    """

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self._saved_update = parts.progress.update if parts.saver.last else -1
        self._busy_at = parts.clock.monotonic()
        self._turn_at = parts.clock.monotonic()
        self._save_after = 0.0
        self._checkpoint_s = 0.0
        self._metrics = dict(parts.told)
        self._journeys = Journeys(parts.clock, parts.report.server_s, parts.traces)
        self._spoken: set[str] = set()
        self._oddities = Oddities()
        self.evaluations = Evaluations(parts)
        self.training_on: list[Pointer] = []

    def begin(self) -> None:
        """Publish at once, and settle what an earlier trainer left. Raises SeatLost, Gone."""
        parts = self.parts
        parts.publisher.first(parts.training.weights(), parts.progress.update)
        self._journeys.begin(parts.publisher.version)
        told = f"took the seat epoch={parts.seat.epoch} at update={parts.progress.update}"
        parts.report.tell("info", f"{told}, publishes version={parts.publisher.version}")
        parts.reader.start()
        self.evaluations.turn(parts.intake.poll(block_ms=0))
        settle(parts)
        self.checkpoint()

    def run(self) -> str:
        """Take turns; why it is over: the limit that was reached, or "" for a command or request to stop.

        The limit comes first: what was resumed may have used it up already.
        """
        block_ms = 0
        while not (why := self.reached()):
            ctl = self.ctl()
            if ctl.command == "stop" or self.parts.stop.draining:
                return ""
            waits = "refused" if self.parts.publisher.is_refused else "wait"
            self.parts.seat.doing(waits if ctl.command == "run" else "pause")
            evaluated = self.parts.intake.poll(block_ms=block_ms)
            self.count_time(running=ctl.command == "run")
            self.evaluations.turn(evaluated)
            if ctl.command == "pause":
                self._pause()
                block_ms = BLOCK_MS
            else:  # after an update there may be enough for the next one already
                block_ms = 0 if self._turn(ctl) else BLOCK_MS
        return why

    def ctl(self) -> Ctl:
        """ctl as it is now; publishes again what it does not show. Raises SeatLost, Gone."""
        parts = self.parts
        parts.seat.check()
        parts.seat.notes.send(parts.broker.events)
        ctl = parts.patience.call("read ctl", lambda: parts.broker.experiments.ctl(parts.experiment))
        parts.publisher.compare(ctl.policy)
        if parts.evaluator is not None:
            parts.evaluator.continue_or_drop(ctl.eval_policy)  # the broker may have forgotten what was pinned
        self.evaluations.active = ctl.active_eval
        return ctl

    def flow(self) -> Flow:
        """The counters as they are now."""
        parts = self.parts
        return parts.patience.call("read flow", lambda: parts.broker.experience.flow(parts.experiment, parts.partition))

    def reached(self) -> str:
        """Which limit of the budget is reached; "" for none."""
        spec = self.parts.setting.spec
        return reached(spec.budget, self.parts.progress.spent(evaluated=spec.eval is not None))

    def count_time(self, *, running: bool) -> None:
        """Let the time since the last call count as wall time, when the experiment was running."""
        now = self.parts.clock.monotonic()
        if running:
            self.parts.progress.wall_s += now - self._turn_at
        self._turn_at = now

    def _turn(self, ctl: Ctl) -> bool:
        """Update, or wait; True when there was an update."""
        parts = self.parts
        if parts.ledger.buried >= MOST_BURIED * max(1, ctl.active):
            raise ExperimentFailed(
                f"the last {parts.ledger.buried} batches could not be used and none could; the last one: "
                f"{parts.ledger.last_reason}"
            )
        parts.publisher.rise_above(parts.intake.newest)
        taken = parts.intake.take(ctl, version=parts.publisher.version, same=parts.publisher.same)
        if taken.batches:
            self.update(taken, force=taken.why == "high water")
        elif taken.why == "void":
            log.warning("every shard's batch was set aside, going on version=%d", parts.publisher.version)
            parts.publisher.renumber()
        elif self.unsaved and (parts.intake.high_water or self._idle_s() >= IDLE_CHECKPOINT_S):
            self.checkpoint()
        parts.ledger.flush()
        return bool(taken.batches)

    def _pause(self) -> None:
        self.parts.intake.stop_waiting()
        if self.unsaved:
            self.checkpoint()
        self.parts.ledger.flush()

    @property
    def unsaved(self) -> bool:
        """True while no checkpoint holds all that was trained."""
        return self._saved_update != self.parts.progress.update or self.parts.ledger.num_held > 0

    def _idle_s(self) -> float:
        return self.parts.clock.monotonic() - self._busy_at

    def update(self, taken: Taken, *, force: bool = False) -> None:
        """Train on what was taken, publish, checkpoint when it is due (or `force`), ack, report.

        Raises:
            ExperimentFailed: the learner raised.
        """
        parts = self.parts
        pointers = [item.pointer for item in taken.batches]
        latest, same = parts.publisher.version, parts.publisher.same
        waited_s = parts.intake.reset_wait()
        parts.seat.doing("update")
        parts.reader.loading(pointers)
        self.training_on = pointers
        began = parts.clock.monotonic()
        with parts.reader.fetching_ahead():
            metrics = parts.training.update(taken.batches, parts.progress)
        weights = parts.training.weights()
        where = where_of(parts.progress.update, [pointer.shard for pointer in pointers])
        if (spoilt := not_finite(weights)) is not None:
            raise ExperimentFailed(f"{where}: the learner made {spoilt} infinite or NaN")
        for odd in self._oddities.among(metrics):
            parts.report.tell("warning", f"{where}: {odd}")
        self._busy_at = parts.clock.monotonic()
        metrics |= {"update_seconds": self._busy_at - began, "wait_seconds": waited_s} | waited_metrics(pointers)
        metrics |= self._journeys.of(taken.batches, update=parts.progress.update, began=began, ended=self._busy_at)
        versions = [int(version) for item in taken.batches for version in item.segments.arrays["version"]]
        metrics |= lag_metrics(versions, latest, same, parts.publisher.gap)
        self.trained(metrics | parts.report.rate(parts.progress.env_steps) | progress_metrics(parts.progress))
        parts.publisher.publish(weights, parts.progress.update)
        self._metrics |= self._journeys.published(parts.publisher.version)
        parts.ledger.hold(pointers, "trained")
        self.training_on = []
        if parts.setting.spec.trainer.ack == "update":
            parts.ledger.release()
        self._evaluate_or_checkpoint(force=force)
        parts.ledger.flush()
        parts.reader.loading([])
        self._tell()

    def trained(self, metrics: dict[str, float]) -> None:
        """There was an update, and these are its numbers."""
        self._metrics = metrics
        self._busy_at = self.parts.clock.monotonic()

    def checkpoint(self) -> bool:
        """Write a checkpoint, then ack what it covers; False when the disk does not take it now.

        Raises:
            SeatLost: checked with the broker before the file is written, where it answers, and with the files before
                it is there and after.
        """
        parts = self.parts
        if parts.clock.monotonic() < self._save_after:
            return False
        parts.seat.check_well()
        parts.seat.doing("checkpoint")
        began = parts.clock.monotonic()
        if (path := self._written(began)) is None:
            return False
        parts.saver.check_newest()
        self._spoken.clear()
        self._saved_update = parts.progress.update
        parts.ledger.release()
        parts.ledger.flush()
        if parts.evaluator is None:
            self.evaluations.mark_best_of_training(path.name)
        parts.saver.prune(parts.evaluator.checkpoint if parts.evaluator else "")
        parts.saver.tell_kept(parts.training.keep)
        self._busy_at = parts.clock.monotonic()
        self._checkpoint_s = self._busy_at - began
        return True

    def _written(self, began: float) -> Path | None:
        """A checkpoint of all that is trained; None when the disk does not take it, which is said and tried again."""
        parts = self.parts
        extra = {
            "owed": parts.ledger.owed(),
            "eval": parts.evaluator.state() if parts.evaluator else {},
            "metrics": self._metrics,
            "broker": parts.broker_run,
        }
        try:
            return parts.saver.write(
                parts.progress,
                weights=parts.publisher.weights,
                learner=parts.training.state(),
                version=parts.publisher.version,
                marks=parts.ledger.marks(),
                partition=parts.partition,
                extra=extra,
            )
        except CheckpointError as error:
            self._save_after = began + SAVE_AGAIN_S
            log.error("cannot checkpoint, will again update=%d error=%s", parts.progress.update, error)
            self._say("error", f"cannot checkpoint: {error}")
            return None

    def begin_evaluation(self) -> bool:
        """Have the eval shards play the newest weights; False when that cannot be now."""
        parts = self.parts
        if parts.evaluator is None or not parts.publisher.settle():
            return False
        if self._saved_update != parts.progress.update and not self.checkpoint():
            return False
        name = parts.saver.last.name if parts.saver.last else ""
        return parts.evaluator.begin(parts.publisher.version, parts.progress.update, name)

    def _evaluate_or_checkpoint(self, *, force: bool) -> None:
        parts, trainer = self.parts, self.parts.setting.spec.trainer
        if parts.evaluator is not None and parts.evaluator.is_due(parts.progress.update) and self.begin_evaluation():
            return
        if force or parts.progress.update - self._saved_update >= trainer.checkpoint_every:
            self.checkpoint()

    def _tell(self) -> None:
        flow = flow_metrics(self.flow()) | {"checkpoint_seconds": self._checkpoint_s}
        self.parts.report.send(self.parts.progress.update, self._metrics | flow | self.parts.report.usage())
        pause_if_asked(self.parts)

    def _say(self, level: str, message: str) -> None:
        """Into the experiment's log, once for each message until things are well again."""
        if message not in self._spoken:
            self._spoken.add(message)
            self.parts.report.tell(level, message)
