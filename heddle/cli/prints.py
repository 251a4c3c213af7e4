"""What user code prints in a role, on its way to the log in the broker that everybody reads.

It never keeps a line from where it was printed to. What a launcher started is heard by that one, which is told only of
which shard a line is.
"""

import contextlib
import io
import logging
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TextIO

from heddle.broker import open_broker
from heddle.cli.begun import BegunLines
from heddle.cli.json_out import Instead, write_line
from heddle.cli.log_lines import is_json
from heddle.launch.said import NAMES, marked
from heddle.launch.speaking import Speaking
from heddle.quick_exit import with_last_words
from heddle.subject import PRINTED, Subject, subject

LINE_CHARS = 2_000
MARKED_CHARS = 6_000
"""Of a line that is not over; with what stands in front it is one that a launcher reads whole."""

_hearing = threading.local()


@contextmanager
def prints_are_heard(url: str, role: str, who: str) -> Iterator[None]:
    """Within it what Python code prints in this process, and what its environments in processes of their own do, is in
    the log, too.

    Args:
        role: whose rights are used.
        who: the line is said to be printed there.
    """
    speaking = Speaking(partial(open_broker, url, role=role))
    hears = _Hears(speaking, who)
    begun = BegunLines(lambda line, about: hears.hear(line[:LINE_CHARS], about), LINE_CHARS)
    before = sys.stdout, sys.stderr
    are_logged = is_json()
    if are_logged:  # there what is printed is logged, see `json_out.py`
        logging.getLogger(PRINTED).addHandler(hears)
    else:
        sys.stdout, sys.stderr = _Heard(sys.stdout, "stdout", begun), _Heard(sys.stderr, "stderr", begun)

    def say_the_last() -> None:
        begun.tell_all()
        speaking.stop()

    try:
        with with_last_words(say_the_last):
            yield
    finally:
        if not are_logged:
            sys.stdout, sys.stderr = before
        try:
            begun.close()
        finally:
            logging.getLogger(PRINTED).removeHandler(hears)
            speaking.stop()


@contextmanager
def prints_are_marked() -> Iterator[None]:
    """Within it lines that Python code prints while a shard is played have it in front, for the supervisor that reads
    this process. Nothing where HEDDLE_LOG asks for JSON, which has it anyway. Raises UsageError."""
    if is_json():
        yield
        return
    before = sys.stdout, sys.stderr
    begun = [BegunLines(partial(_write, stream), MARKED_CHARS) for stream in before]

    def say_the_last() -> None:
        for one in begun:
            one.tell_all()

    sys.stdout = Instead(before[0], "stdout", begun[0])
    sys.stderr = Instead(before[1], "stderr", begun[1])
    try:
        with with_last_words(say_the_last):
            yield
    finally:
        sys.stdout, sys.stderr = before
        for one in begun:
            one.close()


def _write(stream: TextIO, line: str, about: Subject) -> None:
    with contextlib.suppress(OSError, ValueError):  # nobody reads it any more: that is no error of who printed it
        write_line(marked(line, about), stream)


class _Hears(logging.Handler):
    """Hands lines on, with what this thread is at work on: experiment, shard and epoch."""

    def __init__(self, speaking: Speaking, who: str) -> None:
        super().__init__()
        self._speaking, self._who = speaking, who
        self._pid = os.getpid()

    def hear(self, line: str, about: Subject) -> None:
        """Nothing in a fork, as vector environments make them: it has none of our threads, and locks as they were. And
        nothing that a destructor or a signal handler prints in the middle of this: the locks are ours already."""
        if os.getpid() != self._pid or getattr(_hearing, "now", False):
            return
        _hearing.now = True
        try:
            told = {**subject(), **about}
            self._speaking.hear(self._who, {name: told[name] for name in NAMES if name in told}, line)
        finally:
            _hearing.now = False

    def emit(self, record: logging.LogRecord) -> None:
        self.hear(getattr(record, "printed", record.getMessage()), getattr(record, "subject", {}))


class _Heard(io.TextIOBase):
    """Standard output or error, overheard: the lines of each thread."""

    encoding = "utf-8"
    errors: str | None = None

    def __init__(self, real: TextIO, name: str, begun: BegunLines) -> None:
        self._real, self._name, self._begun = real, name, begun
        self.encoding, self.errors = real.encoding, real.errors  # user code encodes by them
        self._pid = os.getpid()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return self._real.isatty()

    def detach(self) -> Any:
        return self._real.buffer  # who wraps that anew has what it wants, and we have our stream

    def fileno(self) -> int:
        return self._real.fileno()

    def flush(self) -> None:
        self._real.flush()

    def write(self, text: str) -> int:
        written = self._real.write(text)
        if os.getpid() == self._pid:
            self._begun.add(self._name, text)
        return written
