"""With a snapshot at every batch, killed and frozen workers leave no trace in what is experienced: bit for bit; neither
does a server that is killed while every write is synced.

Half of the cases are killed while their batches go through shared memory, and are compared with what the broker carried
of them undisturbed; the other half the other way round. HEDDLE_SOAK=1 kills each of them both ways.
"""

import hashlib
import os
import signal
import subprocess
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis

from heddle.broker import Broker
from heddle.broker.server import LocalServer, restart, start_server
from heddle.clock import SystemClock
from heddle.launch.supervisor import URL_ENV
from heddle.layout import Segments
from tests.chaos.planes import IN_PLACE, PLANES, planes_of
from tests.frames_kit import NOISE, STACK
from tests.helpers import eventually
from tests.worker_kit import Reader, coordinating, fresh, submit

SOAK = bool(os.environ.get("HEDDLE_SOAK"))
KILLS = int(os.environ.get("HEDDLE_KILLS", "150" if SOAK else "8"))
BATCHES = max(60, 15 * KILLS)
TTL_S = 0.8
SLOWLY = {"id": "tests.snapshot_zoo:Brooding", "kwargs": {"pace_s": 0.002}}
CASES: dict[str, dict[str, Any]] = {
    "cartpole": {"id": "CartPole-v1", "num_envs": 4, "envs_per_shard": 2, "kwargs": {"max_episode_steps": 20}},
    "dice": {"id": "tests.snapshot_zoo:Dice", "num_envs": 3, "envs_per_shard": 3},
    "walk": {"id": "tests.snapshot_zoo:Walk", "num_envs": 1, "envs_per_shard": 1},
    "robot": {"id": "tests.snapshot_zoo:Robot", "num_envs": 2, "envs_per_shard": 2},
    "layers": {"id": "tests.snapshot_zoo:layered", "num_envs": 4, "envs_per_shard": 2},
    "memory": {"id": "tests.snapshot_zoo:Walk", "num_envs": 2, "envs_per_shard": 2, "kwargs": {"length": 10}},
    "frames": {"id": NOISE, "num_envs": 2, "envs_per_shard": 2, "wrappers": [STACK]},
    "child": {"id": "tests.snapshot_zoo:layered", "num_envs": 2, "envs_per_shard": 2, "isolation": "process"},
}
MEMORY = {"id": "lstm", "hidden": [8], "recurrent_size": 8}
"""Of one case; all others act with a policy that dawdles."""
pytestmark = pytest.mark.timeout(max(300, 60 * KILLS))


class Witness:
    """Reads every experiment, settles what it read, and keeps one digest a batch.

    Attributes:
        waits: while somebody holds it, it asks the broker nothing: its reader has no patience with one that is away.
    """

    def __init__(self, broker: Broker, experiments: dict[str, str]) -> None:
        self._readers = {name: Reader(broker, experiment) for name, experiment in experiments.items()}
        self.digests: dict[str, dict[int, list[str]]] = {name: defaultdict(list) for name in experiments}
        self.waits = threading.Lock()
        self._end = threading.Event()
        for reader in self._readers.values():
            reader.publish(1)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def least(self) -> int:
        """Batches that every shard of every experiment has given."""
        return min(
            min((len(found[shard.index]) for shard in self._readers[name].stage.plans), default=0)
            for name, found in self.digests.items()
        )

    def end(self) -> None:
        self._end.set()
        self._thread.join(30)
        for reader in self._readers.values():
            reader.check_continuity()
            reader.check_plane()
            reader.end()

    def _run(self) -> None:
        while not self._end.is_set():
            for name, reader in self._readers.items():
                with self.waits:
                    pointers = reader.pull(block_ms=5)
                    for pointer in pointers:
                        self.digests[name][pointer.shard].append(_digest(reader.batch(pointer)))
                    reader.ack(pointers)


def _digest(segments: Segments) -> str:
    digest = hashlib.sha256()
    for name, array in sorted(segments.arrays.items()):
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


class Place:
    """Where the server is, and which one it is now."""

    def __init__(self, folder: Path) -> None:
        self.server: LocalServer = start_server(folder)

    def kill(self) -> None:
        """SIGKILL while every write is synced, as under `strict`, and another one on what it wrote."""
        with redis.Redis.from_url(self.server.url) as client:
            client.config_set("appendfsync", "always")
        os.kill(self.server.pid, signal.SIGKILL)
        eventually(lambda: not self.server.is_running(), what="it is dead")
        self.server = restart(self.server)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path / "server")
    try:
        with coordinating(made.server.url):
            yield made
    finally:
        made.server.stop()


