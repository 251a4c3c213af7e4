"""Waiting: says whom an end waits for, how long at most and what ends it now, when it takes longer than a moment.

It never waits by itself, and it ends nobody.
"""

import logging
from collections.abc import Callable, Sequence

from heddle.clock import Clock
from heddle.launch.process import Child

log = logging.getLogger("heddle.launch")

FIRST_S = 2.0
EVERY_S = 10.0
MOST_NAMED = 3


def waiting_line(children: Sequence[Child]) -> str:
    """Who is waited for, how long at most, and the way to end it at once."""
    named = ", ".join(f"{child.name} (pid {child.pid})" for child in children[:MOST_NAMED])
    more = f" and {len(children) - MOST_NAMED} more" if len(children) > MOST_NAMED else ""
    left_s = max((child.left_s() for child in children), default=0.0)
    return f"waiting for {named}{more} to end, at most {left_s:.0f} s; Ctrl-C again stops at once"


class Waiting:
    """One wait, from now on."""

    def __init__(self, clock: Clock, tell: Callable[[str], None] = log.warning) -> None:
        self._clock = clock
        self._tell = tell
        self._tell_at = clock.monotonic() + FIRST_S

    def look(self, children: Sequence[Child]) -> None:
        """These are still there."""
        if children and self._clock.monotonic() >= self._tell_at:
            self._tell_at = self._clock.monotonic() + EVERY_S
            self._tell(waiting_line(children))
