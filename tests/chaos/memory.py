"""Memory of every role and of the server, minute after minute, while a fleet plays undisturbed.

It never ends a process; a role that was started again in between would show as a new one.
"""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import redis

from tests.chaos import procs
from tests.chaos.bench import Bench
from tests.chaos.fleet import Size

ROLES = ("coordinator", "supervisor", "forker", "host", "worker", "trainer")
EVERY_S = 5.0
MIB = 1 << 20
WARM_SHARE = 0.2
"""Of the time, at its start: caches fill, nothing is concluded from it."""


@dataclass(slots=True)
class Series:
    """Bytes over time.

    Attributes:
        at_s, size: one pair a sample.
    """

    at_s: list[float] = field(default_factory=list)
    size: list[int] = field(default_factory=list)

    def settled(self) -> tuple[list[float], list[int]]:
        """Without the warming up."""
        first = int(len(self.at_s) * WARM_SHARE)
        return self.at_s[first:], self.size[first:]

    @property
    def slope_mib_h(self) -> float:
        """Least squares, MiB an hour."""
        at_s, size = self.settled()
        if len(at_s) < 3:
            return 0.0
        return float(np.polyfit(np.array(at_s) / 3600, np.array(size) / MIB, 1)[0])

    @property
    def growth_mib(self) -> float:
        """Median of the last quarter less that of the first, MiB."""
        _, size = self.settled()
        quarter = max(1, len(size) // 4)
        return float(np.median(size[-quarter:]) - np.median(size[:quarter])) / MIB


def watch(folder: Path, *, minutes: float) -> dict[str, Series]:
    """Series by "role pid", and of the server: "server rss" and "server data"."""
    bench = Bench.open(folder, Size(hosts=(2,), short="nothing"))
    series: dict[str, Series] = {}
    try:
        bench.play("ledger")
        began = bench.fleet.clock.monotonic()
        while (at_s := bench.fleet.clock.monotonic() - began) < 60 * minutes:
            for name, size in _sizes(bench).items():
                series.setdefault(name, Series()).at_s.append(at_s)
                series[name].size.append(size)
            bench.pause(EVERY_S)
    finally:
        violations = bench.close()
    if violations:
        raise AssertionError(f"while memory was watched: {violations[:5]}")
    return series


def _sizes(bench: Bench) -> dict[str, int]:
    fleet = bench.fleet
    sizes = {f"{role} {pid}": procs.rss_bytes(pid) for role in ROLES for pid in fleet.pids(role)}
    with redis.Redis.from_url(fleet.server.url) as client:
        sizes["server data"] = int(client.info("memory")["used_memory"])
    return sizes | {"server rss": procs.rss_bytes(fleet.server.pid)}


def table(series: dict[str, Series]) -> str:
    """For people."""
    rows = [f"{'memory of':<24}{'samples':>8}{'last':>12}{'growth':>12}{'slope':>14}"]
    for name, one in series.items():
        last = one.size[-1] / MIB
        rows.append(
            f"{name:<24}{len(one.size):>8}{last:>8.1f} MiB{one.growth_mib:>8.2f} MiB{one.slope_mib_h:>8.2f} MiB/h"
        )
    return "\n".join(rows)
