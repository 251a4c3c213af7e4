"""The loop of an offline run: a seated trainer that reads recorded experience itself, from the seat to the end.

It never reads training batches from the stream: nobody plays them. Evaluations, publishing, checkpoints, commands and
endings are those of every run.
"""

import logging
from dataclasses import replace
from pathlib import Path

from heddle.broker.experience_types import Pointer
from heddle.broker.types import Ctl
from heddle.consumers.data.source import DataSource
from heddle.consumers.loop import Loop
from heddle.consumers.parts import Parts
from heddle.consumers.reader import Loaded
from heddle.consumers.report import progress_metrics
from heddle.consumers.restoring import CheckpointMissing
from heddle.consumers.setting import Setting
from heddle.errors import DataError, ExperimentFailed
from heddle.layout import Segments
from heddle.policies.weights import not_finite
from heddle.spec import ExperimentSpec

log = logging.getLogger("heddle.trainer")

READ_PATIENCE_S = 30.0
"""So long a recording that cannot be read is tried again: a folder on the network may be away for a moment."""
FINGERPRINT = "data"
"""Under this name a checkpoint keeps which files it was trained on."""


class RecordingChanged(CheckpointMissing):
    """The recording that a run goes on with is not the one that it began with: its batches would be others."""


def open_source(setting: Setting) -> DataSource:
    """The recording that a spec trains from. Raises DataError."""
    spec = setting.spec
    if spec.data is None:
        raise DataError("the spec has no [data]")
    return DataSource(
        Path(spec.data.path),
        setting.observation,
        setting.action,
        setting.policy,
        segment_steps=spec.rollout.steps,
        batch_steps=spec.trainer.batch_steps,
        seed=spec.experiment.seed,
        min_return=spec.data.min_return,
    )


def offline_setting(setting: Setting, source: DataSource) -> Setting:
    """What a learner of recorded experience is told: the layout of its batches, and passes as updates."""
    return replace(setting, layout=source.layout, spec=_in_updates(setting.spec, source))


def _in_updates(spec: ExperimentSpec, source: DataSource) -> ExperimentSpec:
    """The spec with a budget of passes told in updates."""
    passes = spec.budget.passes
    if passes is None:
        return spec
    limits = [passes * source.batches_per_pass, *([spec.budget.updates] if spec.budget.updates else [])]
    return spec.model_copy(update={"budget": spec.budget.model_copy(update={"updates": min(limits)})})


class OfflineLoop(Loop):
    """Trains on a recording until the budget is used, somebody says stop, or this process shall end.

    Which batch comes next follows from the number of updates alone, so a trainer that was killed goes on exactly
    where its checkpoint stands.
    """

    def __init__(self, parts: Parts, source: DataSource) -> None:
        """Raises RecordingChanged: the updates that the checkpoint holds were made from other files."""
        parts.setting = replace(parts.setting, spec=_in_updates(parts.setting.spec, source))
        super().__init__(parts)
        self._source, self._unread_since = source, -1.0
        self._expect_the_same_files()
        parts.saver.always[FINGERPRINT] = source.fingerprint

    def _expect_the_same_files(self) -> None:
        then, now = self.parts.saver.resumed.get(FINGERPRINT), self._source.fingerprint
        if then is not None and then != now:
            data = self.parts.setting.spec.data
            folder = data.path if data else ""
            raise RecordingChanged(
                f"{self.parts.experiment} was trained on files {then}, and {folder} holds files {now}"
                f" (update {self.parts.progress.update}): put back what was there, or start a new run on what is"
            )

    def begin(self) -> None:
        super().begin()
        report, source = self.parts.report, self._source
        data = self.parts.setting.spec.data
        told = f"trains offline from {data.path if data else ''}: {source.steps} steps"
        report.tell("info", f"{told}, {source.batches_per_pass} updates a pass, files {source.fingerprint}")

    def _turn(self, ctl: Ctl) -> bool:
        """One update on the next recorded batch."""
        parts, number = self.parts, self.parts.progress.update
        began = parts.clock.monotonic()
        try:
            segments = self._source.batch(number)
        except DataError as error:
            return self._try_again(error)
        self._unread_since = -1.0
        read_s = parts.clock.monotonic() - began
        parts.seat.doing("update")
        metrics = parts.training.update([Loaded(_pointer(number, segments), segments)], parts.progress)
        weights = parts.training.weights()
        if (spoilt := not_finite(weights)) is not None:
            raise ExperimentFailed(f"update {parts.progress.update}: the learner made {spoilt} infinite or NaN")
        for odd in self._oddities.among(metrics):
            parts.report.tell("warning", f"update {parts.progress.update}: {odd}")
        now = parts.clock.monotonic()
        metrics |= {"update_seconds": now - began - read_s, "read_seconds": read_s}
        metrics["passes"] = parts.progress.update / self._source.batches_per_pass
        self.trained(metrics | parts.report.rate(parts.progress.env_steps) | progress_metrics(parts.progress))
        parts.publisher.publish(weights, parts.progress.update)
        self._evaluate_or_checkpoint(force=False)
        parts.ledger.flush()
        self._tell()
        return True

    def _try_again(self, error: DataError) -> bool:
        """There is nothing to train on now. Raises ExperimentFailed when that lasts."""
        now = self.parts.clock.monotonic()
        if self._unread_since < 0:
            self._unread_since = now
        where = f"update {self.parts.progress.update + 1}: {error}"
        if now - self._unread_since >= READ_PATIENCE_S:
            raise ExperimentFailed(f"{where} (tried again for {READ_PATIENCE_S:g} s)") from error
        self._say("warn", f"{where}; it is tried again for {READ_PATIENCE_S:g} s")
        return False


def _pointer(number: int, segments: Segments) -> Pointer:
    """What names a batch of a recording: the update that it is for. It stands in no stream."""
    return Pointer(
        *("", 0, number + 1, "", number + 1, "train", segments.version_min, segments.version_max),
        *(segments.rows, segments.num_steps, 0, 0, ""),
    )
