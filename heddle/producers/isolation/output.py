"""Output: what a child prints: passed on as it comes, as far as that is wanted, and the last of it kept in a ring."""

import fcntl
import os
from collections.abc import Callable

from heddle.spec.last_words import kept, place

KEPT_BYTES = 16 * 1024
LINES, LINE_CHARS = 30, 300
READ_BYTES = 1 << 18
_NOISE = "Extension modules:"
"""The longest and least telling line of what faulthandler prints."""
_SET_PIPE_SIZE = getattr(fcntl, "F_SETPIPE_SZ", None)


class Output:
    """The reading end of a child's standard output and error.

    Attributes:
        fd: becomes readable when there is something to read; -1 once closed.

    Args:
        passed_on: told all that is read.
    """

    def __init__(self, fd: int, passed_on: Callable[[bytes], None]) -> None:
        self.fd = fd
        self._passed_on = passed_on
        self._last = b""
        os.set_blocking(fd, False)
        if _SET_PIPE_SIZE is not None:
            try:
                fcntl.fcntl(fd, _SET_PIPE_SIZE, READ_BYTES)
            except OSError:
                return  # the user's pipes take too much already: the usual size does

    def read(self) -> bool:
        """Take what is there, at most so much at once; False when nothing will come any more."""
        if self.fd < 0:
            return False
        try:
            data = os.read(self.fd, READ_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._last = (self._last + data)[-KEPT_BYTES:]
        self._passed_on(data)
        return bool(data)

    def lines(self) -> tuple[str, ...]:
        """The last lines, oldest first; of a dump at a fatal signal its begin, where the innermost calls are."""
        return tuple(kept(self._all(), LINES))

    def place(self) -> str:
        """ "file:line" of the user's code that a dump or a traceback at the end of it came to; "" for none."""
        return place(self._all())

    def _all(self) -> list[str]:
        """What is kept, without what a terminal would obey."""
        text = self._last.decode("utf-8", "replace")
        lines = ["".join(c if c.isprintable() else " " for c in line).rstrip() for line in text.splitlines()]
        return [line[:LINE_CHARS] for line in lines if line.strip() and not line.startswith(_NOISE)]

    def close(self) -> None:
        """Read what is left, as far as it is kept, and close it."""
        if self.fd >= 0:
            for _ in range(4):
                before = self._last
                if not self.read() or self._last == before:
                    break
            os.close(self.fd)
            self.fd = -1
