"""Lately: how fast a worker played, and how much it waited, in the last seconds; from counters that only grow.

It never reads a clock or a lock: whoever beats says what time it is.
"""

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from heddle.producers.desk import Counters

WINDOW_S = 10.0
"""What counts as of late; longer where one batch takes longer."""
LEAST_S = 0.5
"""Between two looks that are remembered: a heartbeat may follow the one before at once."""


@dataclass(frozen=True, slots=True)
class Late:
    """A worker of late.

    Attributes:
        seconds: how long that was; 0 when nobody looked.
        steps_per_second: environment steps by the wall clock; 0 while it holds nothing.
        waits: share of its time in which it held shards and could play none.
        ms_per_step: wall milliseconds that it played for one step, of its last batches; 0 before the first.
    """

    seconds: float = 0.0
    steps_per_second: float = 0.0
    waits: float = 0.0
    ms_per_step: float = 0.0


class _Moment(NamedTuple):
    at: float
    steps: int
    play_s: float
    wait_s: float


class Lately:
    """Remembers looks at the counters, and those at which a batch had been finished; for one thread at a time."""

    def __init__(self) -> None:
        self._moments: deque[_Moment] = deque()
        self._marks: deque[_Moment] = deque()

    def look(self, counters: Counters, now: float, *, is_held: bool, is_playing: bool) -> Late:
        """How it was until `now`, monotonic seconds.

        Args:
            is_held: it holds shards; without any all is 0 and begins anew. is_playing: one of them has its turn.
        """
        here = _Moment(now, counters.steps, counters.play_s, counters.wait_s)
        if not is_held or not self._moments:
            self._moments, self._marks = deque([here]), deque([here])
            return Late(WINDOW_S)
        if here.steps > self._marks[-1].steps and now - self._marks[-1].at >= LEAST_S:
            self._marks.append(here)
        if now - self._moments[-1].at >= LEAST_S:
            self._moments.append(here)
        _forget(self._moments, now - WINDOW_S, least=1)
        first = self._moments[0]
        seconds = now - first.at
        waits = min(1.0, (here.wait_s - first.wait_s) / seconds) if seconds > 0 else 0.0
        speed, ms_per_step = self._speed(now, is_playing=is_playing)
        return Late(round(seconds, 3) or WINDOW_S, round(speed, 3), round(waits, 4), ms_per_step)

    def _speed(self, now: float, *, is_playing: bool) -> tuple[float, float]:
        """Steps per second, and ms per step, from batch to batch: a batch that is being played has told of none yet."""
        if len(self._marks) < 2:
            return 0.0, 0.0
        last, gap_s = self._marks[-1], self._marks[-1].at - self._marks[-2].at
        end = max(last.at, now - gap_s)  # the batch that is due has as long as the one before
        _forget(self._marks, end - WINDOW_S, least=2)
        first = self._marks[0]
        steps = last.steps - first.steps
        ms_per_step = round(1000.0 * (last.play_s - first.play_s) / steps, 4)
        is_stalled = not is_playing and now - last.at > max(WINDOW_S, gap_s)
        return 0.0 if is_stalled else steps / (end - first.at), ms_per_step


def _forget(moments: deque[_Moment], before: float, *, least: int) -> None:
    """Those that the window does not need; the newest of before it stays, so that it is whole."""
    while len(moments) > least and moments[1].at <= before:
        moments.popleft()