@pytest.fixture
def url(place: Place) -> str:
    return place.server.url


class Fleet:
    """Two workers, as real processes; nobody but the coordinator learns of their deaths."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._workers = [self._start(), self._start()]

    def freeze(self, place: int, seconds: float) -> None:
        """Stand still for so long."""
        self._workers[place].send_signal(signal.SIGSTOP)
        SystemClock().sleep(seconds)
        self._workers[place].send_signal(signal.SIGCONT)

    def replace(self, place: int) -> None:
        """Kill one and start another."""
        self._workers[place].kill()
        self._workers[place].wait()
        self._workers[place] = self._start()

    def end(self) -> None:
        for worker in self._workers:
            worker.kill()
            worker.wait()

    def _start(self) -> "subprocess.Popen[bytes]":
        return subprocess.Popen([*IN_PLACE, "worker"], env={**os.environ, URL_ENV: self._url})


@pytest.fixture
def fleet(url: str) -> Iterator[Fleet]:
    workers = Fleet(url)
    yield workers
    workers.end()


def _submit(broker: Broker, name: str, env: dict[str, Any], plane: str, **faults: Any) -> str:
    return submit(
        broker,
        experiment={"name": name, "seed": 11},
        env=env,
        policy=MEMORY if name.startswith("memory") else SLOWLY,
        rollout={"steps": 6, "plane": plane},
        faults={"lease_ttl": TTL_S, "barren_deaths": 50, "snapshot_every": 1, **faults},
    )


def _torment(fleet: Fleet, place: Place, witness: Witness, rng: np.random.Generator) -> None:
    """Kill a worker at random moments; every fourth time freeze one until its shards are another's, and every eighth
    time, from the third on, kill the server first."""
    for turn in range(KILLS):
        before = witness.least()
        eventually(lambda before=before: witness.least() > before, timeout_s=90, what="every shard goes on")  # type: ignore[misc]
        SystemClock().sleep(float(rng.uniform(0.0, 0.5)))
        if turn % 8 == 2:
            with witness.waits:
                place.kill()
        victim = int(rng.integers(2))
        if turn % 4 == 3:
            fleet.freeze(victim, TTL_S + 1.0)
        else:
            fleet.replace(victim)


def test_runs_with_and_without_kills_give_the_same_experience_bit_for_bit(place: Place, url: str, fleet: Fleet) -> None:
    # Given what every shard gives when nobody is killed
    broker, rng = fresh(url), np.random.default_rng(int(os.environ.get("HEDDLE_SEED", "1")))
    quiet = {
        name: _submit(broker, f"{name}-quiet", env, PLANES[(place + 1) % 2])
        for place, (name, env) in enumerate(CASES.items())
    }
    undisturbed = Witness(broker, quiet)
    eventually(lambda: undisturbed.least() >= BATCHES, timeout_s=3600, what="the run without kills")
    undisturbed.end()
    for experiment in quiet.values():
        broker.experiments.set_command(experiment, "stop")
    # When the same is played again, workers are killed all the time, and one experiment has no snapshots
    hard = {
        f"{name}@{plane}": _submit(broker, f"{name}-hard-{plane}", CASES[name], plane)
        for place, name in enumerate(CASES)
        for plane in planes_of(place)
    }
    without = _submit(broker, "walk-without", CASES["walk"], "redis", snapshot_every=0)
    tormented = Witness(broker, {**hard, "without": without})
    _torment(fleet, place, tormented, rng)
    eventually(lambda: tormented.least() >= BATCHES, timeout_s=3600, what="the run with kills")
    tormented.end()
    # Then the digests of every shard are the same, but for the one that began afresh
    for name, shards in tormented.digests.items():
        expected = undisturbed.digests["walk" if name == "without" else name.partition("@")[0]]
        for shard, digests in shards.items():
            same = [one == other for one, other in zip(digests, expected[shard], strict=False)]
            assert len(same) >= BATCHES
            assert all(same) == (name != "without"), f"{name}/{shard} differs at batch {same.index(False) + 1}"
    owners = sum(shard.attempts - 1 for one in hard.values() for shard in broker.shards.shards(one, 0))
    assert owners >= KILLS
