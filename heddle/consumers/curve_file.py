"""The curve file: what each update measured, the spec and the end, beside the checkpoints, for when the broker is gone.

It is for people and trackers: no role reads it, and trouble with it is told once and never holds training up. It says
what the metrics stream says, by the same entry ids: lines of updates that were rolled back are taken out again. While
somebody may still write, the spec's file is locked, so that who reads can tell a run that goes on from one that was
cut short.
"""

import fcntl
import json
import logging
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

from heddle.broker import foreign
from heddle.broker.metrics import Metric, readable
from heddle.broker.records import dump_json
from heddle.locks import Held, take
from heddle.version import __version__

log = logging.getLogger("heddle.trainer")

CURVE = "metrics.jsonl"
SPEC = "spec.json"
ENDED = "ended.json"
ORIGIN = "origin.json"
"""What it was made of: `code`, the version of Heddle that submitted it, and `commit` of the submitter's own code."""
_UPDATE, _ENTRY = "update", "entry_id"

Points = list[tuple[int, dict[str, float]]]
"""(update, values by name), in the order in which they were measured."""


class CurveFile:
    """Writes as the holder of the seat, after the broker took the same numbers.

    Args:
        home: the experiment's folder.
        spec: the resolved spec as JSON.
        origin: what it was made of; None where nobody knows.
    """

    def __init__(self, home: Path, spec: str, origin: Mapping[str, str] | None = None) -> None:
        self._home = home
        self._spec = spec
        self._origin = origin
        self._well = True
        self._lock: Held | None = None
        self._file: IO[bytes] | None = None
        if (home / SPEC).is_file():
            with self._telling():
                self._hold()

    def add(self, update: int, values: Mapping[str, float], *, entry: str = "") -> None:
        """One line more; `entry` is its id in the stream."""
        line = f"{_line(update, entry, values)}\n".encode()
        with self._telling():
            if self._file is None or not os.fstat(self._file.fileno()).st_nlink:  # of one that is not there any more
                self._file = self._open()
            if self._lock is None:
                self._hold()
            self._file.write(line)

    def _open(self) -> IO[bytes]:
        self._home.mkdir(parents=True, exist_ok=True)
        if not (self._home / SPEC).exists():
            (self._home / SPEC).write_text(self._spec + "\n", encoding="utf-8")
        if self._origin is not None and not (self._home / ORIGIN).exists():
            (self._home / ORIGIN).write_text(dump_json(self._origin) + "\n", encoding="utf-8")
        return (self._home / CURVE).open("ab", buffering=0)

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
            if self._file is not None:  # st_nlink does not tell everywhere that it is not there any more (NFS)
                self._file.close()
                self._file = None

    def end(self, state: str, reason: str, result: Mapping[str, Any]) -> None:
        """How it ended; nothing is measured any more."""
        told = {"state": state, "reason": reason, "result": result, "code": __version__}
        with self._telling():
            self._home.mkdir(parents=True, exist_ok=True)
            fresh = self._home / f"{ENDED}.new"  # who follows reads it at any moment
            fresh.write_text(dump_json(told) + "\n", encoding="utf-8")
            fresh.replace(self._home / ENDED)
        self.close()

    def close(self) -> None:
        """Write no more, for now; the end of this process does the same, and so does whoever collects this."""
        if self._file is not None:
            self._file.close()
        if self._lock is not None:
            self._lock.close()
        self._file = self._lock = None

    def _hold(self) -> None:
        """It goes on: what an earlier end said holds no more. Several may hold it: who lost its seat may still live."""
        (self._home / ENDED).unlink(missing_ok=True)
        descriptor = os.open(self._home / SPEC, os.O_RDONLY)
        try:
            self._lock = take(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:  # somebody looks right now whether it is held: with the next line
            return
        except OSError as error:  # nobody can tell there that it goes on
            log.info("cannot lock file=%s error=%s", self._home / SPEC, error)
            self._lock = Held(-1)

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


def is_written(home: Path) -> bool:
    """Whether somebody has the curve file of this folder open to go on with it."""
    try:
        with _opened(home / SPEC) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no such file, or no locks here: nobody can tell
        return False
    return False


def _opened(path: Path) -> IO[bytes]:
    """For writing where that may be, though nothing is written: NFS gives nobody else an exclusive lock."""
    try:
        return path.open("r+b")
    except FileNotFoundError:
        raise
    except OSError:  # somebody else's, or a file system that is only read
        return path.open("rb")


def read_points(path: Path) -> Points:
    """What each update measured, without the entries' ids. Raises OSError."""
    return [(one.update, dict(one.values)) for one in read_metrics(path)]


def read_metrics(path: Path) -> list[Metric]:
    """Every whole line of a curve file; a line that is cut, or no line of ours, is left out, and of one of ours what is
    no number.

    Lines of an older version tell no entry: its id is "".

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        return _metrics(path, file)


def read_metrics_from(path: Path, at: int) -> tuple[list[Metric], int]:
    """As `read_metrics`, from a byte on, and up to which byte; a last line without an end is left for later."""
    with path.open("rb") as file:
        file.seek(at)
        whole, _, _ = file.read().rpartition(b"\n")
    return _metrics(path, whole.splitlines()), at + len(whole) + (1 if whole else 0)


def _metrics(path: Path, lines: Iterable[bytes]) -> list[Metric]:
    found = [one for line in lines if (one := _metric(line)) is not None]
    for metric, trouble in found:
        if trouble:
            foreign.name(str(path), metric.entry_id, trouble, what="a measurement")
    return [metric for metric, _ in found]


def _metric(line: bytes) -> tuple[Metric, str] | None:
    """A line, and what in it is no number, "" for nothing; None where it is none of ours."""
    try:
        told = json.loads(line.decode("utf-8", "replace"))
        update, entry = int(told.pop(_UPDATE)), str(told.pop(_ENTRY, ""))
        time_ms = int(entry.partition("-")[0] or 0)
        values, trouble = readable(told.items())
    except foreign.NO_SENSE:
        return None
    return Metric(entry, time_ms, update, values), trouble


def _line(update: int, entry: str, values: Mapping[str, float]) -> str:
    shown = {name: _plain(value) for name, value in values.items() if name != _UPDATE}
    return dump_json({_UPDATE: update, **shown, **({_ENTRY: entry} if entry else {})})


def _plain(value: float) -> Any:
    return float(value) if math.isfinite(value) else None


def read_origin(home: Path) -> dict[str, str]:
    """What a run was made of, by its folder; {} where it does not say."""
    try:
        told = json.loads((home / ORIGIN).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {name: str(value) for name, value in told.items()} if isinstance(told, dict) else {}
