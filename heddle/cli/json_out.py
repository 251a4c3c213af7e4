"""JSON on standard output (`HEDDLE_LOG=json`): what a service, its children and the user code in it say, an object a
line, for whoever collects the output of containers.

It never touches the output of a command that is data. What children say waits in a bounded queue: whoever reads our
output slowly, or not at all, keeps no child from its work.
"""

import contextlib
import io
import json
import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TextIO

from heddle.cli.begun import BegunLines
from heddle.cli.log_lines import JsonLines, is_json
from heddle.quick_exit import with_last_words
from heddle.subject import PRINTED, Subject

MOST_WAITING_BYTES = 4 << 20
LINE_CHARS = 4_000
"""Of a line of user code; a longer one is cut there."""

_writing = threading.local()
_printed = logging.getLogger(PRINTED)
_turn = [threading.RLock()]
"""A fork has one of its own: who forks may be one of many threads. Not a handler's, for which the end of the program
would wait while nobody reads."""
os.register_at_fork(after_in_child=lambda: _turn.__setitem__(0, threading.RLock()))
_relays: list["Relay"] = []
"""Writes for this process while it passes on what others say: nobody in a launcher waits for who reads."""
_real: list[TextIO] = []
"""Standard output while user code has another one."""


def write_line(line: str, to: TextIO | None = None) -> None:
    """One line on standard output or `to`, whole. Past Python's own buffer, whose lock a fork would inherit as it is.

    Raises:
        OSError, ValueError: nobody reads it any more.
    """
    with _turn[0]:
        out = to or (_real[-1] if _real else sys.stdout)
        try:
            number = out.fileno()
        except (OSError, ValueError):  # no file: somebody caught it
            out.write(f"{line}\n")
            return
        data = memoryview(f"{line}\n".encode("utf-8", "replace"))
        while data:
            data = data[os.write(number, data) :]


class JsonOut(logging.Handler):
    """Log records of this process on its standard output."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JsonLines())

    def emit(self, record: logging.LogRecord) -> None:
        try:
            (_relays[-1].take if _relays else write_line)(self.format(record))
        except Exception:  # noqa: BLE001  as any handler: whatever becomes of a log line ends nobody's work
            self.handleError(record)


class Relay:
    """Passes on what children print, in order: JSON as it is, other lines as what they are, user code's.

    Attributes:
        left_out: lines for which there was no room.
    """

    def __init__(self) -> None:
        self.left_out = 0
        self._lines: deque[str] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self._is_ending = False
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)
        self._thread.start()

    def pass_on(self, subject: Mapping[str, str], line: str) -> None:
        """A child printed a line; `subject` says which one. Never waits."""
        if line.strip():
            self.take(line if is_log_line(line) else _as_json(line[:LINE_CHARS], subject))

    def take(self, line: str) -> None:
        """A line of JSON, a child's or our own. Never waits."""
        with self._changed:
            if self._bytes + len(line) > MOST_WAITING_BYTES:
                self.left_out += 1
                return
            self._lines.append(line)
            self._bytes += len(line)
            self._changed.notify()

    def hear_worker(self, worker: str, line: str) -> None:
        """As `pass_on`, of a worker."""
        self.pass_on({"worker": worker}, line)

    def stop(self, timeout_s: float = 1.0) -> bool:
        """Write what there is, within that time; whether that was enough."""
        with self._changed:
            self._is_ending = True
            self._changed.notify()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (line := self._next()) is not None:
            try:
                write_line(line)
            except (OSError, ValueError):  # nobody reads it any more
                if self._is_ending:
                    return
                self.left_out += 1

    def _next(self) -> str | None:
        with self._changed:
            self._changed.wait_for(lambda: self._lines or self._is_ending)
            lines = [self._lines.popleft()] if self._lines else []
            self._bytes -= sum(map(len, lines))
            left_out, self.left_out = self.left_out, 0
        if left_out:
            lines.append(_as_json(f"left out {left_out} lines", {}))
        return "\n".join(lines) or None


@contextmanager
def relay() -> Iterator[Relay | None]:
    """What passes on the lines of children within; None where HEDDLE_LOG does not ask for it. Raises UsageError."""
    if not is_json():
        yield None
        return
    made = Relay()
    _relays.append(made)
    try:
        yield made
    finally:
        if made.stop():  # else nobody reads, and what is said from now on would wait for that
            _relays.remove(made)


@contextmanager
def prints_are_logged() -> Iterator[None]:
    """Within it what Python code prints is logged with what its thread is at work on; nothing where HEDDLE_LOG does not
    ask for it. Raises UsageError."""
    if not is_json():
        yield
        return
    before = sys.stdout, sys.stderr
    _real.append(sys.stdout)
    begun = BegunLines(_log, LINE_CHARS)
    sys.stdout, sys.stderr = Instead(sys.stdout, "stdout", begun), Instead(sys.stderr, "stderr", begun)
    try:
        with with_last_words(begun.tell_all):
            yield
    finally:
        sys.stdout, sys.stderr = before
        try:
            begun.close()
        finally:
            _real.pop()


def _log(line: str, about: Subject) -> None:
    """A line of user code."""
    if not (said := line[:LINE_CHARS].rstrip()):
        return
    _writing.now = True
    try:
        _printed.info("%s", said, extra={"printed": said, "subject": about})
    finally:
        _writing.now = False


class Instead(io.TextIOBase):
    """Stands for standard output or error: a line that is over, or that nobody adds to any more, is told as `begun`
    does."""

    encoding = "utf-8"
    errors = "replace"

    def __init__(self, real: TextIO, name: str, begun: BegunLines) -> None:
        self._real, self._name, self._begun = real, name, begun
        self._pid = os.getpid()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    @property
    def beneath(self) -> TextIO:
        """What it stands for."""
        return self._real

    def writable(self) -> bool:
        """As of any text stream that is written to."""
        return True

    def fileno(self) -> int:
        """Of what it stands for. Raises OSError where that has none."""
        return self._real.fileno()

    def flush(self) -> None:
        """What user code wrote into the buffer beneath; of a fork, whose end is a flush and nothing else, all of it."""
        if os.getpid() != self._pid:
            self._begun.tell_all()
        with contextlib.suppress(OSError, ValueError):
            self._real.flush()

    def detach(self) -> Any:
        """The buffer beneath, for who makes a stream of their own of it; this one stays usable."""
        return self._real.buffer  # who wraps that anew has what it wants, and we have our stream

    def write(self, text: str) -> int:
        """Take text as it comes; a line is told once it is over. Returns its number of characters."""
        if getattr(_writing, "now", False):  # a handler that fails says so here
            return self._real.write(text)
        self._begun.add(self._name, text)
        return len(text)


def is_log_line(line: str) -> bool:
    """Whether a line is one of `JsonLines`, and not JSON that user code printed."""
    if not line.startswith("{"):
        return False
    try:
        told = json.loads(line)
    except ValueError:
        return False
    return isinstance(told, dict) and str(told.get("logger", "")).startswith("heddle") and "message" in told


def _as_json(line: str, subject: Mapping[str, str]) -> str:
    about: dict[str, object] = {"name": PRINTED, "levelno": logging.INFO, "levelname": "INFO", "msg": "%s"}
    return JsonLines().format(logging.makeLogRecord({**about, "args": (line,), "printed": line, "subject": subject}))
