"""Progress: one line on a terminal's standard error that says how far long work is, and is gone when it ends.

It never writes where nobody looks: a file or a pipe gets nothing. Work that tells of itself only sets a text; a thread
draws it.
"""

import contextlib
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import click

from heddle.cli.tables import duration, terminal_columns
from heddle.clock import Clock, SystemClock

FIRST_S = 0.5
"""What is done by then shows nothing."""
EVERY_S = 0.2
CLEAR = "\r\x1b[K"


class Progress:
    """How far a piece of work is; from any thread.

    Attributes:
        is_shown: somebody looks; else there is no need to find out how far it is.

    Args:
        what: the work, e.g. "playing".
    """

    def __init__(self, what: str, clock: Clock | None = None) -> None:
        self.is_shown = sys.stderr.isatty()
        self._what = what
        self._text = ""
        self._clock = clock or SystemClock()
        self._began = self._clock.monotonic()
        self._drawn = False
        self._lock = threading.Lock()

    def tell(self, text: str) -> None:
        """So far it is now, e.g. "12 of 100 episodes"."""
        self._text = text

    def say(self, text: str) -> None:
        """A line on standard output, in place of ours, which comes back by itself."""
        with self.away():
            click.echo(text)

    @contextmanager
    def away(self) -> Iterator[None]:
        """Within it our line is not there: what is said stands alone."""
        with self._lock:
            self._clear()
            yield

    def end(self) -> None:
        """Take the line away."""
        with self._lock:
            self._clear()

    def _clear(self) -> None:
        if self._drawn:
            self._write(CLEAR)
        self._drawn = False

    def draw(self) -> None:
        """Write the line anew."""
        lasted = duration(round(1000 * (self._clock.monotonic() - self._began)))
        line = ", ".join(part for part in (f"{self._what} {self._text}".strip(), lasted) if part)
        columns = terminal_columns(to_stderr=True) or 80
        with self._lock:
            self._write(f"{CLEAR}{line[: columns - 1]}")
            self._drawn = True

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # a terminal that is gone ends no work
            click.echo(text, nl=False, err=True)


@contextmanager
def progress(what: str) -> Iterator[Progress]:
    """Shown while inside, once it has taken a moment, where standard error is a terminal."""
    shown, ended = Progress(what), threading.Event()

    def run() -> None:
        wait_s = FIRST_S
        while not ended.wait(wait_s):
            shown.draw()
            wait_s = EVERY_S

    thread = threading.Thread(target=run, name="progress", daemon=True)
    if shown.is_shown:
        thread.start()
    try:
        yield shown
    finally:
        ended.set()
        if thread.is_alive():
            thread.join()
        shown.end()


def trying() -> AbstractContextManager[Progress]:
    """While a spec is tried out: its code is imported and run in a child, which may take as long as it likes."""
    return progress("trying out the environment and the policy")
