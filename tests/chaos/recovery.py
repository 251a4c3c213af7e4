"""Recovery times against promise P3: one kind of death at a time, measured again and again.

It never measures by polling: a shard is back when the server accepted a batch of a later owner, a trainer when it
reported an update, and both are server milliseconds, as are the moments of the deaths.
"""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import redis

from tests.chaos import procs
from tests.chaos.fleet import WORKER_ID, Fleet, Size
from tests.chaos.history import History
from tests.chaos.observer import Observer
from tests.chaos.proxy import Proxy
from tests.chaos.report import Times, shard_recovery, times, trainer_recovery
from tests.chaos.schedule import Action
from tests.chaos.siege import Hit

TTL_S = 1.0
WAIT_S = 60.0
"""Longest wait for a fleet to be ready for the next death, or for one to be overcome."""
CALM_S = 0.3
"""Between two deaths, so that the first is really over."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One line of the table.

    Attributes:
        bound_s: what P3 promises.
    """

    what: str
    bound_s: float
    took: Times

    @property
    def kept(self) -> bool:
        """Every one came back, and 99 of 100 within the bound."""
        return not self.took.never and self.took.p99 <= self.bound_s


def table(lines: list[Measured]) -> str:
    """For people."""
    head = f"{'after the death of':<42}{'n':>4}{'median':>9}{'p99':>9}{'worst':>9}{'promised':>10}"
    rows = [
        f"{m.what:<42}{m.took.count:>4}{m.took.median:>7.2f} s{m.took.p99:>7.2f} s{m.took.worst:>7.2f} s"
        f"{m.bound_s:>8.1f} s{'' if m.kept else '  MISSED'}"
        for m in lines
    ]
    return "\n".join([head, *rows])


@dataclass(slots=True)
class Bench:
    """A fleet, its experiments and what was seen of them.

    Attributes:
        hits: the deaths so far, by kind.
    """

    fleet: Fleet
    observer: Observer
    rng: np.random.Generator
    hits: dict[str, list[Hit]] = field(default_factory=dict)

    @classmethod
    def open(cls, folder: Path, size: Size, *, seed: int = 1, proxy: Proxy | None = None, **kwargs: Any) -> "Bench":
        """A fleet in `folder`, without experiments yet."""
        fleet = Fleet(folder, size, urls=proxy.urls() if proxy else None, **kwargs)
        return cls(fleet, Observer(fleet.server, fleet.home, folder / "kept").start(), np.random.default_rng(seed))

    def play(self, name: str, **sections: dict[str, Any]) -> str:
        """Submit an experiment and wait until it is trained; its id."""
        experiment = self.fleet.submit(name, **sections)
        history = self.observer.watch(experiment).history
        self.until(lambda: history.updates, f"{experiment} is trained")
        return experiment

    def histories(self) -> dict[str, History]:
        """Of every experiment."""
        return {name: one.history for name, one in self.observer.watched.items()}

    def until(self, fact: Callable[[], Any], what: str, *, timeout_s: float = WAIT_S) -> None:
        """Keep the fleet running until it is so."""
        deadline = self.fleet.clock.monotonic() + timeout_s
        while True:
            with self.observer.lock:
                if fact():
                    return
            if self.fleet.clock.monotonic() > deadline:
                raise AssertionError(f"not within {timeout_s:g} s: {what}")
            self.pause(0.02)

    def pause(self, seconds: float) -> None:
        """Let time pass."""
        deadline = self.fleet.clock.monotonic() + seconds
        while self.fleet.clock.monotonic() < deadline:
            self.fleet.step()
            self.fleet.clock.sleep(0.01)

    def owners(self) -> dict[str, int]:
        """Pid by id of every living worker that holds a shard."""
        alive = {procs.environment(pid, WORKER_ID): pid for pid in self.fleet.pids("worker")}
        with self.observer.lock:
            return {w: pid for w, pid in alive.items() if any(h.held_by(w) for h in self.histories().values())}

    def hit(self, kind: str, pid: int, role: str, deed: Callable[[], None]) -> Hit:
        """Do it, and write down when."""
        command = found.command if (found := procs.process(pid)) else ""
        worker = procs.environment(pid, WORKER_ID)
        with self.observer.lock:
            held = {(n, s): e for n, h in self.histories().items() for s, e in h.held_by(worker).items() if worker}
        hit = Hit(Action(0.0, "kill", role, 0.0, 0.0), self.now_ms(), pid, command, held)
        deed()
        self.hits.setdefault(kind, []).append(hit)
        return hit

    def now_ms(self) -> int:
        """As the server counts."""
        return int(self.fleet.clock.wall() * 1000)

    def close(self) -> list[str]:
        """End it all; what the observer found broken."""
        try:
            self.observer.stop()
        finally:
            self.fleet.end()
        return [one for watched in self.observer.watched.values() for one in watched.violations()]


