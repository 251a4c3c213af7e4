"""Time: the only module that reads a clock or sleeps.

It never decides anything; callers pass what it returns into pure functions.
"""

import threading
import time
from pathlib import Path
from typing import Protocol

_SCHEDSTAT = Path("/proc/thread-self/schedstat")


class Clock(Protocol):
    """What Heddle asks of time."""

    def monotonic(self) -> float:
        """Seconds from an unspecified start; never goes back."""
        ...

    def wall(self) -> float:
        """Seconds since 1970, for showing to people and for nothing else."""
        ...

    def sleep(self, seconds: float) -> None:
        """Let `seconds` pass."""
        ...


class SystemClock:
    """The machine's clocks."""

    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        if seconds > 0:
            time.sleep(seconds)


class ManualClock:
    """A clock that a test moves; `sleep` moves it too, so loops run at full speed."""

    def __init__(self, start: float = 1_000.0) -> None:
        self._now = start
        self._lock = threading.Lock()

    def monotonic(self) -> float:
        with self._lock:
            return self._now

    def wall(self) -> float:
        return self.monotonic()

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Move time forward by `seconds` (>= 0)."""
        with self._lock:
            self._now += max(0.0, seconds)


def thread_seconds() -> tuple[float, float]:
    """Seconds that the calling thread has computed, and those in which it could have and others had the processor.

    The second is 0 where the system does not tell (not Linux).
    """
    return time.thread_time(), _ready_ns() / 1e9


def _ready_ns() -> int:
    try:
        return int(_SCHEDSTAT.read_text(encoding="ascii").split()[1])
    except (OSError, IndexError, ValueError):
        return 0
