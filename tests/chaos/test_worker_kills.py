"""Workers as real processes, killed and frozen: their shards are played again in time, nothing is lost or repeated."""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from heddle.broker import Broker
from heddle.broker.keys import TRAINER_GROUP
from heddle.broker.pools import WorkerInfo
from heddle.broker.server import LocalServer, restart, start_server
from heddle.broker.types import ShardState
from heddle.clock import SystemClock
from heddle.launch.supervisor import Supervisor
from heddle.launch.vigil import Patience
from heddle.stop import StopFlag
from tests.chaos.planes import IN_PLACE
from tests.fixtures import on_url
from tests.helpers import eventually
from tests.poison_kit import POISON
from tests.worker_kit import Reader, coordinating, fresh, submit

TTL_S = 1.0
pytestmark = [pytest.mark.alone, pytest.mark.timeout(180)]


class Fleet:
    """A supervisor of real `heddle worker` processes."""

    def __init__(self, url: str, wants: int, *, patience: Patience | None = None) -> None:
        self.stop = StopFlag()
        self.supervisor = Supervisor(url, wants=wants, stop=self.stop, grace_s=15.0, patience=patience)
        self._clock = SystemClock()
        self.thread = threading.Thread(target=self.supervisor.run, daemon=True)
        self.thread.start()

    def pids(self) -> dict[str, int]:
        """Process id by worker id."""
        return {child.worker: child.pid for child in self.supervisor.children()}

    def end(self) -> None:
        self.stop.drain("the test is over")
        self.thread.join(30)
        assert not self.thread.is_alive()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LocalServer]:
    with start_server(tmp_path / "server") as running:
        yield running


@pytest.fixture
def url(server: LocalServer) -> Iterator[str]:
    with coordinating(server.url):
        yield server.url


broker = on_url


