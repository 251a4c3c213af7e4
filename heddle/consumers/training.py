"""Training: a learner and the tensors it is given, from decoded batches to metrics.

It never reads, publishes or saves. Whatever the learner, the user's code maybe, raises comes out as ExperimentFailed,
with the update and the shards in its one line.
"""

import copy
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from heddle.checkpoint import Checkpoint
from heddle.consumers.assemble import Assembler
from heddle.consumers.budget import progress as budget_progress
from heddle.consumers.evaluation import note_episodes
from heddle.consumers.learners import Learner, TrainBatch, make_learner, resolve_device
from heddle.consumers.learners.gpu import Gpu
from heddle.consumers.learners.guard import Hearsay
from heddle.consumers.learners.suspects import suspect
from heddle.consumers.measured import NoMetric, numbers_of
from heddle.consumers.oddities import where_of
from heddle.consumers.progress import Progress
from heddle.consumers.reader import Loaded
from heddle.consumers.setting import Setting
from heddle.consumers.sides import Sides
from heddle.errors import CheckpointError, EnvError, ExperimentFailed, HeddleError
from heddle.policies.base import Arrays
from heddle.policies.weights import WeightsError, check
from heddle.spec.objects import describe_error, user_errors

LEARNER_FILES = "replay"
"""Folder in an experiment's own for files that its learner keeps."""

log = logging.getLogger("heddle.trainer")


