"""What a tracker stands between: where metrics come from, and its own side, one module each with its library.

It never reads the metrics: the loop in `tracker.py` does, and calls both from one thread.
"""

import importlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from heddle.broker.metrics import Metric
from heddle.consumers.tracking.points import Ending, Place, Point
from heddle.errors import MissingExtra

_USER = re.compile(r"(//)[^/@\s]*@")


class Metrics(Protocol):
    """Metrics of experiments that are given out once to each tracker, as `heddle.broker.trackers` says it."""

    def claim(self, experiment: str, name: str, process: str, *, told: Mapping[str, Any]) -> str | None: ...

    def fed_by(self, experiment: str, name: str) -> str: ...

    def leave(self, experiment: str, name: str, process: str, *, told: Mapping[str, Any]) -> None: ...

    def take_over(self, experiment: str, name: str) -> list[Metric]: ...

    def read(self, experiment: str, name: str, *, count: int, block_ms: int) -> list[Metric]: ...

    def done(self, experiment: str, name: str, ids: Sequence[str]) -> None: ...

    def rewind(self, experiment: str, name: str) -> None: ...

    def before(self, experiment: str, entry_id: str) -> list[Metric]: ...


class Standing(Protocol):
    """How an experiment is."""

    @property
    def experiment(self) -> str: ...

    @property
    def state(self) -> str: ...

    @property
    def reason(self) -> str: ...

    @property
    def result(self) -> Mapping[str, Any]: ...

    @property
    def ended(self) -> bool: ...


class Standings(Protocol):
    """How experiments are."""

    def status(self, experiment: str) -> Standing: ...


class Telling(Protocol):
    """The log that everybody reads."""

    def log(self, experiment: str | None, role: str, worker: str | None, level: str, message: str) -> None: ...


class Source(Protocol):
    """Where metrics come from: a broker, or the folder of a run whose broker is gone."""

    @property
    def trackers(self) -> Metrics: ...

    @property
    def experiments(self) -> Standings: ...

    @property
    def events(self) -> Telling: ...

    def close(self) -> None: ...


class Backend(Protocol):
    """One run at one tracker.

    Attributes:
        kind: tensorboard, wandb or mlflow.
        where: in words without credentials; the same words are the same place.
        last: the last entry that it has; None for none, or where that cannot be told.
    """

    kind: str
    where: str

    @property
    def last(self) -> Place | None: ...

    def open(self) -> bool:
        """Begin the run, or go on with it; False when it was not there, so that everything is wanted again.

        Raises:
            TrackerDown: not now.
        """
        ...

    def knows(self, point: Point) -> bool:
        """Whether it was recorded before, by this process or by one that was killed."""
        ...

    def add(self, points: Sequence[Point]) -> None:
        """Record points, in order. Raises TrackerDown; some of them may be recorded then."""
        ...

    def kept(self, points: Sequence[Point]) -> list[Point]:
        """Those of the points added that are safe from a kill of this process. Raises TrackerDown."""
        ...

    def take_back(self, update: int, step: int) -> None:
        """What was measured after this update and step was rolled back. Raises TrackerDown."""
        ...

    def finish(self, ending: Ending) -> None:
        """The experiment is over, and this is all. Raises TrackerDown."""
        ...

    def close(self) -> None:
        """Let go; another process may go on. Never raises."""
        ...


def library(module: str, extra: str) -> Any:
    """An optional library. Raises MissingExtra, with what to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        if error.name is not None and module.partition(".")[0] != error.name.partition(".")[0]:
            raise  # it is here, and something that it needs is broken
        raise MissingExtra(f"tracking with {extra}", extra) from error


def in_short(error: BaseException) -> str:
    """An error of a library in one line, without who is named in an address."""
    said = " ".join(str(error).split()) or type(error).__name__
    return _USER.sub(r"\1***@", said)[:300]
