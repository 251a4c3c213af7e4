"""A worker whose environments are stepped beside each other: shards share it, and a stuck one holds nobody."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from heddle.broker import Broker
from heddle.broker.server import LocalServer
from heddle.states.look import look_at
from heddle.states.stepping import stepping_lines
from tests.helpers import eventually
from tests.worker_kit import COUNTING, Reader, Running, coordinating, submit

HERE = "tests.loops.test_stepping"


class Remote:
    """Observes (environment, episode length); episodes last 5 steps; waits while `stuck_file` exists, as one of two."""

    observation_space = gymnasium.spaces.Box(-1.0, 1e9, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, env_index: int, stuck_file: str = "") -> None:
        self._index, self._stuck, self._length = env_index, Path(stuck_file or "/nowhere"), 0

    async def reset(self, *, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        self._length = 0
        return np.array([self._index, 0], np.float32), {}

    async def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        await asyncio.sleep(0.001)
        while self._index == 1 and self._stuck.exists():
            await asyncio.sleep(0.01)
        self._length += 1
        return np.array([self._index, self._length], np.float32), 1.0, self._length >= 5, False, {}


@pytest.mark.parametrize(("step_s", "told"), [(0.01, "threads: a step takes "), (0.0, "inline: a step takes ")])
def test_what_was_chosen_and_why_is_told_to_whoever_asks(
    broker: Broker, running: Running, step_s: float, told: str
) -> None:
    reader = experiment(broker, id=COUNTING, stepping="auto", kwargs={"step_s": step_s})

    def shown() -> list[str]:
        reader.pull()
        return stepping_lines(look_at(broker, reader.experiment)[0])

    eventually(lambda: any(line.startswith(told) for line in shown()), timeout_s=60.0, what=f"{told}; {shown()}")
    reader.check_continuity()


@pytest.fixture
def running(redis_server: LocalServer) -> Iterator[Running]:
    with coordinating(redis_server.url):
        worker = Running(redis_server.url, "w1")
        yield worker
        worker.end()


def experiment(broker: Broker, *, faults: dict[str, Any] | None = None, **env: Any) -> Reader:
    rollout: dict[str, Any] = {"steps": 8, "sync": False}
    name = submit(broker, env=env, rollout=rollout, trainer={"minibatch": 1}, faults=faults or {})
    reader = Reader(broker, name)
    reader.publish(1)
    return reader


def steps_of(reader: Reader, env: int) -> int:
    """Accepted steps of one environment of the experiment, each of which follows the one before."""
    found = 0
    for pointer in reader.read:
        batch = reader.batch(pointer)
        for row in np.flatnonzero(batch.arrays["env"] + 2 * pointer.shard == env):
            length = int(batch.arrays["length"][row])
            shown = batch.arrays["obs"][row, :length]
            assert (shown[:, 0] == env).all()
            assert shown[:, 1].tolist() == [(found + step) % 5 for step in range(length)]
            found += length
    return found


@pytest.mark.parametrize(
    "env",
    [
        {"id": COUNTING, "stepping": "threads"},
        {"id": COUNTING, "stepping": "processes"},
        {"id": COUNTING, "stepping": "auto", "kwargs": {"step_s": 0.004}},
        {"id": f"{HERE}:Remote", "stepping": "async"},
    ],
)
def test_every_shard_of_a_worker_is_played_and_every_environment_shows_all_its_steps_in_order(
    broker: Broker, running: Running, env: dict[str, Any]
) -> None:
    reader = experiment(broker, **env)

    def enough() -> bool:
        reader.pull()
        return all(steps_of(reader, number) > 20 for number in range(4))

    eventually(enough, timeout_s=60)
    reader.check_continuity()


def test_a_stuck_environment_holds_up_neither_its_neighbours_nor_the_other_shard_and_goes_on_where_it_was(
    broker: Broker, running: Running, tmp_path: Path
) -> None:
    stuck = tmp_path / "stuck"
    kwargs = {"stuck_file": str(stuck)}
    reader = experiment(broker, id=f"{HERE}:Remote", stepping="async", kwargs=kwargs, step_timeout=60.0)
    eventually(lambda: reader.pull() and steps_of(reader, 1) > 0)
    stuck.touch()
    reader.read.clear()

    def others_play() -> bool:
        reader.pull()
        counts = [0] * 4
        for pointer in reader.read:
            arrays = reader.batch(pointer).arrays
            for row, length in enumerate(arrays["length"].tolist()):
                counts[int(arrays["env"][row]) + 2 * pointer.shard] += length
        return min(counts[0], counts[2], counts[3]) > counts[1] + 40

    eventually(others_play, timeout_s=20)
    reader.read.clear()
    stuck.unlink()
    eventually(lambda: reader.pull() and any(1 in _envs(reader, p) for p in reader.read if not p.shard), timeout_s=20)


def _envs(reader: Reader, pointer: Any) -> list[int]:
    return [int(env) for env in reader.batch(pointer).arrays["env"]]


def test_one_that_stays_stuck_gives_its_shard_back_with_the_reason_and_the_worker_lives(
    broker: Broker, running: Running, tmp_path: Path
) -> None:
    stuck = tmp_path / "stuck"
    kwargs = {"stuck_file": str(stuck)}
    reader = experiment(broker, id=f"{HERE}:Remote", stepping="async", kwargs=kwargs, step_timeout=0.5)
    eventually(lambda: reader.pull() and steps_of(reader, 1) > 0)
    stuck.touch()

    def error() -> str:
        (shard,) = [one for one in broker.shards.shards(reader.experiment, 0) if one.shard == 0]
        return shard.last_error

    told = "environment 1 (number 1 of shard 0) failed in step: lasts longer than 0.5 s"
    eventually(lambda: told in error(), timeout_s=30)
    before = len(reader.read)
    eventually(lambda: reader.pull() and len(reader.read) > before + 3)
    assert running.thread.is_alive() and not running.exits


def test_one_that_never_gives_a_step_has_its_shard_quarantined_although_its_neighbour_delivers(
    broker: Broker, running: Running, tmp_path: Path
) -> None:
    stuck = tmp_path / "stuck"
    stuck.touch()
    env: dict[str, Any] = {"id": f"{HERE}:Remote", "stepping": "async", "kwargs": {"stuck_file": str(stuck)}}
    reader = experiment(broker, faults={"barren_deaths": 2}, step_timeout=0.5, **env)

    def is_quarantined() -> bool:
        reader.pull()
        (shard,) = [one for one in broker.shards.shards(reader.experiment, 0) if one.shard == 0]
        return shard.state == "quarantined" and "lasts longer than 0.5 s" in shard.last_error

    eventually(is_quarantined, timeout_s=60)
    assert any(not pointer.shard for pointer in reader.read)
    assert running.thread.is_alive() and not running.exits
