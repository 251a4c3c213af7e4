"""What worker tests share: environments that misbehave on request, an experiment, a trainer that only reads."""

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from heddle.batch import decode, spot_check
from heddle.broker import Broker, keys, open_broker
from heddle.broker.experience_types import Pointer
from heddle.clock import SystemClock
from heddle.coord.coordinator import Coordinator
from heddle.errors import HeddleError
from heddle.layout import Segments
from heddle.plane import Home, file_of, open_plane
from heddle.policies import weights
from heddle.policies.base import Array
from heddle.policies.factory import make_policy
from heddle.policies.mlp import MlpPolicy
from heddle.producers.envs import check_env
from heddle.producers.stage import Stage
from heddle.producers.worker import Worker
from heddle.spaces import Box, Discrete, Space
from heddle.spec import load_spec
from heddle.stop import StopFlag

COUNTING = "tests.worker_kit:Counting"
SPEC: dict[str, Any] = {
    "experiment": {"name": "test"},
    "env": {"id": COUNTING, "num_envs": 4, "envs_per_shard": 2},
    "rollout": {"steps": 8},
    "trainer": {"minibatch": 1},
    "budget": {"env_steps": 1_000_000},
    "faults": {"lease_ttl": 0.6, "barren_deaths": 2},
    "limits": {"max_entries": 1024},
}


