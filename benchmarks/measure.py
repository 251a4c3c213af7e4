"""What all benchmarks share: spreads, rows of the table, CPU time, and alternating rounds.

It never asserts anything about speed, and never measures by itself.
"""

import os
import resource
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from heddle.clock import SystemClock

CLOCK = SystemClock()

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Spread:
    """What came out of some rounds.

    Attributes:
        median, low, high: of the rounds.
        rounds: how many.
    """

    median: float
    low: float
    high: float
    rounds: int


def spread(values: Iterable[float]) -> Spread:
    """Median, least and most of `values`, of which there is at least one."""
    found = list(values)
    return Spread(statistics.median(found), min(found), max(found), len(found))


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    Attributes:
        section: which benchmark.
        what: is measured.
        unit: of the numbers; "x" is a ratio of two things measured in the same round.
        value: the numbers.
    """

    section: str
    what: str
    unit: str
    value: Spread

    def to_json(self) -> dict[str, Any]:
        """For the file."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Played:
    """One round of playing.

    Attributes:
        steps: environment steps.
        wall_s, cpu_s: that they took; CPU of all processes that took part.
        roles: the same CPU, by role, where several took part.
    """

    steps: int
    wall_s: float
    cpu_s: float
    roles: dict[str, float] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Steps a second."""
        return self.steps / self.wall_s

    @property
    def cpu_us(self) -> float:
        """CPU microseconds a step."""
        return 1e6 * self.cpu_s / self.steps


def own_cpu_s() -> float:
    """CPU seconds of this process, all threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def cpu_s_of(pids: Iterable[int]) -> float:
    """CPU seconds of other processes so far, to a clock tick; NaN where there is no /proc."""
    if not Path("/proc/self/stat").exists():
        return float("nan")
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])  # utime, stime: fields 14 and 15 of proc(5)
    return ticks / os.sysconf("SC_CLK_TCK")


def alternate(rounds: int, one: Callable[[], T], other: Callable[[], T], *, within_s: float) -> list[tuple[T, T]]:
    """Pairs of both, each first in every second round, so that a drift of the machine hits both alike.

    Args:
        rounds: how many.
        within_s: no further round begins once so much has passed, on a machine that is busy with other things.
    """
    pairs: list[tuple[T, T]] = []
    until = CLOCK.monotonic() + within_s
    for number in range(rounds):
        if pairs and CLOCK.monotonic() > until:
            break
        if number % 2:
            second = other()
            pairs.append((one(), second))
        else:
            first = one()
            pairs.append((first, other()))
    return pairs


def compare(section: str, names: tuple[str, str], pairs: Sequence[tuple[Played, Played]]) -> list[Row]:
    """Rows of two ways to play, and the ratios of the first to the second, taken round by round."""
    rows = []
    for place, name in enumerate(names):
        rows.append(Row(section, f"{name}: steps/s", "1/s", spread(pair[place].rate for pair in pairs)))
        rows.append(Row(section, f"{name}: CPU a step", "us", spread(pair[place].cpu_us for pair in pairs)))
    rows.append(Row(section, f"steps/s, {names[0]} / {names[1]}", "x", spread(a.rate / b.rate for a, b in pairs)))
    for role in pairs[0][0].roles:
        used = spread(1e6 * pair[0].roles[role] / pair[0].steps for pair in pairs)
        rows.append(Row(section, f"{names[0]}: CPU a step, {role}", "us", used))
    rows.append(
        Row(section, f"CPU a step, {names[0]} / {names[1]}", "x", spread(a.cpu_us / b.cpu_us for a, b in pairs))
    )
    return rows
