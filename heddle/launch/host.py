"""The host: how many cores and how much memory there is here for workers, as far as the system tells.

It never guesses: what is not known is 0.
"""

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from heddle.broker.presence import HostReport
from heddle.clock import Clock

PROC = Path("/proc")
CGROUP = Path("/sys/fs/cgroup")
LOOK_S = 10.0
MEMORY_S = 1.0
MOST_WEIGHED = 8


def cores() -> int:
    """How many processors this process may use."""
    with contextlib.suppress(AttributeError):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def free_bytes() -> int:
    """Memory that could still be used here without swapping, within the bound of a container; 0 when unknown."""
    for line in _read(PROC / "meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) * 1024
            break
    else:
        return 0
    bound, used = _read(CGROUP / "memory.max").strip(), _read(CGROUP / "memory.current").strip()
    return min(free, max(0, int(bound) - int(used))) if bound.isdigit() and used.isdigit() else free


def own_bytes(pid: int) -> int:
    """Memory of a process without what it shares (libraries, the one it was forked from); 0 when unknown."""
    lines = _read(PROC / str(pid) / "smaps_rollup").splitlines()
    if lines:
        return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))
    words = _read(PROC / str(pid) / "statm").split()
    return max(0, int(words[1]) - int(words[2])) * os.sysconf("SC_PAGE_SIZE") if len(words) > 2 else 0


def memory_kills() -> int:
    """How many processes the system ever killed here for want of memory; 0 when unknown."""
    words = [line.split() for line in _read(PROC / "vmstat").splitlines() if line.startswith("oom_kill ")]
    return int(words[0][1]) if words else 0


class MemoryWatch:
    """Whether the system has just killed somebody for want of memory: a SIGKILL of that moment is most likely its own.

    Args:
        count: how often it ever did.
    """

    def __init__(self, clock: Clock, count: Callable[[], int] = memory_kills) -> None:
        self._clock = clock
        self._count = count
        self._at = clock.monotonic()
        self._before = self._last = count()

    def look(self) -> None:
        """To be called often."""
        now = self._clock.monotonic()
        if now - self._at >= MEMORY_S:
            self._at, self._before, self._last = now, self._last, self._count()

    def has_killed(self) -> bool:
        """In the last moments, twice `MEMORY_S` at most where `look` is called often."""
        return self._count() > self._before


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


class HostWatch:
    """What this host has for workers, measured now and then.

    Args:
        most: bound of the workers here; None for no bound.
    """

    def __init__(self, clock: Clock, most: int | None) -> None:
        self._clock = clock
        self._most = most
        self._look_at = 0.0
        self._free = 0
        self._each = 0

    def report(self, pids: Sequence[int]) -> HostReport:
        """With the processes of the workers that run here."""
        now = self._clock.monotonic()
        if now >= self._look_at:
            self._look_at = now + LOOK_S
            weights = [weight for pid in pids[:MOST_WEIGHED] if (weight := own_bytes(pid))]
            self._free, self._each = free_bytes(), sum(weights) // max(1, len(weights))
        return HostReport(os.uname().nodename, cores(), self._free, self._each, len(pids), self._most)
