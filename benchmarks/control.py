"""The control plane under a fleet: light workers that run the real protocol, one Redis, one coordinator.

Reports how fast the shards of a fresh experiment are claimed, which shares of a core server and coordinator use while
nothing changes, and how long it takes until every shard of a half of the fleet that died at once is played by somebody
else; and until all are held at the same time, for once the dead are counted out the living even out what they took.

    python -m benchmarks.control [WORKERS SHARDS]

By default 2,000 workers with 20,000 shards, which is minutes of a quiet machine; `make bench` takes fewer.
"""

import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack

from benchmarks.fleet import Fleet, fleet
from benchmarks.measure import CLOCK, Row, cpu_s_of, spread
from heddle.errors import TimedOut
from heddle.launch.local import Local

WORKERS, SHARDS = 300, 3000
LARGE = (2000, 20_000)
TTL_S = 10.0
STEADY_S = 10.0
SLOWEST = 60.0
"""Claims a second: fewer are a failure."""
PATIENCE_S = 60.0
PROCESSES = 6
"""Of light workers, of which the first half dies: one process alone would be busy with its own lock."""


class Lights:
    """One process of light workers.

    Attributes:
        held: shards that they hold; claimed: those that they got since somebody emptied this.
    """

    def __init__(self, url: str, experiment: str, first: int, count: int) -> None:
        argv = [
            sys.executable,
            "-m",
            "benchmarks.swarm",
            url,
            experiment,
            str(first),
            str(count),
            str(int(1000 * TTL_S)),
        ]
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.held, self.claimed, self.failure = 0, set[int](), ""
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            words = line.split()
            if words and all(word.isdigit() for word in words):
                self.held = int(words[0])
                self.claimed.update(map(int, words[1:]))
            else:
                self.failure = line.strip()

    def kill(self) -> None:
        """As the system does it: nobody says good-bye."""
        self.process.kill()
        self.process.wait()
        self.held = 0


def run() -> list[Row]:
    """Rows for a fleet that `make bench` has time for."""
    return measure(WORKERS, SHARDS)


def measure(workers: int, shards: int) -> list[Row]:
    """Rows for `workers` light workers, of which half die, and `shards` shards."""
    section = f"control plane, {workers:,} light workers, {shards:,} shards"
    with fleet(0) as it, ExitStack() as stack:
        local, experiment = it.local, it.submit(source(shards))
        groups = _start(stack, local, experiment.id, workers)
        dying, living = groups[: PROCESSES // 2], groups[PROCESSES // 2 :]
        claimed_s = _wait(local, groups, shards, CLOCK.monotonic())
        _settle(it, groups)
        shares = _shares(local, groups)
        began = CLOCK.monotonic()
        for group in living:
            group.claimed.clear()
        for group in dying:
            group.kill()
        left = {shard.shard for shard in experiment.shards() if _number(shard.worker) < _first(workers, len(dying))}
        taken_s = _until(local, living, lambda: left <= set[int]().union(*(one.claimed for one in living)), began)
        again_s = _wait(local, living, shards, began)
    return [
        Row(section, "all shards claimed after", "s", spread([claimed_s])),
        *(
            Row(section, f"while nothing changes: share of a core, {role}", "x", spread([v]))
            for role, v in shares.items()
        ),
        Row(
            section,
            f"half of the fleet dies: its shards played by others after (TTL is {TTL_S:g} s)",
            "s",
            spread([taken_s]),
        ),
        Row(section, "half of the fleet dies: all shards held at the same time after", "s", spread([again_s])),
    ]


def _start(stack: ExitStack, local: Local, experiment: str, workers: int) -> list[Lights]:
    groups = []
    for part in range(PROCESSES):
        first, after = _first(workers, part), _first(workers, part + 1)
        groups.append(Lights(local.url, experiment, first, after - first))
        stack.callback(groups[-1].kill)
    return groups


def _first(workers: int, part: int) -> int:
    """Number of the first light worker of a process."""
    return workers * part // PROCESSES


def _number(worker: str) -> float:
    """Of a light worker; beyond all of them where there is none: a shard may be on its way between two."""
    return int(worker.removeprefix("light-")) if worker else float("inf")


def _settle(it: Fleet, groups: list[Lights]) -> None:
    """Until everybody has its part: while some have too few, others give theirs up."""
    began = CLOCK.monotonic()
    while it.client.broker.pools.pool().below and CLOCK.monotonic() - began < PATIENCE_S:
        _pause(it.local, groups, 0.5)
    _pause(it.local, groups, 3.0)


def source(shards: int) -> dict[str, object]:
    return {
        "experiment": {"name": "bench-control", "seed": 1},
        "env": {"id": "CartPole-v1", "num_envs": shards, "envs_per_shard": 1},
        "rollout": {"steps": 32},
        "faults": {"lease_ttl": TTL_S},
        "trainer": {"minibatch": 32},
        "budget": {"env_steps": 10**12},
    }


def _shares(local: Local, groups: list[Lights]) -> dict[str, float]:
    server = local.server
    assert server is not None
    pids = {
        "server": [server.pid],
        "coordinator": [role.child.pid for role in local.roles if role.child is not None],
        "light workers": [group.process.pid for group in groups],
    }
    before, began = {role: cpu_s_of(some) for role, some in pids.items()}, CLOCK.monotonic()
    _pause(local, groups, STEADY_S)
    wall_s = CLOCK.monotonic() - began
    return {role: (cpu_s_of(some) - before[role]) / wall_s for role, some in pids.items()}


def _wait(local: Local, groups: list[Lights], shards: int, began: float) -> float:
    """Seconds from `began` until these groups hold all shards."""
    return _until(local, groups, lambda: sum(group.held for group in groups) >= shards, began, shards / SLOWEST)


def _until(local: Local, groups: list[Lights], reached: Callable[[], bool], began: float, more_s: float = 0.0) -> float:
    """Seconds from `began` until `reached` says so."""
    while not reached():
        if CLOCK.monotonic() - began > PATIENCE_S + more_s:
            raise TimedOut(f"{[group.held for group in groups]} shards held after {PATIENCE_S + more_s:g} s")
        _pause(local, groups, 0.1)
    return CLOCK.monotonic() - began


def _pause(local: Local, groups: list[Lights], seconds: float) -> None:
    until = CLOCK.monotonic() + seconds
    while CLOCK.monotonic() < until:
        local.step()
        for group in groups:
            if group.failure or group.process.poll() is not None:
                raise RuntimeError(f"light workers ended: {group.failure}")
        CLOCK.sleep(0.05)


if __name__ == "__main__":
    for row in measure(*(map(int, sys.argv[1:3]) if len(sys.argv) > 2 else LARGE)):
        print(f"{row.section} | {row.what} | {row.unit} | {row.value.median:.3g}")