def measure_workers(folder: Path, *, each: int) -> tuple[list[Measured], list[str]]:
    """Workers killed, killed together with their supervisor, and frozen, in turn."""
    bench = Bench.open(folder, Size(hosts=(1, 1, 1, 1), short="restarts"))
    kinds = {"worker": _kill_worker, "host": _kill_host, "frozen": _freeze_worker}
    try:
        bench.play("ledger", env={"num_envs": 16})
        for _ in range(each):
            for kind, deed in kinds.items():
                bench.until(lambda: len(bench.owners()) >= 3, "three workers hold shards")
                bench.pause(CALM_S * (1 + bench.rng.random()))
                deed(bench, kind)
    finally:
        violations = bench.close()
    took = {
        kind: times(shard_recovery(hit, bench.histories()) for hit in bench.hits[kind] if hit.held) for kind in kinds
    }
    return [
        Measured("a worker (its supervisor lives)", 1.0, took["worker"]),
        Measured(f"a worker and its supervisor (TTL {TTL_S:g} s)", TTL_S + 1, took["host"]),
        Measured(f"a frozen worker (TTL {TTL_S:g} s)", TTL_S + 1, took["frozen"]),
    ], violations


def _victim(bench: Bench) -> int:
    owners = bench.owners()
    return owners[sorted(owners)[int(bench.rng.integers(len(owners)))]]


def _await_back(bench: Bench, hit: Hit) -> None:
    if hit.held:  # else it let go of its shards at that very moment
        bench.until(lambda: shard_recovery(hit, bench.histories()) is not None, f"the shards of {hit.held} are back")


def _kill_worker(bench: Bench, kind: str) -> None:
    pid = _victim(bench)
    _await_back(bench, bench.hit(kind, pid, "worker", lambda: os.kill(pid, signal.SIGKILL)))


def _kill_host(bench: Bench, kind: str) -> None:
    pid = _victim(bench)
    found = procs.process(pid)
    assert found is not None
    supervisor = found.parent

    def both() -> None:
        os.kill(supervisor, signal.SIGSTOP)  # so that it cannot tell of the worker's death
        os.kill(pid, signal.SIGKILL)
        os.kill(supervisor, signal.SIGKILL)

    _await_back(bench, bench.hit(kind, pid, "worker", both))


def _freeze_worker(bench: Bench, kind: str) -> None:
    pid = _victim(bench)
    hit = bench.hit(kind, pid, "worker", lambda: os.kill(pid, signal.SIGSTOP))
    try:
        _await_back(bench, hit)
    finally:
        os.kill(pid, signal.SIGCONT)


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
    return [Measured("a trainer", 10.0, took)], violations


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


def leader(url: str) -> tuple[str, int, int]:
    """Who leads, under which epoch (server ms of the claim, as long as clocks go forward), until when."""
    with redis.Redis.from_url(url, decode_responses=True) as client:
        name, epoch, until = client.hmget("heddle:coordinator", "id", "epoch", "until")
    return name or "", int(epoch or 0), int(until or 0)
