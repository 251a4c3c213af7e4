"""The bench: a fleet to measure on, one kind of trouble at a time, and the table of what came out.

It never decides what is done to the fleet.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import redis

from tests.chaos import procs
from tests.chaos.fleet import Fleet, Size
from tests.chaos.history import History
from tests.chaos.observer import Observer
from tests.chaos.proxy import Proxy
from tests.chaos.report import Times, shard_recovery
from tests.chaos.schedule import Action
from tests.chaos.siege import Hit

MARGIN = float(os.environ.get("HEDDLE_RECOVERY_MARGIN", "1.5"))
"""How much of what is promised for an idle machine the worst case may take; 1 asks for the promise itself.

Thirty measurements on two cores that others use as well contain a pause or two that are the machine's: since workers
are forked the worst of all was 1.1 times the promise (docs/reliability.md, Measured). Medians have no margin, and
`test_worker_kills.py` asks for the promise itself of a killed and of a frozen worker.
"""
LOADING_MARGIN = float(os.environ.get("HEDDLE_RECOVERY_MARGIN", "2.5"))
"""For what mostly loads libraries, which takes as many times as long as there are others on its core: 2.2 times the
promise with ten of them. Half of it holds for the median, too."""
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
        loads: it mostly loads libraries.
    """

    what: str
    bound_s: float
    took: Times
    loads: bool = False

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
        if proxy is not None:
            kwargs["urls"] = proxy.urls()
        fleet = Fleet(folder, size, **kwargs)
        observer = Observer(fleet.server, fleet.home, folder / "kept").start()
        fleet.on_dead_server = observer.server_was_killed
        return cls(fleet, observer, np.random.default_rng(seed))

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
        alive = {self.fleet.worker_id(pid): pid for pid in self.fleet.pids("worker")}
        with self.observer.lock:
            return {w: pid for w, pid in alive.items() if any(h.held_by(w) for h in self.histories().values())}

    def hit(self, kind: str, pid: int, role: str, deed: Callable[[], None]) -> Hit:
        """Do it, and write down when."""
        command = found.command if (found := procs.process(pid)) else ""
        worker = self.fleet.worker_id(pid)
        with self.observer.lock:
            held = {(n, s): e for n, h in self.histories().items() for s, e in h.held_by(worker).items() if worker}
        hit = Hit(Action(0.0, "kill", role, 0.0, 0.0), self.now_ms(), pid, command, held)
        deed()
        self.hits.setdefault(kind, []).append(hit)
        return hit

    def is_back(self, hit: Hit) -> bool:
        """All shards that the victim held have been played by others."""
        return shard_recovery(hit, self.histories()) is not None

    def took(self, hit: Hit) -> float:
        """Seconds until they had."""
        seconds = shard_recovery(hit, self.histories())
        assert seconds is not None
        return seconds

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


def leader(url: str) -> tuple[str, int, int]:
    """Who leads, under which epoch (server ms of the claim, as long as clocks go forward), until when."""
    with redis.Redis.from_url(url, decode_responses=True) as client:
        name, epoch, until = client.hmget("heddle:coordinator", "id", "epoch", "until")
    return name or "", int(epoch or 0), int(until or 0)
