"""The saver: a trainer's checkpoints in a directory, which of them is the best, and which one to resume.

It never acks: it says what is durable, and the trainer draws the conclusion.
"""

import json
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from heddle import checkpoint as files
from heddle.checkpoint import Checkpoint
from heddle.consumers.marks import Mark
from heddle.consumers.progress import Progress
from heddle.errors import CheckpointError, SeatLost
from heddle.policies.base import Arrays
from heddle.policies.weights import WeightsError, read_metadata
from heddle.spec import ExperimentSpec

log = logging.getLogger("heddle.trainer")

DIRECTORY = "checkpoints"


class Saver:
    """Writes checkpoints as the holder of one seat epoch.

    Attributes:
        last: the newest file that this trainer wrote or resumed; None before there is one.
        skipped: newer files that were not resumed, each with the reason.
        resumed: what the checkpoint that was resumed keeps beside its arrays; {} when there was none.
        always: more of that, the same in each checkpoint that is written.

    Args:
        home: folder of the experiment.
        spaces: JSON values of the spaces, so that a file alone is enough to play.
    """

    def __init__(
        self, home: Path, experiment: str, spec: ExperimentSpec, spaces: Mapping[str, Any], *, seat_epoch: int
    ) -> None:
        self.directory = home / DIRECTORY
        self.last: Path | None = None
        self.skipped: tuple[str, ...] = ()
        self.resumed: dict[str, Any] = {}
        self.always: dict[str, Any] = {}
        self._home = home
        self._experiment = experiment
        self._spec = spec
        self._spaces = dict(spaces)
        self._seat_epoch = seat_epoch
        self._newest = ""  # name of the newest file that this trainer knows, by which it trains: read or written
        self._metas: dict[tuple[str, int], dict[str, Any]] = {}  # by name and time of change

    def resume(self) -> Checkpoint | None:
        """This experiment's newest checkpoint that is whole; None when there is none. With the fence up only.

        Raises:
            CheckpointError: the directory cannot be read.
        """
        files.sweep(self.directory, self._seat_epoch)
        self._newest = self._newest_there()
        found = files.find(self.directory, experiment=self._experiment)
        self.last, self.skipped = found.path, found.skipped
        self.resumed = dict(found.checkpoint.extra) if found.checkpoint is not None else {}
        return found.checkpoint

    def resume_older(self, reason: str) -> Checkpoint | None:
        """The newest whole checkpoint before the one that was resumed last, with which nobody can go on for `reason`.

        Raises:
            CheckpointError: the directory cannot be read.
        """
        assert self.last is not None
        log.warning("skipped checkpoint path=%s reason=%s", self.last, reason)
        found = files.find(self.directory, experiment=self._experiment, below=self.last.name)
        self.skipped = (*self.skipped, f"{self.last.name}: {reason}", *found.skipped)
        self.last = found.path
        self.resumed = dict(found.checkpoint.extra) if found.checkpoint is not None else {}
        return found.checkpoint

    def check_newest(self) -> None:
        """Raises SeatLost when a trainer with a higher seat epoch has written here.

        A broker that lost its tail may have forgotten that seat and takes this trainer for the holder again. The other
        one's checkpoint is what the next trainer resumes, and nothing may be acked that it does not hold.
        """
        highest = files.highest_epoch(self.directory)
        if highest > self._seat_epoch:
            raise SeatLost(f"{self._experiment}: a trainer with seat epoch {highest} has written checkpoints since")

    def _check_known(self) -> None:
        """Raises SeatLost when another trainer has written a newer file than this one knows.

        The other side of `check_newest`: a broker that forgot this seat may have let an earlier holder go on, train,
        checkpoint and ack. This trainer's file has the higher name, would be resumed, and does not hold what was
        acked. Asked while the unfinished file is there already: either this one sees the other's file here, or the
        other one sees this one's epoch before it acks.
        """
        if (newest := self._newest_there()) > self._newest:
            raise SeatLost(f"{self._experiment}: another trainer has written {newest} since this one took the seat")

    def _newest_there(self) -> str:
        return next((path.name for path in files.listing(self.directory)), "")

    def continued(self, other: str) -> Checkpoint:
        """The newest checkpoint of another experiment, kept beside this one's.

        Raises:
            CheckpointError: there is none.
        """
        directory = self._home.parent / other / DIRECTORY
        found = files.newest(directory, experiment=other)
        if found is None:
            raise CheckpointError(f"cannot continue {other}: no checkpoint of it in {directory}")
        return found

    def write(
        self,
        progress: Progress,
        *,
        weights: Arrays,
        learner: tuple[Arrays, dict[str, Any]],
        version: int,
        marks: Mapping[int, Mark],
        partition: int,
        extra: Mapping[str, Any],
    ) -> Path:
        """Write one checkpoint; durable when this returns.

        Raises:
            CheckpointError: the directory cannot be written.
            SeatLost: another trainer has written there since this one looked; this one's file is not there.
        """
        tensors, meta = learner
        made = Checkpoint(
            experiment=self._experiment,
            spec_json=self._spec.canonical_json(),
            spec_sha256=self._spec.sha256(),
            spaces=self._spaces,
            seat_epoch=self._seat_epoch,
            update=progress.update,
            policy_version=version,
            env_steps=progress.env_steps,
            episodes=progress.episodes,
            weights=weights,
            learner=tensors,
            learner_meta=meta,
            counters=progress.counters(),
            marks={f"{partition}/{shard}": mark.to_json() for shard, mark in marks.items()},
            extra={**progress.extra(), **self.always, **extra},
            mean_return=progress.mean_return,
            best_return=progress.best_return,
        )
        self.last = files.save(self.directory, made, check=self._check_known)
        self._newest = max(self._newest, self.last.name)
        with suppress(OSError):  # then it is read back
            self._metas[_stamp(self.last)] = meta
        return self.last

    def prune(self, protect: str = "") -> None:
        """Delete old checkpoints but the file named `protect`; trouble with that is not trouble with training."""
        guarded = {self.directory / protect} if protect else ()
        try:
            files.prune(self.directory, self._spec.trainer.checkpoints_kept, guarded)
        except (OSError, CheckpointError) as error:
            log.warning("cannot delete old checkpoints directory=%s error=%s", self.directory, error)

    def tell_kept(self, keep: Callable[[list[Mapping[str, Any]]], None]) -> None:
        """Hand over the learner's values in all checkpoints that are there, whoever wrote them.

        Only of a checkpoint that nobody can resume they are left out; where one cannot be read now, nothing is told.
        """
        try:
            found = {_stamp(path): path for path in files.listing(self.directory)}
            known = self._metas
            self._metas = {key: known[key] if key in known else _learner_meta(path) for key, path in found.items()}
        except FileNotFoundError:
            return  # somebody deletes old ones right now: it is told after the next checkpoint
        except (OSError, CheckpointError) as error:
            log.warning("cannot look through checkpoints directory=%s error=%s", self.directory, error)
            return
        keep(list(self._metas.values()))

    def mark_best(self, name: str) -> bool:
        """Make the file `name` the best one; False when it is not there any more."""
        path = self.directory / name
        if not name or not path.exists():
            return False
        try:
            files.mark_best(self.directory, path)
        except OSError as error:
            log.warning("cannot mark the best checkpoint path=%s error=%s", path, error)
            return False
        return True

    @property
    def best(self) -> Path | None:
        """The best checkpoint; None before there is one."""
        path = self.directory / files.BEST
        return path if path.exists() else None


def marks_of(checkpoint: Checkpoint, partition: int) -> dict[int, Mark]:
    """The marks of one partition.

    Raises:
        CheckpointError: they cannot be read.
    """
    try:
        found = {}
        for name, value in checkpoint.marks.items():
            part, _, shard = name.partition("/")
            if int(part) == partition:
                found[int(shard)] = Mark.from_json(value)
        return found
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"the marks of update {checkpoint.update} cannot be read: {error}") from error


def _stamp(path: Path) -> tuple[str, int]:
    return path.name, path.stat().st_mtime_ns


def _learner_meta(path: Path) -> dict[str, Any]:
    """The learner's values in a checkpoint, without its tensors; {} where it is torn. Raises OSError."""
    with path.open("rb") as file:
        head = file.read(8)
        head += file.read(min(int.from_bytes(head, "little"), files.HEADER_CAP_BYTES))
    try:
        found = json.loads(read_metadata(head, files.HEADER_CAP_BYTES)["manifest"])["learner_meta"]
    except (WeightsError, ValueError, KeyError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}