class Counting(gymnasium.Env[Any, Any]):
    """Observes (environment, episode length so far); episodes last 5 steps; fails, hangs or dawdles on request.

    Args:
        fail_file, hang_file, kill_file: while that file exists a step raises, never returns, or ends the process.
        close_file: while that file exists closing never returns.
        step_s: how long a step takes.
    """

    def __init__(
        self,
        env_index: int = 0,
        *,
        fail_file: str = "",
        hang_file: str = "",
        kill_file: str = "",
        close_file: str = "",
        step_s: float = 0.0,
    ) -> None:
        self.observation_space = gymnasium.spaces.Box(-1.0, 1e9, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self._index = env_index
        self._files = (fail_file, hang_file, kill_file)
        self._close_file = close_file
        self._step_s = step_s
        self._length = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._length = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        fail, hang, kill = (bool(name) and Path(name).exists() for name in self._files)
        if fail:
            raise RuntimeError("the arm fell off")
        if hang:
            threading.Event().wait(600)
        if kill:
            os._exit(9)
        if self._step_s:
            SystemClock().sleep(self._step_s)
        self._length += 1
        return self._observe(), 1.0, self._length >= 5, False, {}

    def close(self) -> None:
        if self._close_file and Path(self._close_file).exists():
            threading.Event().wait(600)

    def _observe(self) -> Any:
        return np.array([self._index, self._length], np.float32)


class Sluggish(MlpPolicy):
    """A policy that never takes weights over while `hang_file` exists."""

    def __init__(self, observation: Space, action: Space, *, seed: int, hang_file: str) -> None:
        super().__init__(
            observation, action, hidden=(4,), activation="tanh", shared=False, rng=np.random.default_rng(seed)
        )
        self._hang_file = hang_file

    def set_weights(self, weights: Mapping[str, Array]) -> None:
        if Path(self._hang_file).exists():
            threading.Event().wait(600)
        super().set_weights(weights)


def submit(broker: Broker, **sections: dict[str, Any]) -> str:
    """Submit SPEC with changes, with the spaces already looked at; returns the id."""
    raw = {name: {**SPEC.get(name, {}), **sections.get(name, {})} for name in {*SPEC, *sections}}
    spec = load_spec(raw).spec
    name = spec.experiment.name
    return broker.experiments.submit(spec.canonical_json(), "", spec.sha256(), name, suffix=os.urandom(3).hex()).id


class Reader:
    """Sits in a trainer's seat, publishes and reads, and learns nothing."""

    def __init__(self, broker: Broker, experiment: str, *, check: bool = True) -> None:
        """`check` looks at an environment to learn its spaces; else they are two numbers and three actions."""
        self.broker = broker
        self.experiment = experiment
        self._spaces = None if check else (Box((2,), "float32"), Discrete(3))
        self.stage = Stage(broker.experiments.spec(experiment), broker.policies.fetch, clock=SystemClock())
        self.spec = self.stage.spec
        epoch = broker.seats.claim_seat(experiment, "reader", ttl_ms=600_000)
        assert epoch is not None
        self.epoch = epoch
        self.read: list[Pointer] = []
        broker.experience.ensure_group(experiment, 0)
        is_shared = self.spec.plane == "shm"
        self.home = Home(open_plane(), broker.planes.identity(), experiment) if is_shared else None
        if self.home is not None:
            broker.planes.offer(experiment, 0, epoch, self.home.token)

    def publish(self, version: int) -> None:
        """Fresh weights as policy `version`."""
        policy = make_policy(self.spec.policy, *(self._spaces or check_env(self.spec)), seed=version)
        data = weights.pack(policy.get_weights(), version=version, update=version)
        self.broker.policies.publish(self.experiment, self.epoch, version, data, update=version)

    def pull(self, *, block_ms: int = 200) -> list[Pointer]:
        """What is new in the stream, all of it."""
        new = self.broker.experience.read(
            self.experiment, 0, keys.TRAINER_GROUP, "reader", count=1000, block_ms=block_ms
        )
        self.read += new
        return new

    def ack(self, pointers: list[Pointer]) -> None:
        """Settle entries: as trained, or evaluated for eval shards."""
        settled = [(p, "evaluated" if p.kind == "eval" else "trained") for p in pointers]
        self.broker.experience.ack(self.experiment, 0, self.epoch, settled)  # type: ignore[arg-type]
        if self.home is not None:
            for pointer in pointers:
                self.home.remove(_file(pointer))

    def batch(self, pointer: Pointer) -> Segments:
        """The decoded batch of an entry."""
        if pointer.location == "redis":
            (data,) = self.broker.experience.fetch([pointer])
            assert data is not None
            return decode(self.stage.layout(), data, crc32=pointer.crc32, size_cap=1 << 26)
        assert self.home is not None
        view = self.home.view(_file(pointer), pointer.bytes)
        assert view is not None and spot_check(view) == pointer.crc32
        return decode(self.stage.layout(), view, crc32=None, size_cap=1 << 26)

    def check_plane(self) -> None:
        """Batches lay where the spec has them, and none of those that were settled lies there still."""
        flow = self.broker.experience.flow(self.experiment, 0)
        if self.home is None:
            assert flow.mapped == 0
            return
        assert flow.mapped > 0.5 * flow.appended.batches, "batches lay in memory, but for the first ones"
        assert not {_file(pointer) for pointer in self.read} & set(self.home.names())

    def end(self) -> None:
        """Leave nothing in shared memory."""
        if self.home is not None:
            self.home.drop()

    def seqs(self, shard: int) -> list[int]:
        """Every seq that was read of a shard, in order."""
        return [pointer.seq for pointer in self.read if pointer.shard == shard]

    def check_continuity(self) -> None:
        """Every shard's seqs are 1, 2, 3, ... without gap or repeat, over all of its epochs."""
        for shard in {pointer.shard for pointer in self.read}:
            assert self.seqs(shard) == list(range(1, len(self.seqs(shard)) + 1)), f"shard {shard}: {self.seqs(shard)}"


def _file(pointer: Pointer) -> str:
    return file_of(pointer.shard, pointer.epoch, pointer.nonce, pointer.seq)


class Running:
    """A worker in a thread of this process."""

    def __init__(self, url: str, name: str, **kwargs: Any) -> None:
        self.stop = StopFlag()
        self.exits: list[int] = []
        self.worker = Worker(
            url, worker_id=name, stop=self.stop, exit_process=self.exits.append, **{"drain_s": 2.0, **kwargs}
        )
        self.code: int | None = None
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.code = self.worker.run()
        except HeddleError as error:  # told by `end`
            self.error = error

    def end(self, timeout_s: float = 10.0) -> int | None:
        """Ask it to drain and wait for its exit code."""
        self.stop.drain("the test is over")
        self.thread.join(timeout_s)
        assert not self.thread.is_alive(), "the worker does not end"
        if self.error is not None:
            raise self.error
        return self.code

    def silence(self) -> None:
        """Of one that had its process ended, but goes on here: nobody hears of it any more, nor do other tests."""
        parts = self.worker._parts
        for part in (parts.heartbeat, parts.keeper, parts.listener):
            part.stop()


@contextmanager
def workers(url: str, **options: Any) -> Iterator[Callable[..., Running]]:
    """Starts workers in threads, with these options and those of the call, and ends those that still run."""
    running: list[Running] = []

    def begin(name: str = "w1", **more: Any) -> Running:
        running.append(Running(url, name, **{**options, **more}))
        return running[-1]

    yield begin
    for worker in running:
        if worker.exits:
            worker.silence()
        elif worker.thread.is_alive():
            worker.end()


@contextmanager
def coordinating(url: str) -> Iterator[StopFlag]:
    """A coordinator in a thread."""
    flag = StopFlag()
    thread = threading.Thread(target=Coordinator(url, stop=flag).run, daemon=True)
    thread.start()
    try:
        yield flag
    finally:
        flag.drain("the test is over")
        thread.join(10)


def states(broker: Broker, experiment: str) -> dict[int, str]:
    """State of every shard by index."""
    return {shard.shard: shard.state for shard in broker.shards.shards(experiment, 0)}


def fresh(url: str) -> Broker:
    """A broker of the test's own."""
    return open_broker(url, role="test")
