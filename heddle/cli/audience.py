"""Whoever reads what a command prints, and may be gone: a terminal that was closed, a `head` that has seen enough.

It never ends anything: who runs something asks it to end gently, and what is printed from then on goes nowhere.
"""

import contextlib
import errno
import io
import os
import select
import signal
import stat
import sys
from collections.abc import Callable, Iterator
from typing import Any, TextIO

GONE = "whoever read the output is gone"
HANG_UP = getattr(select, "POLLHUP", 0) | getattr(select, "POLLERR", 0)


class Audience:
    """Those who read standard output and standard error.

    Args:
        minds_pipes: it matters when the reader of a pipe goes, not of a terminal only. A service outlives who reads its
            log. minds_any: False where nobody's going matters.

    Attributes:
        is_gone: one of them is; it does not come back. minded: numbers of the files whose reader matters.
    """

    def __init__(self, *, minds_pipes: bool = True, minds_any: bool = True) -> None:
        self.is_gone = False
        self.minded: set[int] = set()
        self._minds_pipes = minds_pipes
        self._minds_any = minds_any
        self._tell: Callable[[str], None] | None = None
        self._poll = select.poll() if HANG_UP else None

    def tells(self, tell: Callable[[str], None]) -> None:
        """Have `tell` called with the reason once somebody is gone, at once if so; it may be called from any thread."""
        self._tell = tell
        if self.is_gone:
            tell(GONE)

    def leave(self) -> None:
        """Somebody was found to be gone."""
        self.is_gone = True
        if self._tell is not None:
            self._tell(GONE)

    def watch(self, number: int) -> None:
        """Look at the file of this number, too."""
        if not self._minds_any or not is_read_by_somebody(number) or not (self._minds_pipes or os.isatty(number)):
            return
        self.minded.add(number)
        if self._poll is not None:
            self._poll.register(number, 0)

    def look(self) -> None:
        """Find out without a word: who has nothing to say would never meet the error."""
        if not self.is_gone and self._poll is not None and any(what & HANG_UP for _, what in self._poll.poll(0)):
            self.leave()


class _Lasting(io.RawIOBase):
    """Writes to a file of the system for as long as somebody reads there, then nowhere."""

    def __init__(self, number: int, audience: Audience) -> None:
        super().__init__()
        self._number, self._audience, self._is_lost = number, audience, False

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._number

    def isatty(self) -> bool:
        return os.isatty(self._number)

    def write(self, data: Any) -> int | None:
        if self._is_lost:
            return len(data)
        try:
            return os.write(self._number, data)
        except BlockingIOError:
            return None
        except OSError as error:
            if not is_loss(error, self._number):
                raise
        self._is_lost = True
        if self._number in self._audience.minded:
            self._audience.leave()
        return len(data)


@contextlib.contextmanager
def lasting_output(*, minds_pipes: bool = True) -> Iterator[Audience]:
    """Within, what is printed raises no error when nobody is left to read it.

    Where a hang-up is ignored, as below `nohup`, nobody's going matters. `minds_pipes`: see `Audience`.
    """
    minds_any = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    audience, before = Audience(minds_pipes=minds_pipes, minds_any=minds_any), (sys.stdout, sys.stderr)
    sys.stdout, sys.stderr = (_lasting(stream, audience) for stream in before)
    try:
        yield audience
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        sys.stdout, sys.stderr = before


def _lasting(stream: TextIO, audience: Audience) -> TextIO:
    """The same file as a stream that outlasts its reader; `stream` itself where it is none, as in a test."""
    try:
        number = stream.fileno()
        stream.flush()
    except (OSError, ValueError):
        return stream
    audience.watch(number)
    return io.TextIOWrapper(
        io.BufferedWriter(_Lasting(number, audience)),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=getattr(stream, "line_buffering", True),
        write_through=getattr(stream, "write_through", False),
    )


def is_loss(error: OSError, number: int) -> bool:
    """Whether a write there failed because nobody reads there any more; an EIO of a disk is another thing."""
    return error.errno == errno.EPIPE or (error.errno == errno.EIO and is_read_by_somebody(number))


def is_read_by_somebody(number: int) -> bool:
    """A terminal, a pipe or a socket, and no file."""
    try:
        mode = os.fstat(number).st_mode
    except OSError:
        return False
    return stat.S_ISCHR(mode) or stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def has_left(*numbers: int) -> bool:
    """Whether nobody reads one of these files any more, by default standard output and error; asked without a word."""
    audience = Audience()
    for number in numbers or (1, 2):
        audience.watch(number)
    audience.look()
    return audience.is_gone