class Training:
    """The learner of one experiment on its device.

    Args:
        device: "cpu", "cuda" or "auto", instead of what the spec says.
        home: the experiment's own folder: a learner that keeps files of its own, as a replay buffer is, does so there.
        seat_epoch: of the seat that it trains under.

    Raises:
        EnvError: the learner cannot be made, or cannot train this policy.
    """

    def __init__(
        self, setting: Setting, *, device: str | None = None, home: Path | None = None, seat_epoch: int = 0
    ) -> None:
        self._spec = setting.spec
        self._experiment = setting.stored.experiment
        self._sides, self._complaint = Sides.of(setting.spec.policy), ""
        self._device = resolve_device(device or setting.spec.trainer.device)
        self._gpu = Gpu(self._device)
        self.learner: Learner = make_learner(
            setting.spec, setting.policy, device=self._device, seed=setting.spec.experiment.seed
        )
        self._assembler = Assembler(setting.layout, device=self._device)
        self._hearsay = Hearsay(setting.spec.trainer)
        self._update, self._first = 0, self._lasting(self._weights())
        if home is not None and callable(opened := getattr(self.learner, "open", None)):
            opened(home / LEARNER_FILES, seat_epoch)
        log.info("learning with learner=%s device=%s", setting.spec.trainer.learner, self._device)

    @property
    def min_steps(self) -> int:
        """Fewest steps an update can be given."""
        return self.learner.min_steps

    def resume(self, checkpoint: Checkpoint) -> None:
        """Go on where a checkpoint stands; what it says of files of the learner's counts in its own experiment only.

        Raises:
            CheckpointError: it belongs to another learner or policy.
        """
        meta = dict(checkpoint.learner_meta)
        if checkpoint.experiment != self._experiment and isinstance(replay := meta.get("replay"), dict):
            meta["replay"] = {name: value for name, value in replay.items() if name != "files"}
            log.info("begins with an empty replay buffer, that of experiment=%s stays there", checkpoint.experiment)
        try:
            with self._in("load"):
                self.learner.set_weights(checkpoint.weights)
                self.learner.load(checkpoint.learner, meta)
        except HeddleError as error:
            raise CheckpointError(f"cannot go on from update {checkpoint.update}: {error}") from error
        self._update, self._first = checkpoint.update, self._lasting(self._weights())

    def update(self, batches: Sequence[Loaded], progress: Progress) -> dict[str, float]:
        """One update on these batches; `progress` counts it. The learner's metrics.

        Raises:
            ExperimentFailed: the learner raised.
        """
        where = where_of(progress.update + 1, [item.pointer.shard for item in batches])
        share = self._share(progress)
        assembled = self._assemble(batches)
        try:
            given = self.learner.update(assembled, share)
        except (ExperimentFailed, EnvError) as error:
            raise ExperimentFailed(f"{where}: {error}{suspect(assembled)}") from error
        except user_errors() as error:  # the learner may be anybody's code
            who = f"learner {self._spec.trainer.learner}"
            raise ExperimentFailed(f"{where}: {who} raised {describe_error(error)}{suspect(assembled)}") from error
        try:
            metrics = numbers_of(given)
        except NoMetric as error:
            raise ExperimentFailed(f"{where}: learner {self._spec.trainer.learner} returned {error}") from error
        told = self._asked()
        try:
            told = told or self._hearsay.objection(metrics)
        except ExperimentFailed as error:
            raise ExperimentFailed(f"{where}: {error}{suspect(assembled)}") from error
        if told:
            self._complaint = f"{where}: {told}{suspect(assembled)}"
        progress.add_batches(batches=len(batches), steps=sum(item.pointer.steps for item in batches))
        self._update = progress.update
        episodes = note_episodes(progress, [item.segments for item in batches], self._sides)
        return metrics | episodes | self._device_metrics()

    def probe(self, loaded: Loaded, progress: Progress) -> None:
        """Learn from one batch alone and forget it again: a batch that kills the process does so here.

        What it merely raises is left to the update that it will be part of. A learner may offer `probe`, which forgets
        by itself what `state` would be long about; else its state is taken and given back.

        Raises:
            ExperimentFailed: the learner cannot be put back to where it was.
        """
        if loaded.pointer.kind != "train" or loaded.pointer.steps < self.min_steps:
            return
        own = getattr(self.learner, "probe", None)
        if callable(own):
            self._try(own, loaded, progress)
            return
        try:
            weights, state = self.learner.get_weights(), self.state()
            self._try(self.learner.update, loaded, progress)
            self.learner.set_weights(weights)
            self.learner.load(*state)
        except user_errors() as error:  # the learner may be anybody's code
            who = f"learner {self._spec.trainer.learner}"
            raise ExperimentFailed(f"{who} cannot go back to where it was: {describe_error(error)}") from error

    def _try(self, learn: Callable[[TrainBatch, float], object], loaded: Loaded, progress: Progress) -> None:
        try:
            learn(self._assemble([loaded]), self._share(progress))
        except user_errors() as error:  # noqa: BLE001  only a death counts here; the learner may be anybody's code
            log.info("a suspect raised when probed shard=%d error=%s", loaded.pointer.shard, describe_error(error))
        self._asked()  # of what is forgotten again, nobody needs to hear

    def _device_metrics(self) -> dict[str, float]:
        """What it holds on its device, and how busy that is; {} where that is no GPU."""
        return self._gpu.metrics()

    def complaint(self) -> str:
        """Why the experiment shall pause after the last update, told once; "" for nothing."""
        found, self._complaint = self._complaint, ""
        return found

    def _asked(self) -> str:
        """What the learner has to say of the update that it has just done."""
        ask = getattr(self.learner, "complaint", None)
        with self._in("complaint"):
            return str(ask()) if callable(ask) else ""

    def weights(self) -> Arrays:
        """Of the policy, copies.

        Raises:
            ExperimentFailed: the learner raised, or gave others than it began with; nobody could load those.
        """
        weights = self._weights()
        try:
            check(self._lasting(weights), self._first)
        except WeightsError as error:
            who = f"learner {self._spec.trainer.learner}"
            raise ExperimentFailed(
                f"update {self._update}: {who} gave other weights than it began with: {error}"
            ) from error
        return weights

    def _lasting(self, weights: Arrays) -> Arrays:
        """Those whose names stay: of a group that past versions play there are more from update to update."""
        past = tuple(f"{group.name}/" for group in self._spec.policy.groups if group.past_of is not None)
        return {name: array for name, array in weights.items() if not name.startswith(past)}

    def _weights(self) -> Arrays:
        with self._in("get_weights"):
            return {name: np.asarray(array) for name, array in self.learner.get_weights().items()}

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        """The learner's, copies. Raises ExperimentFailed where it raises, or gives what no checkpoint can hold."""
        with self._in("state"):
            tensors, meta = self.learner.state()
            json.dumps(meta)
            return _copied(tensors), copy.deepcopy(meta)

    @contextmanager
    def _in(self, method: str) -> Iterator[None]:
        """In it the learner, anybody's code, is at `method`; what it raises there names it and the update."""
        try:
            yield
        except HeddleError:
            raise
        except user_errors() as error:
            who = f"learner {self._spec.trainer.learner}"
            reason = f"update {self._update}: {who} raised in {method}: {describe_error(error)}"
            raise ExperimentFailed(reason) from error

    def keep(self, metas: Sequence[Mapping[str, Any]]) -> None:
        """These are the learner's values in all checkpoints on disk: files of its own that none names can go."""
        if callable(keep := getattr(self.learner, "keep", None)):
            try:
                keep(metas)
            except user_errors() as error:  # noqa: BLE001  old files are no trouble with training
                log.warning("the learner cannot delete old files error=%s", describe_error(error))

    def _assemble(self, batches: Sequence[Loaded]) -> TrainBatch:
        pointers = [item.pointer for item in batches]
        return self._assembler.assemble(
            [item.segments for item in batches],
            [pointer.shard for pointer in pointers],
            [pointer.epoch for pointer in pointers],
        )

    def _share(self, progress: Progress) -> float:
        return budget_progress(self._spec.budget, progress.spent(evaluated=self._spec.eval is not None))


def _copied(tensors: Mapping[str, Any]) -> Arrays:
    return {name: np.array(array) for name, array in tensors.items()}
