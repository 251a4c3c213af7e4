"""What a tracker's own side must do; one module each does it with its library.

It never reads the stream: the loop in `tracker.py` does, and calls these from one thread.
"""

import importlib
import re
from collections.abc import Sequence
from typing import Any, Protocol

from heddle.consumers.tracking.points import Ending, Place, Point
from heddle.errors import MissingExtra

_USER = re.compile(r"(//)[^/@\s]*@")


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
