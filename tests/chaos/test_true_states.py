"""Shown states are true under real signals: a frozen worker, trainer or coordinator, an environment that hangs, and a
screen that lost its broker. One fleet of real processes serves all of it."""

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from heddle.broker.coordinators import LEADER_TTL_MS
from heddle.broker.seats import SEAT_TTL_MS
from heddle.broker.server import start_server
from heddle.cli.facts import FactsReader
from heddle.client import Client, connect
from heddle.clock import SystemClock
from heddle.experiment import Experiment
from heddle.states.experiments import Picture
from heddle.states.judgement import Judgement
from tests.chaos.bench import MARGIN
from tests.e2e.shell import Started, heddle_json, started
from tests.helpers import eventually
from tests.worker_kit import COUNTING

TTL_S = 2.0
LONG_S = 40.0
"""For what has no promise of its own: a machine may be busy with other things."""
SEAT_S, LEAD_S = SEAT_TTL_MS / 1000, LEADER_TTL_MS / 1000

pytestmark = pytest.mark.alone


@dataclass
class Fleet:
    """A coordinator, two workers, a trainer and the experiment that they run."""

    folder: Path
    url: str
    client: Client
    experiment: Experiment
    coordinator: Started
    trainer: Started
    hang: Path

    def picture(self) -> Picture:
        return self.experiment.picture()

    def runs(self) -> None:
        """Wait until all is well again."""
        eventually(lambda: self.picture().experiment.state == "running", timeout_s=LONG_S, every_s=0.1, what="it runs")

    def pid_of_a_worker_that_plays(self) -> tuple[str, int]:
        """Id and pid of one that holds a shard."""
        held = {shard.worker for shard in self.experiment.shards() if shard.worker}
        found = [info.beat for info in self.client.broker.pools.workers() if info.alive and info.beat.worker in held]
        return found[0].worker, found[0].pid