@pytest.fixture
def fleet(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    monkeypatch.setattr("heddle.launch.process.HEDDLE", IN_PLACE)
    running = Fleet(url, wants=2)
    yield running
    running.end()


class Pump:
    """Reads and settles in a thread, as a trainer does; remembers when each shard was last heard of."""

    def __init__(self, url: str, experiment: str, *, check: bool = True) -> None:
        self.url = url
        self.reader = Reader(fresh(url), experiment, check=check)
        self.clock = SystemClock()
        self.heard: dict[int, float] = {}
        self.owners: dict[int, int] = {}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.reader.publish(1)
        self._thread.start()

    def _run(self) -> None:
        while not self._end.is_set():
            new = self.reader.pull(block_ms=50)
            for pointer in new:
                self.heard[pointer.shard] = self.clock.monotonic()
                self.owners[pointer.shard] = pointer.epoch
            self.reader.ack(new)

    def end(self) -> None:
        """Stop reading; every seq of every shard must have come once, in order, and by the way that the spec names."""
        self._end.set()
        if self._thread.is_alive():
            self._thread.join(10)
            self.reader.check_plane()
        self.reader.check_continuity()


def owner_of(broker: Broker, experiment: str, shard: int) -> str:
    return state_of(broker, experiment, shard).worker


def state_of(broker: Broker, experiment: str, shard: int = 0) -> ShardState:
    return broker.shards.shards(experiment, 0)[shard]


def both_playing(broker: Broker, experiment: str, pump: Pump) -> bool:
    owners = {owner_of(broker, experiment, shard) for shard in (0, 1)}
    return len(owners - {""}) == 2 and len(pump.heard) == 2


def await_another_owner(pump: Pump, epoch: int) -> None:
    """Wait for a batch of shard 0 from a later owner."""
    eventually(lambda: pump.owners[0] > epoch, timeout_s=10, what="another owner's batch")


@pytest.fixture
def playing(url: str, broker: Broker, fleet: Fleet, plane: str) -> Iterator[tuple[str, Pump]]:
    """Two workers that play a shard each of one experiment."""
    faults, env = {"lease_ttl": TTL_S, "barren_deaths": 50}, {"kwargs": {"step_s": 0.002}}
    experiment = submit(broker, faults=faults, env=env, rollout={"plane": plane})
    pump = Pump(url, experiment)
    eventually(lambda: both_playing(broker, experiment, pump), timeout_s=40, what="both workers play")
    yield experiment, pump
    pump.end()
    pump.reader.end()


def test_after_sigkill_a_living_supervisor_has_the_shard_played_again_within_a_second(
    broker: Broker, fleet: Fleet, playing: tuple[str, Pump]
) -> None:
    experiment, pump = playing
    for _ in range(3):
        eventually(lambda: both_playing(broker, experiment, pump), timeout_s=40)
        victim, epoch = owner_of(broker, experiment, 0), pump.owners[0]
        killed_at = pump.clock.monotonic()
        os.kill(fleet.pids()[victim], signal.SIGKILL)
        await_another_owner(pump, epoch)
        assert pump.heard[0] - killed_at < 1.0
    flow = broker.experience.flow(experiment, 0)
    assert flow.forgotten.batches == 0


def test_a_frozen_workers_shard_is_played_again_within_a_ttl_and_a_second_and_the_thawed_one_cannot_append(
    broker: Broker, fleet: Fleet, playing: tuple[str, Pump]
) -> None:
    experiment, pump = playing
    victim, epoch = owner_of(broker, experiment, 0), pump.owners[0]
    pid = fleet.pids()[victim]
    frozen_at = pump.clock.monotonic()
    os.kill(pid, signal.SIGSTOP)
    try:
        await_another_owner(pump, epoch)
        assert pump.heard[0] - frozen_at < TTL_S + 1.0
    finally:
        os.kill(pid, signal.SIGCONT)
    eventually(lambda: both_playing(broker, experiment, pump), timeout_s=20, what="the thawed one works again")
    assert fleet.pids()[victim] == pid, "it lives on"


def test_a_worker_that_stays_frozen_is_replaced_and_everybody_can_read_why(url: str, broker: Broker) -> None:
    # Given two workers at play, whose supervisor has little patience
    fleet = Fleet(url, wants=2, patience=Patience(stopped_s=3.0))
    try:
        experiment = submit(broker, faults={"lease_ttl": TTL_S, "barren_deaths": 50}, env={"kwargs": {"step_s": 0.002}})
        pump = Pump(url, experiment)
        eventually(lambda: both_playing(broker, experiment, pump), timeout_s=40, what="both workers play")
        victim = owner_of(broker, experiment, 0)
        pid, other = fleet.pids()[victim], (fleet.pids().keys() - {victim}).pop()
        # When one is frozen and nobody wakes it
        os.kill(pid, signal.SIGSTOP)
        # Then the pool is at its size again, the neighbour is who it was, and both play
        eventually(lambda: victim not in fleet.pids() and len(fleet.pids()) == 2, timeout_s=30, what="replaced")
        assert other in fleet.pids()

        def heirs_play() -> bool:
            owners = {owner_of(broker, experiment, shard) for shard in (0, 1)}
            return owners == set(fleet.pids())

        eventually(heirs_play, timeout_s=40, what="both of those that live play")
        # And its row tells where it ran and what became of it
        seen = eventually(lambda: dead_row(broker, victim))
        assert seen is not None
        assert (seen.beat.pid, seen.beat.supervisor) == (pid, fleet.supervisor.name)
        assert "stopped" in seen.died and "killed and replaced" in seen.died
        pump.end()
    finally:
        fleet.end()


def dead_row(broker: Broker, worker: str) -> WorkerInfo | None:
    """A worker as its pool lists it, once it is said how it died."""
    return next((one for one in broker.pools.workers() if one.beat.worker == worker and one.died), None)


def test_a_broker_that_is_killed_and_started_again_loses_no_worker_and_no_batch(
    broker: Broker, fleet: Fleet, server: LocalServer, playing: tuple[str, Pump]
) -> None:
    experiment, pump = playing
    pids, clock = fleet.pids(), SystemClock()
    pump.end()
    os.kill(server.pid, signal.SIGKILL)
    eventually(lambda: not server.is_running())
    clock.sleep(2 * TTL_S)  # every lease is over before anybody can renew one
    again = restart(server, clock)
    try:
        back_at = clock.monotonic()
        with fresh(again.url) as seen:
            before = {shard.shard: shard for shard in seen.shards.shards(experiment, 0)}
            assert {shard.worker for shard in before.values()} <= set(pids)

            def all_go_on() -> bool:
                return all(s.seq > before[s.shard].seq + 1 for s in seen.shards.shards(experiment, 0))

            eventually(all_go_on, timeout_s=10, every_s=0.05)
            assert clock.monotonic() - back_at < 5.0
            assert fleet.pids() == pids, "no worker was restarted"
            settled = {shard: pump.reader.seqs(shard)[-1] for shard in (0, 1)}
            left = seen.experience.take_over(experiment, 0, TRAINER_GROUP, "reader")
            left += seen.experience.read(experiment, 0, TRAINER_GROUP, "reader", count=10_000, block_ms=100)
            for shard in (0, 1):
                seqs = [p.seq for p in left if p.shard == shard and p.seq > settled[shard]]
                assert seqs == list(range(settled[shard] + 1, settled[shard] + 1 + len(seqs)))
    finally:
        fleet.end()
        again.stop()


def test_an_environment_that_kills_its_process_is_set_aside_and_the_others_go_on(
    broker: Broker, fleet: Fleet, playing: tuple[str, Pump], tmp_path: Path
) -> None:
    experiment, pump = playing
    kill = tmp_path / "kill"
    poison = submit(
        broker,
        experiment={"name": "poison"},
        env={"num_envs": 2, "kwargs": {"kill_file": str(kill)}},
        faults={"lease_ttl": TTL_S, "barren_deaths": 2},
    )
    broker.experiments.set_command(poison, "pause")
    poisoner = Pump(pump.url, poison)  # makes an environment in this process, to see its spaces
    kill.touch()
    broker.experiments.set_command(poison, "run")
    eventually(lambda: broker.shards.shards(poison, 0)[0].state == "quarantined", timeout_s=60)
    assert poisoner.heard == {}
    poisoner.end()
    failure = broker.shards.failures(poison, 0, 0)[0]
    assert failure.cause == "exit"
    assert "exit code 9" in failure.what
    told = " ".join(event.message for event in broker.events.read(poison, count=100))
    assert f"died while stepping shard 0 of {poison}" in told
    assert 'isolation = "process"' in told
    others = [shard.deaths for shard in broker.shards.shards(experiment, 0)]
    assert others == [0, 0], "only the shard that was being stepped is blamed"
    heard = dict(pump.heard)
    eventually(lambda: all(pump.heard[shard] > heard[shard] for shard in (0, 1)), timeout_s=30, what="the others go on")


@pytest.mark.parametrize(("steps", "faults"), [(16, {"barren_deaths": 3}), (2, {"env_failures": 3})])
def test_a_shard_in_a_child_is_not_blamed_for_the_crashes_of_an_inline_one_on_its_worker(
    url: str, broker: Broker, monkeypatch: pytest.MonkeyPatch, steps: int, faults: dict[str, int]
) -> None:
    # Given one worker with an isolated shard, of which one death or failure is too much, and an inline one which
    # crashes its process before (16 steps) or after (2 steps) its first batch
    monkeypatch.setattr("heddle.launch.process.HEDDLE", IN_PLACE)
    isolated = submit(
        broker,
        experiment={"name": "isolated"},
        env={"num_envs": 1, "envs_per_shard": 1, "isolation": "process", "kwargs": {"step_s": 0.1}},
        faults={"lease_ttl": TTL_S, "barren_deaths": 1, "env_failures": 1},
    )
    crashing = submit(
        broker,
        experiment={"name": "crashing"},
        env={"id": POISON, "num_envs": 1, "envs_per_shard": 1, "kwargs": {"how": "segfault"}},
        rollout={"steps": steps},
        faults={"lease_ttl": TTL_S, **faults},
    )
    pumps = {isolated: Pump(url, isolated), crashing: Pump(url, crashing, check=False)}
    fleet = Fleet(url, wants=1)
    # When that has crashed the worker until it was set aside
    eventually(
        lambda: state_of(broker, crashing).state == "quarantined", timeout_s=120, what="the crashing one set aside"
    )
    # Then nothing of it is counted or told against the isolated one, which goes on
    heard = pumps[isolated].heard.get(0, 0.0)
    eventually(lambda: pumps[isolated].heard.get(0, 0.0) > heard, timeout_s=60, what="the isolated one goes on")
    found = state_of(broker, isolated)
    assert (found.state, found.deaths, found.failures, found.last_error) == ("leased", 0, 0, "")
    assert found.attempts > 1, "it was held in those crashes"
    assert broker.shards.failures(isolated, 0, 0) == []
    assert not [event for event in broker.events.read(isolated, count=200) if "while stepping" in event.message]
    for pump in pumps.values():
        pump.end()
    fleet.end()


@pytest.mark.timeout(400)
@pytest.mark.parametrize("neighbours", [0, 3])
def test_a_shard_in_a_child_that_kills_its_worker_is_set_aside_and_its_neighbours_are_not(
    url: str, broker: Broker, monkeypatch: pytest.MonkeyPatch, neighbours: int
) -> None:
    # Given one worker, an isolated shard whose environment kills it before its first batch, and some that are sound
    monkeypatch.setattr("heddle.launch.process.HEDDLE", IN_PLACE)
    pumps = []
    sound = ""
    if neighbours:
        sound = submit(
            broker,
            experiment={"name": "sound"},
            env={"num_envs": neighbours, "envs_per_shard": 1, "isolation": "process", "kwargs": {"step_s": 0.02}},
            faults={"lease_ttl": TTL_S, "barren_deaths": 1},
        )
        pumps.append(Pump(url, sound))
    killing = submit(
        broker,
        experiment={"name": "killing"},
        env={
            "id": POISON,
            "num_envs": 1,
            "envs_per_shard": 1,
            "isolation": "process",
            "kwargs": {"how": "kill_parent"},
        },
        rollout={"steps": 16},
        faults={"lease_ttl": TTL_S, "barren_deaths": 2},
    )
    pumps.append(Pump(url, killing, check=False))
    fleet = Fleet(url, wants=1)
    # When it has killed workers until it was set aside
    eventually(lambda: state_of(broker, killing).state == "quarantined", timeout_s=150, what="it is set aside")
    found = state_of(broker, killing)
    assert found.deaths == 2 and "signal SIGKILL" in found.last_error and "isolation" not in found.last_error
    assert broker.shards.failures(killing, 0, 0)[0].cause == "signal"
    # Then nothing of it is told against the others, of which one such death would have been enough, and they go on
    if neighbours:
        heard = dict(pumps[0].heard)
        for shard in range(neighbours):
            eventually(lambda s=shard: pumps[0].heard.get(s, 0.0) > heard.get(s, 0.0), timeout_s=60)  # type: ignore[misc]
        states = broker.shards.shards(sound, 0)
        assert [(one.state, one.deaths, one.last_error) for one in states] == [("leased", 0, "")] * neighbours
        assert broker.shards.failures(sound, 0, 0) == []
    for pump in pumps:
        pump.end()
    fleet.end()


def test_what_an_inline_environment_does_to_its_process_keeps_no_child_of_another_experiment_from_starting(
    url: str, broker: Broker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # Given one worker that plays an environment which has taken search path, variables and working directory away
    monkeypatch.setattr("heddle.launch.process.HEDDLE", IN_PLACE)
    spoiling = submit(
        broker,
        experiment={"name": "spoiling"},
        env={
            "id": POISON,
            "num_envs": 1,
            "envs_per_shard": 1,
            "kwargs": {"how": "spoil", "folder": str(tmp_path)},
        },
        faults={"lease_ttl": TTL_S},
    )
    pumps = [Pump(url, spoiling, check=False)]
    fleet = Fleet(url, wants=1)
    eventually((tmp_path / "spoilt").exists, timeout_s=60, what="the spoiling one has spoilt its process")
    # When it is given an isolated shard
    isolated = submit(
        broker,
        experiment={"name": "isolated"},
        env={"num_envs": 1, "envs_per_shard": 1, "isolation": "process"},
        faults={"lease_ttl": TTL_S, "barren_deaths": 1},
    )
    pumps.append(Pump(url, isolated))
    # Then that is played as if nothing had happened
    eventually(lambda: bool(pumps[1].heard), timeout_s=60, what="the isolated one plays")
    found = state_of(broker, isolated)
    assert (found.attempts, found.deaths, found.failures, found.last_error) == (1, 0, 0, "")
    assert owner_of(broker, spoiling, 0) == found.worker
    for pump in pumps:
        pump.end()
    fleet.end()


def test_a_worker_told_to_end_delivers_what_it_played_and_exits_cleanly(
    broker: Broker, fleet: Fleet, playing: tuple[str, Pump]
) -> None:
    experiment, pump = playing
    victim, epoch = owner_of(broker, experiment, 0), pump.owners[0]
    asked_at = pump.clock.monotonic()
    os.kill(fleet.pids()[victim], signal.SIGTERM)
    await_another_owner(pump, epoch)
    assert pump.heard[0] - asked_at < 2.0
    assert broker.experience.flow(experiment, 0).discarded.batches == 0
    eventually(lambda: victim not in fleet.pids())
    assert any(f"{victim} left by itself" in event.message for event in broker.events.read(count=1000))
