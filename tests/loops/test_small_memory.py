"""A container's shared memory: 64 MB, and others write there, too. Nobody dies of it, and every batch arrives."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from heddle.broker import Broker
from heddle.broker.experience_types import Pointer
from heddle.broker.server import LocalServer
from heddle.plane import open_plane
from heddle.plane.host import SHM
from tests.helpers import eventually
from tests.plane_kit import Consumer
from tests.worker_kit import Running, coordinating, fresh, submit

SIZE = "64m"
DEADLINE_S = 120.0
ALONE = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-ec"]
MOUNTED = f'mount -t tmpfs -o size={SIZE} none {SHM}; exec "$@"'


class Pictures(gymnasium.Env[Any, Any]):
    """Observes a picture; two segments of eight steps are a batch of 1.3 MiB."""

    observation_space = gymnasium.spaces.Box(0, 255, (160, 160, 3), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._picture(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._picture(), 1.0, False, False, {}

    def _picture(self) -> Any:
        return np.full((160, 160, 3), int(self.np_random.integers(256)), np.uint8)


class Neighbour:
    """Somebody else's file in shared memory."""

    path = SHM / "neighbour"

    def fill(self) -> None:
        """All there is."""
        with self.path.open("wb", buffering=0) as file:
            try:
                while file.write(bytes(4096)):
                    pass
            except OSError:
                return

    def go(self) -> None:
        self.path.unlink()


def await_batch(consumer: Consumer, wanted: Callable[[Pointer], bool], *, train: bool, what: str) -> None:
    """Read until such a batch came; what is not trained stays where it is."""

    def look() -> bool:
        loaded = consumer.poll()
        found = any(wanted(item.pointer) for item in loaded)
        for item in loaded:
            assert item.segments.arrays["obs"].any(), "a batch of nothing"
        if train:
            consumer.train(loaded)
        return found

    eventually(look, timeout_s=DEADLINE_S, what=f"{what}; {consumer.flow()}")


def through_all_of_it(broker: Broker, url: str) -> None:
    """Within the small memory: full at the start, roomy, filled up while batches lie there, roomy again."""
    neighbour = Neighbour()
    neighbour.fill()
    env = {"id": "tests.loops.test_small_memory:Pictures", "num_envs": 2, "envs_per_shard": 2}
    experiment = submit(broker, env=env, policy={"hidden": [2]}, limits={"max_bytes": "512MiB"})
    consumer = Consumer(broker, experiment, open_plane)
    assert consumer.shelf.trouble
    consumer.publish()
    worker = Running(url, "w1")
    await_batch(consumer, lambda one: one.location == "redis", train=True, what="a batch, without any memory")
    broker.seats.release_seat(experiment, consumer.epoch)
    neighbour.go()
    consumer = Consumer(broker, experiment, open_plane, name="t2")
    consumer.publish(2)
    await_batch(consumer, lambda one: one.location == "shm", train=True, what="a batch in memory")
    neighbour.fill()
    held = consumer.poll()
    await_batch(consumer, lambda one: one.location == "redis", train=False, what="a batch for which there is no room")
    consumer.train(held)
    neighbour.go()
    assert worker.end(timeout_s=60.0) == 0
    flow = consumer.flow()
    assert not (flow.dropped.batches or flow.dead.batches or flow.forgotten.batches), flow


def main() -> None:
    """Run within the small memory; the URL of a server is the argument."""
    assert os.statvfs(SHM).f_blocks * os.statvfs(SHM).f_frsize == 64 << 20
    with coordinating(sys.argv[1]), fresh(sys.argv[1]) as broker:
        through_all_of_it(broker, sys.argv[1])


def test_a_full_shared_memory_kills_nobody_and_batches_go_through_the_server_until_there_is_room(
    valkey_server: LocalServer,
) -> None:
    can = shutil.which("unshare") and subprocess.run([*ALONE, MOUNTED, "sh", "true"], check=False, capture_output=True)
    if not can or can.returncode:
        pytest.skip("needs a mount namespace of its own: unshare, and a system that lets this user have one")
    command = [*ALONE, MOUNTED, "sh", sys.executable, "-m", __name__, valkey_server.url]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300, cwd=Path.cwd())
    assert ended.returncode == 0, ended.stdout + ended.stderr


if __name__ == "__main__":
    main()
