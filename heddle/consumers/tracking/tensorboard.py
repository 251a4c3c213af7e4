"""TensorBoard: event files in a folder, one record for each entry of the stream.

A record is written whole or not at all and tells which entry it is, so a process that goes on after a kill knows from
the files alone what is there: no point is missing and none is written twice. What was rolled back is taken out of the
curves by TensorBoard's own means (a session that starts at a step).
"""

import contextlib
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from heddle.clock import Clock, SystemClock
from heddle.consumers.tracking.base import in_short, library
from heddle.consumers.tracking.event_files import files_in, next_file, records
from heddle.consumers.tracking.points import Ending, Place, Point, Subject
from heddle.errors import Conflict, TrackerDown
from heddle.locks import Held, take

LOCK = ".heddle-track.lock"
SEQS = 1000
"""Entries of one ms that can be told apart: microseconds of a record's time say which it is."""


class TensorBoard:
    """A `Backend` that writes event files into `folder`/<experiment>."""

    kind = "tensorboard"

    def __init__(self, folder: Path, subject: Subject, *, clock: Clock | None = None) -> None:
        self._folder = folder / subject.experiment
        self.where = str(self._folder.absolute())
        self._subject = subject
        self._clock = clock or SystemClock()
        self._proto: Any = library("tensorboardX.proto.event_pb2", "tensorboard")
        self._writers: Any = library("tensorboardX.record_writer", "tensorboard")
        self._last: Place | None = None
        self._writer: Any = None
        self._lock: Held | None = None

    def open(self) -> bool:
        """Find where the files end, and begin one of our own.

        Raises:
            Conflict: another process writes here.
        """
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._hold()
            self._last = self._find_last()
            self._writer = self._begin()
            if self._last is None:
                self._say_what_it_is()
            self._writer.flush()
        except OSError as error:
            raise self._down(error) from error
        return self._last is not None

    @property
    def last(self) -> Place | None:
        return self._last

    def knows(self, point: Point) -> bool:
        return self._last is not None and point.place <= self._last

    def add(self, points: Sequence[Point]) -> None:
        try:
            for point in points:
                self._write(_seconds(point.place), point.step, summary=_summary(self._proto, point))
            self._writer.flush()
        except OSError as error:
            raise self._down(error) from error
        self._last = points[-1].place if points else self._last

    def kept(self, points: Sequence[Point]) -> list[Point]:
        return [point for point in points if self.knows(point)]

    def take_back(self, update: int, step: int) -> None:
        del update
        try:
            if self._last is None:
                return
            self._writer.close()  # TensorBoard looks for such a start at the begin of a file
            self._writer = self._begin()
            started = self._proto.SessionLog(status=self._proto.SessionLog.START)
            self._write(self._clock.wall(), step + 1, session_log=started)
            self._writer.flush()
        except OSError as error:
            raise self._down(error) from error

    def finish(self, ending: Ending) -> None:
        said = [f"{ending.state}{f': {ending.reason}' if ending.reason else ''}"]
        said += [f"checkpoint: `{ending.checkpoint}`"] if ending.checkpoint is not None else []
        try:
            self._text("ending", "  \n".join(said))
            self._writer.flush()
        except OSError as error:
            raise self._down(error) from error

    def close(self) -> None:
        with contextlib.suppress(OSError):
            if self._writer is not None:
                self._writer.close()
        if self._lock is not None:
            self._lock.close()
        self._writer = self._lock = None

    # ---- inside

    def _hold(self) -> None:
        """Keep others of this host out; the system lets go of it with the process."""
        file = os.open(self._folder / LOCK, os.O_WRONLY | os.O_CREAT, 0o666)
        try:
            self._lock = take(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Conflict(f"another process writes event files into {self._folder}") from None

    def _find_last(self) -> Place | None:
        """The last entry that was recorded."""
        for path in reversed(files_in(self._folder)):
            last = None
            for record in records(path):
                event = self._proto.Event.FromString(record)
                if event.summary.value and not event.summary.value[0].HasField("metadata"):
                    last = _place(event.wall_time)
            if last is not None:
                return last
        return None

    def _begin(self) -> Any:
        path = next_file(self._folder, self._clock.wall(), os.uname().nodename)
        writer = self._writers.RecordWriter(str(path))
        version = self._proto.Event(wall_time=self._clock.wall(), file_version="brain.Event:2")
        writer.write(version.SerializeToString())
        return writer

    def _say_what_it_is(self) -> None:
        subject = self._subject
        self._text("spec", f"```toml\n{subject.toml}\n```")
        own = f", commit {subject.commit}" if subject.commit else ""
        self._text("code version", f"heddle {subject.code}{own}")

    def _text(self, tag: str, markdown: str) -> None:
        made = library("tensorboardX.summary", "tensorboard").text(tag, markdown)
        self._write(self._clock.wall(), 0, summary=made)

    def _write(self, wall_s: float, step: int, **what: Any) -> None:
        event = self._proto.Event(wall_time=wall_s, step=step, **what)
        self._writer.write(event.SerializeToString())

    def _down(self, error: OSError) -> TrackerDown:
        return TrackerDown(f"cannot write event files into {self._folder}: {in_short(error)}")


def _summary(proto: Any, point: Point) -> Any:
    summary = proto.Event().summary
    for name, value in point.values.items():
        summary.value.add(tag=name, simple_value=value)
    return summary


def _seconds(place: Place) -> float:
    """The time of a record that says which entry it is: ms, and within them microseconds by number."""
    ms, seq = place
    return (ms * SEQS + min(seq, SEQS - 1)) / (1000 * SEQS)


def _place(wall_s: float) -> Place:
    return divmod(round(wall_s * 1000 * SEQS), SEQS)
