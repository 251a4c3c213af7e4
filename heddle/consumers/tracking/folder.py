"""The folder of a run as where metrics come from, for trackers that came too late for its broker.

It never speaks to a broker and never writes. What a tracker was given already the other side tells, so each process
begins at the first line; that two do so at once is kept from happening by nobody but that side.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heddle.broker.events import Metric
from heddle.broker.trackers import BEFORE
from heddle.consumers.curve_file import CURVE, ENDED, SPEC, read_metrics
from heddle.consumers.tracking.points import Subject
from heddle.errors import NotFound
from heddle.spec import spec_from_json
from heddle.spec.tracking import Track
from heddle.spec.write import to_toml

CUT_SHORT = "cut short: nobody wrote down how it ended"


def is_run(folder: Path) -> bool:
    """Whether a run left its metrics there."""
    return (folder / CURVE).is_file()


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run ended: what its trainer left will not change, whatever that is."""

    experiment: str
    state: str
    reason: str
    result: Mapping[str, Any]
    ended: bool = True


class RunFolder:
    """A `Source` of one experiment.

    Args:
        home: the run's folder; its name is the experiment's id.

    Raises:
        NotFound: an older version left it, which kept too little.
    """

    def __init__(self, home: Path) -> None:
        self.id = home.resolve().name
        self._home = home
        self._metrics = read_metrics(home / CURVE)
        self._place: dict[str, int] = {}
        if not (home / SPEC).is_file() or any(not one.entry_id for one in self._metrics):
            raise NotFound(f"{home} was left by an older version, which kept too little for trackers")

    # ---- a Source

    @property
    def trackers(self) -> "RunFolder":
        return self

    @property
    def experiments(self) -> "RunFolder":
        return self

    def close(self) -> None:
        """Nothing is held."""

    def status(self, experiment: str) -> Ended:
        told = self._ending()
        state, reason = str(told.get("state", "stopped")), str(told.get("reason", CUT_SHORT))
        return Ended(experiment, state, reason, dict(told.get("result") or {}))

    def claim(self, experiment: str, name: str, process: str, *, told: Mapping[str, Any]) -> str | None:
        return None

    def leave(self, experiment: str, name: str, process: str, *, told: Mapping[str, Any]) -> None:
        """Nobody is told."""

    def take_over(self, experiment: str, name: str) -> list[Metric]:
        self._place[name] = 0
        return []

    def read(self, experiment: str, name: str, *, count: int, block_ms: int) -> list[Metric]:
        place = self._place.get(name, 0)
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
        spec, raw = spec_from_json(self._spec), json.loads(self._spec)
        return Subject(
            experiment=self.id,
            name=spec.experiment.name,
            group=spec.experiment.group,
            tags=spec.experiment.tags,
            spec=raw,
            toml=to_toml(raw),
            code=str(self._ending().get("code", "")),
            created_ms=self._metrics[0].time_ms if self._metrics else 0,
        )

    @property
    def _spec(self) -> str:
        return (self._home / SPEC).read_text(encoding="utf-8")

    def _ending(self) -> dict[str, Any]:
        try:
            told = json.loads((self._home / ENDED).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        return told if isinstance(told, dict) else {}
