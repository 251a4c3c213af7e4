"""The curve file: what each update measured, the spec and the end, beside the checkpoints, for when the broker is gone.

It is for people and trackers: no role reads it, and trouble with it is told once and never holds training up. It says
what the metrics stream says, by the same entry ids: lines of updates that were rolled back are taken out again.
"""

import json
import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from heddle.broker.events import Metric
from heddle.broker.records import dump_json
from heddle.version import __version__

log = logging.getLogger("heddle.trainer")

CURVE = "metrics.jsonl"
SPEC = "spec.json"
ENDED = "ended.json"
_UPDATE, _ENTRY = "update", "entry_id"

Points = list[tuple[int, dict[str, float]]]
"""(update, values by name), in the order in which they were measured."""


class CurveFile:
    """Writes as the holder of the seat, after the broker took the same numbers.

    Args:
        home: the experiment's folder.
        spec: the resolved spec as JSON.
    """

    def __init__(self, home: Path, spec: str) -> None:
        self._home = home
        self._spec = spec
        self._well = True

    def add(self, update: int, values: Mapping[str, float], *, entry: str = "") -> None:
        """One line more; `entry` is its id in the stream."""
        line = _line(update, entry, values)
        with self._telling():
            self._home.mkdir(parents=True, exist_ok=True)
            if not (self._home / SPEC).exists():
                (self._home / SPEC).write_text(self._spec + "\n", encoding="utf-8")
            with (self._home / CURVE).open("a", encoding="utf-8") as file:
                file.write(line + "\n")

    def forget(self, *, above: int) -> None:
        """Take out what updates above `above` measured, and a line that a death cut short."""
        path = self._home / CURVE
        with self._telling():
            if not path.exists():
                return
            kept = [one for one in read_metrics(path) if one.update <= above]
            fresh = path.with_suffix(".new")
            lines = [_line(one.update, one.entry_id, one.values) + "\n" for one in kept]
            fresh.write_text("".join(lines), encoding="utf-8")
            fresh.replace(path)

    def end(self, state: str, reason: str, result: Mapping[str, Any]) -> None:
        """How it ended; nothing is measured any more."""
        told = {"state": state, "reason": reason, "result": result, "code": __version__}
        with self._telling():
            self._home.mkdir(parents=True, exist_ok=True)
            (self._home / ENDED).write_text(dump_json(told) + "\n", encoding="utf-8")

    def _telling(self) -> "_Telling":
        return _Telling(self)

    def trouble(self, error: OSError) -> None:
        """Say it once."""
        if self._well:
            log.warning("cannot keep the curve file=%s error=%s", self._home / CURVE, error)
        self._well = False


class _Telling:
    """Within it an OSError is told and is over."""

    def __init__(self, file: CurveFile) -> None:
        self._file = file

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        if isinstance(error, OSError):
            self._file.trouble(error)
            return True
        return False


def read_points(path: Path) -> Points:
    """What each update measured, without the entries' ids. Raises OSError."""
    return [(one.update, dict(one.values)) for one in read_metrics(path)]


def read_metrics(path: Path) -> list[Metric]:
    """Every whole line of a curve file; a line that is cut, or no line of ours, is left out.

    Lines of an older version tell no entry: its id is "".

    Raises:
        OSError: it cannot be read.
    """
    found = []
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                told = json.loads(line)
                update, entry = int(told.pop(_UPDATE)), str(told.pop(_ENTRY, ""))
                time_ms = int(entry.partition("-")[0] or 0)
                values = {str(name): math.nan if value is None else float(value) for name, value in told.items()}
            except (ValueError, TypeError, AttributeError, KeyError):
                continue
            found.append(Metric(entry, time_ms, update, values))
    return found


def _line(update: int, entry: str, values: Mapping[str, float]) -> str:
    shown = {name: _plain(value) for name, value in values.items() if name != _UPDATE}
    return dump_json({_UPDATE: update, **shown, **({_ENTRY: entry} if entry else {})})


def _plain(value: float) -> Any:
    return float(value) if math.isfinite(value) else None