def becomes(look: Callable[[], Judgement], *states: str, ttl_s: float = TTL_S) -> Judgement:
    """What is judged, once its state is one of these: within `ttl_s` + 1 s from now."""
    clock, last = SystemClock(), list[Judgement]()
    began = clock.monotonic()

    def seen() -> bool:
        last[:] = [look()]
        return last[0].state in states

    eventually(seen, timeout_s=LONG_S, every_s=0.05, what=f"one of {states}")
    took_s = clock.monotonic() - began
    print(f"{last[0].subject} is shown as {last[0].state} after {took_s:.2f} s, promised {ttl_s + 1:g} s")
    assert took_s <= MARGIN * (ttl_s + 1)
    return last[0]


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """SIGSTOP while inside."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("fleet")
    hang = folder / "hang"
    spec = {
        "experiment": {"name": "states"},
        "env": {
            "id": COUNTING,
            "num_envs": 2,
            "envs_per_shard": 1,
            "kwargs": {"hang_file": str(hang), "step_s": 0.002},
            "step_timeout": "8s",
        },
        "rollout": {"steps": 16},
        "policy": {"hidden": [4]},
        "trainer": {"minibatch": 16, "passes": 1},
        "budget": {"env_steps": 100_000_000},
        "faults": {"lease_ttl": TTL_S},
    }
    with start_server(folder / "broker", port=0) as server:
        url = server.url
        with started("coordinator", cwd=folder, url=url) as coordinator, connect(url) as client:
            experiment = client.submit(spec)
            with (  # the workers end first: they deliver what they have, and somebody has to take it
                started("trainer", experiment.id, cwd=folder, url=url) as trainer,
                started("workers", "start", "-n", "2", cwd=folder, url=url),
            ):
                made = Fleet(folder, url, client, experiment, coordinator, trainer, hang)
                made.runs()
                yield made
                hang.unlink(missing_ok=True)


def test_a_frozen_worker_is_not_shown_as_alive_and_its_run_says_whom_it_misses(fleet: Fleet) -> None:
    fleet.runs()
    worker, pid = fleet.pid_of_a_worker_that_plays()
    with frozen(pid):
        judged = becomes(lambda: fleet.picture().workers[worker], "dead")
        assert "no heartbeat" in judged.why
        told = becomes(lambda: fleet.picture().experiment, "degraded", "stalled")
        assert told.why
        eventually(lambda: all(shard.worker != worker for shard in fleet.experiment.shards()), timeout_s=LONG_S)
    eventually(lambda: fleet.picture().workers[worker].state in ("alive", "waiting"), timeout_s=LONG_S)
    fleet.runs()
    lines = [moment.what for moment in fleet.client.why_worker(worker, count=100).moments]
    assert any(line.startswith("reaped") for line in lines), lines
    eventually(
        lambda: any("lost shard=" in moment.what for moment in fleet.client.why_worker(worker, count=100).moments)
    )


def test_a_frozen_trainer_stalls_the_run_by_name(fleet: Fleet) -> None:
    fleet.runs()
    with frozen(fleet.trainer.pid):
        told = becomes(lambda: fleet.picture().experiment, "stalled", ttl_s=SEAT_S)
        assert "does not renew its seat" in told.why and f"heddle trainer {fleet.experiment.id}" in told.do
        (listed,) = heddle_json("ls", cwd=fleet.folder, url=fleet.url)["experiments"]
        assert (listed["state"], listed["phase"]) == ("stalled", "running")
        shown = heddle_json("why", "experiment", "states", cwd=fleet.folder, url=fleet.url)
        assert shown["because"][0]["subject"].startswith("trainer ")
    fleet.runs()


def test_a_frozen_coordinator_degrades_the_run_that_goes_on(fleet: Fleet) -> None:
    fleet.runs()
    with frozen(fleet.coordinator.pid):
        told = becomes(lambda: fleet.picture().experiment, "degraded", ttl_s=LEAD_S)
        assert "does not renew its lead" in told.why and "heddle coordinator" in told.do
    fleet.runs()


def test_an_environment_that_hangs_stalls_its_shard_and_says_where(fleet: Fleet) -> None:
    fleet.runs()
    fleet.hang.touch()
    try:
        stuck = eventually(
            lambda: [one for one in fleet.picture().shards.values() if "step does not" in one.why], timeout_s=LONG_S
        )
        assert stuck[0].state == "stalled" and "8 s" in stuck[0].do
        worker = next(one for one in fleet.picture().workers.values() if one.state == "stalled")
        assert worker.why.startswith("step of ")
        told = becomes(lambda: fleet.picture().experiment, "stalled")
        assert "nothing is played" in told.why
    finally:
        fleet.hang.unlink()
    fleet.runs()


class Proxy:
    """A TCP relay that can be cut."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._cut = False
        self._pairs: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self._cut = True
        for end in self._pairs:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def heal(self) -> None:
        self._cut = False

    def close(self) -> None:
        self.cut()
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                if self._cut:
                    near.close()
                    continue
                far = socket.create_connection(("127.0.0.1", self._to))
                self._pairs += [near, far]
                for source, target in ((near, far), (far, near)):
                    threading.Thread(target=self._relay, args=(source, target), daemon=True).start()

    @staticmethod
    def _relay(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
        for end in (source, target):
            end.close()


def test_a_screen_that_lost_its_broker_shows_unknown_and_nobody_dead(fleet: Fleet) -> None:
    fleet.runs()
    host, _, rest = fleet.url.rpartition(":")
    proxy = Proxy(int(rest.partition("/")[0]))
    reader = FactsReader(f"{host}:{proxy.port}/0", fleet.experiment.id, budget_steps=None, pool="default")
    reader.start()
    try:
        eventually(lambda: reader.facts().state == "running", timeout_s=LONG_S)
        dead = {worker.worker for worker in reader.facts().workers if worker.state == "dead"}
        proxy.cut()
        eventually(lambda: reader.facts().state == "unknown", timeout_s=LONG_S)
        facts = reader.facts()
        assert "does not answer; running when it last did" in facts.reason
        assert {worker.state for worker in facts.workers} == {"unknown"}
        assert len([event for event in facts.events if "broker:" in event]) == 1
        proxy.heal()
        seen: set[str] = set()

        def healed() -> bool:
            now = reader.facts()
            seen.update(worker.state for worker in now.workers if worker.worker not in dead)
            return now.state == "running"

        eventually(healed, timeout_s=LONG_S, every_s=0.02)
        assert "dead" not in seen, "whoever could not look has not seen anybody die"
    finally:
        reader.stop()
        proxy.close()
