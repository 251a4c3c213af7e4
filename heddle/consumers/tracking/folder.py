"""The folder of a run as where metrics come from, for trackers that came too late for its broker, or cannot reach it.

A run that goes on there is followed until it is over. It never speaks to a broker and never writes. What a tracker was
given already the other side tells, so each process begins at the first line; that two do so at once is kept from
happening by nobody but that side.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heddle.broker.metrics import Metric
from heddle.broker.trackers import BEFORE
from heddle.clock import Clock, SystemClock
from heddle.consumers.curve_file import CURVE, ENDED, SPEC, is_written, read_metrics_from, read_origin
from heddle.consumers.tracking.points import Subject, place_of
from heddle.errors import Gone, NotFound
from heddle.spec import spec_from_json
from heddle.spec.tracking import Track
from heddle.spec.write import to_toml

CUT_SHORT = "cut short: nobody wrote down how it ended"


def is_run(folder: Path) -> bool:
    """Whether a run left its metrics there."""
    return (folder / CURVE).is_file()


GRACE_S = 30.0
"""A run whose trainer was seen at work and is not there has so long to be started again, or to say how it ended."""


@dataclass(frozen=True, slots=True)
class Stands:
    """How a run is, as far as its folder tells."""

    experiment: str
    state: str
    reason: str
    result: Mapping[str, Any]
    ended: bool


class RunFolder:
    """A `Source` of one experiment.

    Args:
        home: the run's folder; its name is the experiment's id.

    Raises:
        NotFound: an older version left it, which kept too little.
    """

    def __init__(self, home: Path, *, clock: Clock | None = None) -> None:
        self.id = home.resolve().name
        self._home = home
        self._clock = clock or SystemClock()
        self._metrics: list[Metric] = []
        self._file, self._read_to = 0, 0
        self._place: dict[str, int] = {}
        self._alive_at: float | None = None
        self._look()
        if not (home / SPEC).is_file() or any(not one.entry_id for one in self._metrics):
            raise NotFound(f"{home} was left by an older version, which kept too little for trackers")

    # ---- a Source

    @property
    def trackers(self) -> "RunFolder":
        return self

    @property
    def experiments(self) -> "RunFolder":
        return self

    @property
    def events(self) -> "RunFolder":
        return self

    def close(self) -> None:
        """Nothing is held."""

    def log(self, experiment: str | None, role: str, worker: str | None, level: str, message: str) -> None:
        """Nobody reads a log here."""

    def fed_by(self, experiment: str, name: str) -> str:
        return ""

    def status(self, experiment: str) -> Stands:
        told = self._ending()
        if not told and self._goes_on():
            return Stands(experiment, "running", "", {}, ended=False)
        state, reason = str(told.get("state", "stopped")), str(told.get("reason", CUT_SHORT))
        return Stands(experiment, state, reason, dict(told.get("result") or {}), ended=True)

    def _goes_on(self) -> bool:
        """Its trainer is there, or was a moment ago."""
        now = self._clock.monotonic()
        if is_written(self._home):
            self._alive_at = now
        return self._alive_at is not None and now - self._alive_at < GRACE_S

    def _look(self) -> bool:
        """Take in what was written since; whether it has to be told apart from before, for some was taken back."""
        path = self._home / CURVE
        try:
            seen = path.stat()
        except FileNotFoundError:
            raise Gone(f"{path} is not there any more") from None
        if seen.st_ino == self._file and seen.st_size >= self._read_to:
            fresh, self._read_to = read_metrics_from(path, self._read_to)
            self._metrics += fresh
            return False
        is_other = self._file != 0
        self._metrics, self._read_to = read_metrics_from(path, 0)
        self._file = seen.st_ino
        return is_other

    def claim(self, experiment: str, name: str, process: str, *, told: Mapping[str, Any]) -> str | None:
        return None

    def leave(self, experiment: str, name: str, process: str, *, told: Mapping[str, Any]) -> None:
        """Nobody is told."""

    def take_over(self, experiment: str, name: str) -> list[Metric]:
        self._place[name] = 0
        return []

    def read(self, experiment: str, name: str, *, count: int, block_ms: int) -> list[Metric]:
        place = self._place.get(name, 0)
        last = place_of(self._metrics[place - 1].entry_id) if place else None
        if self._look():
            place = 0 if last is None else sum(1 for one in self._metrics if place_of(one.entry_id) <= last)
        found = self._metrics[place : place + count]
        self._place[name] = place + len(found)
        return found

    def done(self, experiment: str, name: str, ids: Sequence[str]) -> None:
        """The other side knows."""

    def rewind(self, experiment: str, name: str) -> None:
        self._place[name] = 0

    def before(self, experiment: str, entry_id: str) -> list[Metric]:
        place = next(place for place, one in enumerate(self._metrics) if one.entry_id == entry_id)
        return self._metrics[max(0, place - BEFORE) : place][::-1]

    # ---- what trackers are told first

    @property
    def track(self) -> Track | None:
        """What its spec names. Raises SpecError."""
        return spec_from_json(self._spec).track

    @property
    def subject(self) -> Subject:
        """Raises SpecError."""
        spec, raw, origin = spec_from_json(self._spec), json.loads(self._spec), read_origin(self._home)
        return Subject(
            experiment=self.id,
            name=spec.experiment.name,
            group=spec.experiment.group,
            tags=spec.experiment.tags,
            spec=raw,
            toml=to_toml(raw),
            code=origin.get("code") or str(self._ending().get("code", "")),
            created_ms=self._metrics[0].time_ms if self._metrics else 0,
            commit=origin.get("commit", ""),
        )

    @property
    def _spec(self) -> str:
        return (self._home / SPEC).read_text(encoding="utf-8")

    def _ending(self) -> dict[str, Any]:
        try:
            told = json.loads((self._home / ENDED).read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):  # not there, or an older version just writes it
            return {}
        return told if isinstance(told, dict) else {}
