"""Weights & Biases: one run for the experiment, whose id is the experiment's; a row for each update.

W&B writes from a process of its own, and a row counts as recorded once it is in the run's file on disk, which is read
back: what was in memory when the processes were killed is sent again. Row numbers are updates, and W&B takes none
twice, nor one that is not above the last: of updates that were rolled back the first rows stay. Offline, each process
begins a folder of its own, all of one run.
"""

import contextlib
import os
from collections.abc import MutableMapping, Sequence
from pathlib import Path
from typing import Any

from heddle.consumers.tracking.base import in_short, library
from heddle.consumers.tracking.points import Ending, Place, Point, Subject
from heddle.consumers.tracking.wandb_files import RunFile, files_of
from heddle.errors import Denied, TrackerDown
from heddle.spec.tracking import Wandb

FLUSH_S = 1.0
INIT_S = 60.0
STEPS = "env_steps"


SERVICE = "WANDB_SERVICE"


def leave_service_of_others(environment: MutableMapping[str, str]) -> None:
    """W&B tells children of a process that uses it to write through that one's own writer, which ends with it: a
    tracker that a notebook started would lose what it sends, so it has a writer of its own."""
    whose = environment.get(SERVICE, "").split("-")[1:2]
    if whose and whose != [str(os.getpid())]:
        del environment[SERVICE]


class WandbRun:
    """A `Backend` that writes a run of Weights & Biases."""

    kind = "wandb"

    def __init__(self, settings: Wandb, subject: Subject) -> None:
        self._library: Any = library("wandb", "wandb")
        self._record: Any = library("wandb.proto.wandb_internal_pb2", "wandb").Record
        entity = f"{settings.entity}/" if settings.entity else ""
        self._folder = Path(settings.dir)
        self.where = f"{entity}{settings.project}, {settings.mode}, in {self._folder.absolute() / 'wandb'}"
        self._settings = settings
        self._subject = subject
        self._run: Any = None
        self._file: RunFile | None = None
        self._safe = -1
        self._in_hand = -1

    def open(self) -> bool:
        settings, subject = self._settings, self._subject
        with self._speaking("open the run"):
            self._folder.mkdir(parents=True, exist_ok=True)
            before = files_of(self._folder, subject.experiment)
            self._safe = max((row for path in before for row in RunFile(path, self._record).rows()), default=-1)
            os.environ.setdefault("WANDB_SILENT", "true")
            leave_service_of_others(os.environ)
            self._run = self._library.init(
                project=settings.project,
                entity=settings.entity,
                id=subject.experiment,
                name=subject.experiment,
                group=subject.group,
                tags=list(subject.tags) or None,
                config={**subject.spec, "heddle": subject.origin},
                mode=settings.mode,
                dir=str(self._folder),
                resume="allow",
                settings=self._quiet(),
            )
            self._run.define_metric("rl/*", step_metric=STEPS)
            self._run.define_metric("system/*", step_metric=STEPS)
            now = [path for path in files_of(self._folder, subject.experiment) if path not in before]
            self._file = RunFile(now[-1], self._record) if now else None
        self._safe = max(self._safe, int(self._run.step) - 1 if self._run.resumed else -1)
        self._in_hand = self._safe
        return self._safe >= 0

    @property
    def last(self) -> Place | None:
        return None

    def knows(self, point: Point) -> bool:
        return point.update <= self._safe or point.update < self._in_hand

    def add(self, points: Sequence[Point]) -> None:
        with self._speaking("send a row"):
            for point in points:
                row = {**point.values, STEPS: point.step, "_timestamp": point.time_ms / 1000}
                self._run.log(row, step=point.update)
                self._in_hand = max(self._in_hand, point.update)

    def kept(self, points: Sequence[Point]) -> list[Point]:
        with self._speaking("read the run's file"):
            self._look()
        return [point for point in points if point.update <= self._safe]

    def take_back(self, update: int, step: int) -> None:
        """W&B takes nothing back; rows of these updates stay as they were measured first."""

    def finish(self, ending: Ending) -> None:
        with self._speaking("end the run"):
            self._run.summary["ended"] = f"{ending.state}: {ending.reason}".rstrip(": ")
            if ending.checkpoint is not None:
                artifact = self._library.Artifact(f"checkpoint-{self._subject.experiment}", type="model")
                artifact.add_file(str(ending.checkpoint))
                self._run.log_artifact(artifact)
            run, self._run = self._run, None
            run.finish(exit_code=1 if ending.state == "failed" else 0)
            self._safe = self._in_hand

    def close(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            with contextlib.suppress(self._library.errors.Error, OSError):
                run.finish()
                self._look()

    # ---- inside

    def _look(self) -> None:
        """Which rows are on disk by now."""
        if self._file is not None:
            self._safe = max(self._file.rows(), default=self._safe)

    def _quiet(self) -> Any:
        """Nothing on the terminal, nothing about the host, no copy of anybody's code."""
        return self._library.Settings(
            console="off",
            disable_git=True,
            disable_code=True,
            save_code=False,
            init_timeout=INIT_S,
            x_disable_stats=True,
            x_save_requirements=False,
            x_transaction_log_flush_interval=FLUSH_S,
        )

    def _speaking(self, what: str) -> "_Speaking":
        return _Speaking(self._library, what)


class _Speaking:
    """Within it trouble with W&B is told in our words."""

    def __init__(self, library: Any, what: str) -> None:
        self._library = library
        self._what = what

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        errors = self._library.errors
        if isinstance(error, errors.AuthenticationError) or (error is not None and "api_key" in str(error)):
            raise Denied(f"W&B: {in_short(error)}; set WANDB_API_KEY, or `wandb login`, or use offline mode") from error
        if isinstance(error, errors.Error | OSError):
            raise TrackerDown(f"W&B: cannot {self._what}: {in_short(error)}") from error
