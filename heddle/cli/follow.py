"""Following an experiment on the screen: a live view on a terminal, lines elsewhere: one a second, and fewer with time.

It never starts or ends anything.
"""

import contextlib
from collections.abc import Callable, Iterator

import click
from rich.console import Console
from rich.live import Live

from heddle.cli.audience import GONE, has_left
from heddle.cli.facts import FactsReader
from heddle.cli.live import plain_line, render
from heddle.clock import Clock, SystemClock

PLAIN_S = 1.0
PLAIN_SHARE = 1 / 60
"""Of the time passed, between two lines: a file that a run of days writes to stays readable."""
PLAIN_MOST_S = 60.0
DRAW_S = 0.25
STEP_S = 0.05
MARGIN = 2
"""Columns left free: the ^C that a terminal shows there must not start a line, or the next picture stands one lower."""


class Screen:
    """Shows the facts of a reader; call `update` often.

    Args:
        title: above the live view.
        to_stderr: show it there.
        console: for tests.
    """

    def __init__(
        self,
        reader: FactsReader,
        *,
        title: str,
        to_stderr: bool = False,
        console: Console | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._reader = reader
        self._title = title
        self._console = console or Console(stderr=to_stderr)
        self._to_stderr = to_stderr
        self._clock = clock or SystemClock()
        self._live: Live | None = None
        self._began = self._clock.monotonic()
        self._due = 0.0
        self._line_due = 0.0
        self._events_shown = 0
        self._state_shown = ""

    def update(self) -> None:
        """Draw when it is time to. Raises what keeps the reader from looking for good: nobody would see the end."""
        if self._reader.refusal is not None:
            raise self._reader.refusal
        now = self._clock.monotonic()
        if now >= self._due:
            self._due = now + (DRAW_S if self._live is not None else PLAIN_S)
            self._draw()

    def _draw(self, *, at_the_end: bool = False) -> None:
        facts = self._reader.facts()
        if self._live is not None:
            width = max(MARGIN, self._console.width - MARGIN)
            self._live.update(render(facts, title=self._title, width=width), refresh=True)
            return
        new = facts.events_told - self._events_shown
        for event in facts.events[-new:] if new else ():
            click.echo(f"  {event}", err=self._to_stderr)
        self._events_shown = facts.events_told
        now = self._clock.monotonic()
        if at_the_end or facts.state != self._state_shown or now >= self._line_due:
            click.echo(plain_line(facts), err=self._to_stderr)
            self._state_shown = facts.state
            self._line_due = now + min(PLAIN_MOST_S, max(PLAIN_S, PLAIN_SHARE * (now - self._began)))

    @contextlib.contextmanager
    def open(self) -> Iterator["Screen"]:
        """Take the screen while inside; leave the last picture on it."""
        if self._console.is_terminal:
            with Live(console=self._console, auto_refresh=False, transient=False) as live:
                self._live = live
                try:
                    yield self
                finally:
                    self._draw()
                    self._live = None
        else:
            try:
                yield self
            finally:
                self._draw(at_the_end=True)


def follow(reader: FactsReader, *, title: str, until: Callable[[], bool]) -> None:
    """Show `reader` until `until` says so.

    Raises:
        BrokenPipeError: nobody reads the output any more. A live view would not meet the error: rich draws nothing on
            what is no terminal, and one that was closed no longer says that it is.
        HeddleError: what keeps it from looking for good, e.g. Denied.
    """
    clock = SystemClock()
    with Screen(reader, title=title).open() as screen:
        while not until():
            if has_left():
                raise BrokenPipeError(GONE)
            screen.update()
            clock.sleep(STEP_S)
