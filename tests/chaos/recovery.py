"""Recovery after deaths against promise P3: workers, hosts, frozen workers, trainers, coordinators; again and again.

It never measures by polling: a shard is back when the server accepted a batch of a later owner, a trainer when it
reported an update, and both are server milliseconds, as are the moments of the deaths.
"""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.chaos import procs
from tests.chaos.bench import CALM_S, TTL_S, WAIT_S, Bench, Measured, leader
from tests.chaos.fleet import Fleet, Size
from tests.chaos.report import shard_recovery, times, trainer_recovery
from tests.chaos.siege import Hit


def measure_workers(folder: Path, *, each: int) -> tuple[list[Measured], list[str]]:
    """Workers killed, then one killed together with its supervisor while another is frozen, in turn."""
    bench = Bench.open(folder, Size(hosts=(1, 1, 1, 1, 1), short="restarts"))
    try:
        bench.play("ledger", env={"num_envs": 16})
        for _ in range(each):
            for deed, owners in ((_kill_worker, 3), (_kill_host_and_freeze_another, 4)):
                bench.until(lambda owners=owners: len(bench.owners()) >= owners, f"{owners} workers hold shards")  # type: ignore[misc]
                bench.pause(CALM_S * (1 + bench.rng.random()))
                deed(bench)
    finally:
        violations = bench.close()
    took = {
        kind: times(shard_recovery(hit, bench.histories()) for hit in hits if hit.held)
        for kind, hits in bench.hits.items()
    }
    return [
        Measured("a worker (its supervisor lives)", 1.0, took["worker"]),
        Measured(f"a worker and its supervisor (TTL {TTL_S:g} s)", TTL_S + 1, took["host"]),
        Measured(f"a frozen worker (TTL {TTL_S:g} s)", TTL_S + 1, took["frozen"]),
    ], violations


def _victims(bench: Bench, count: int) -> list[int]:
    """So many workers that hold shards."""
    owners = bench.owners()
    return [owners[name] for name in bench.rng.permutation(sorted(owners))[:count]]


def _await_back(bench: Bench, hit: Hit) -> None:
    if hit.held:  # else it let go of its shards at that very moment
        bench.until(lambda: shard_recovery(hit, bench.histories()) is not None, f"the shards of {hit.held} are back")


def _kill_worker(bench: Bench) -> None:
    (pid,) = _victims(bench, 1)
    _await_back(bench, bench.hit("worker", pid, "worker", lambda: os.kill(pid, signal.SIGKILL)))


def _kill_host_and_freeze_another(bench: Bench) -> None:
    """Both are over when a lease runs out, which is waited for together."""
    dies, freezes = _victims(bench, 2)
    found = procs.process(dies)
    assert found is not None
    supervisor = found.parent

    def both() -> None:
        os.kill(supervisor, signal.SIGSTOP)  # so that it cannot tell of the worker's death
        os.kill(dies, signal.SIGKILL)
        os.kill(supervisor, signal.SIGKILL)

    died = bench.hit("host", dies, "worker", both)
    frozen = bench.hit("frozen", freezes, "worker", lambda: os.kill(freezes, signal.SIGSTOP))
    try:
        _await_back(bench, died)
        _await_back(bench, frozen)
    finally:
        os.kill(freezes, signal.SIGCONT)


def measure_trainers(folder: Path, *, each: int, at_once: int = 3) -> tuple[list[Measured], list[str]]:
    """Trainers killed, those of several experiments in turn, while their host lives."""
    bench = Bench.open(folder, Size(hosts=(2,), short="restarts"))
    try:
        names = [bench.play(f"ledger-{number}") for number in range(at_once)]
        last: dict[str, Hit] = {}
        for number in range(each):
            name = names[number % at_once]
            if name in last:
                _await_trainer(bench, last[name])
            bench.pause(CALM_S * (1 + bench.rng.random()))
            pid = next(pid for pid in bench.fleet.pids("trainer") if name in (procs.process(pid) or _nobody()).command)
            last[name] = bench.hit("trainer", pid, "trainer", lambda pid=pid: os.kill(pid, signal.SIGKILL))  # type: ignore[misc]
        for hit in last.values():
            _await_trainer(bench, hit)
    finally:
        violations = bench.close()
    took = times(trainer_recovery(hit, bench.histories()) for hit in bench.hits["trainer"])
    return [Measured("a trainer", 10.0, took, loads=True)], violations


def _nobody() -> procs.Process:
    return procs.Process(0, 0, "")


def _await_trainer(bench: Bench, hit: Hit) -> None:
    bench.until(lambda: trainer_recovery(hit, bench.histories()) is not None, f"{hit.command} is back")


def measure_coordinators(folder: Path, *, each: int, at_once: int = 3) -> tuple[list[Measured], list[str]]:
    """Leading coordinators killed, in several fleets of nothing else at once."""
    size = Size(coordinators=2, hosts=(), trainer_hosts=0, short="restarts")
    fleets = [Fleet(folder / str(number), size) for number in range(at_once)]
    took: list[float | None] = []
    try:
        rounds = -(-each // at_once)
        for _ in range(rounds):
            took += _leaders_killed(fleets)
    finally:
        for fleet in fleets:
            fleet.end()
    return [Measured("the leading coordinator", 4.0, times(took))], []


def _leaders_killed(fleets: list[Fleet]) -> list[float | None]:
    """Kill the leader of each, wait for the next ones; seconds each took."""
    clock = fleets[0].clock
    deadline = clock.monotonic() + WAIT_S

    def step_until(fact: Callable[[], bool]) -> bool:
        while not fact() and clock.monotonic() < deadline:
            for fleet in fleets:
                fleet.step()
            clock.sleep(0.02)
        return fact()

    def both_alive(fleet: Fleet) -> bool:
        return len(fleet.pids("coordinator")) == 2 and all("started coordinator" in _said(m) for m in fleet.members)

    step_until(lambda: all(leader(f.server.url)[1] and both_alive(f) for f in fleets))
    clock.sleep(0.5)
    killed = []
    for fleet in fleets:
        name, epoch, _ = leader(fleet.server.url)
        pid = int(name.split("-")[-2])
        killed.append((fleet, epoch, int(clock.wall() * 1000)))
        os.kill(pid, signal.SIGKILL)
    step_until(lambda: all(leader(fleet.server.url)[1] > epoch for fleet, epoch, _ in killed))
    return [
        (leader(fleet.server.url)[1] - at_ms) / 1000 if leader(fleet.server.url)[1] > epoch else None
        for fleet, epoch, at_ms in killed
    ]


def _said(member: Any) -> str:
    return "\n".join(member.child.tail()) if member.child is not None else ""
