"""Notes: lines for the log that a role writes down at once and sends when it has a moment, from a thread that may wait.

It never grows beyond `MOST` lines and never raises: what the broker does not take now is sent the next time, and what
is crowded out is counted.
"""

import threading
from collections import deque
from dataclasses import replace

from heddle.broker.events import Events
from heddle.broker.lines import Line
from heddle.clock import Clock, SystemClock

MOST = 200


class Notes:
    """What one role wants to tell.

    Args:
        role, worker: who it is.
    """

    def __init__(self, role: str, worker: str, *, clock: Clock | None = None) -> None:
        self._role = role
        self._worker = worker
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._lines: deque[tuple[float, Line]] = deque()
        self._crowded_out = 0

    def add(self, experiment: str | None, message: str, *, level: str = "info") -> None:
        """Write a line down; costs no round trip."""
        line = Line(experiment, self._role, self._worker, level, message)
        with self._lock:
            self._lines.append((self._clock.monotonic(), line))
            if len(self._lines) > MOST:
                self._lines.popleft()
                self._crowded_out += 1

    def send(self, events: Events) -> bool:
        """Send what there is, in one round trip; False when the broker did not take it and it is kept."""
        with self._lock:
            taken, self._lines = self._lines, deque()
            crowded_out, self._crowded_out = self._crowded_out, 0
        if not taken:
            return True
        now = self._clock.monotonic()
        lines = [replace(line, ago_ms=round(1000 * max(0.0, now - at))) for at, line in taken]
        if crowded_out:
            lines.insert(0, Line(None, self._role, self._worker, "warning", f"left out {crowded_out} lines"))
        if events.log_all(lines):
            return True
        with self._lock:
            self._crowded_out += crowded_out
            self._lines.extendleft(reversed(taken))
            while len(self._lines) > MOST:
                self._lines.popleft()
                self._crowded_out += 1
        return False
