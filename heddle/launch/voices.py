"""Voices: what user code in workers prints, for the log in the broker that everybody reads.

It never sends and never waits. The log is short and many write to it, so a worker that prints at every step has its
first lines there and the rest counted; all of them are in its log file.
"""

import re
import threading
from dataclasses import dataclass

from heddle.clock import Clock, SystemClock

BURST, PER_SECOND = 20, 1.0
"""Lines of one worker: so many at once, and then as they come back."""
MOST_WAITING = 100
"""Lines of all workers here that were not sent yet."""
_OURS = re.compile(r"\d\d:\d\d:\d\d [A-Z]+ +heddle\b|\{.*\"logger\":\s*\"heddle\b")


@dataclass(slots=True)
class _Speaker:
    """One worker: how many lines it may say, when that was, and how many were left out since."""

    left: float
    at: float
    left_out: int = 0


class Voices:
    """Lines of this host's workers. From any thread."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._speakers: dict[str, _Speaker] = {}
        self._waiting: list[tuple[str, str]] = []

    def hear(self, worker: str, line: str) -> None:
        """A worker printed a line. What Heddle itself says there is in the log by other ways."""
        if not line.strip() or _OURS.match(line):
            return
        now = self._clock.monotonic()
        with self._lock:
            speaker = self._speakers.setdefault(worker, _Speaker(BURST, now))
            speaker.left = min(BURST, speaker.left + PER_SECOND * (now - speaker.at))
            speaker.at = now
            if speaker.left < 1 or len(self._waiting) >= MOST_WAITING:
                speaker.left_out += 1
                return
            speaker.left -= 1
            if speaker.left_out:
                line = f"(left out {speaker.left_out} lines, they are in its log file) {line}"
                speaker.left_out = 0
            self._waiting.append((worker, line))

    def forget(self, worker: str) -> None:
        """It ended; what it said last stays until it is taken."""
        with self._lock:
            self._speakers.pop(worker, None)

    def take(self) -> list[tuple[str, str]]:
        """Worker and line, in order; each once."""
        with self._lock:
            taken, self._waiting = self._waiting, []
        return taken

    def give_back(self, lines: list[tuple[str, str]]) -> None:
        """They could not be sent: first again, as far as there is room."""
        with self._lock:
            self._waiting = (lines + self._waiting)[:MOST_WAITING]
