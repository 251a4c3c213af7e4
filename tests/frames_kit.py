"""What tests of packed batches share: an environment that shows noise, one player with its packer, pairs to compare."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from heddle.batch import decode, encode
from heddle.layout import Layout, Segments, make_layout
from heddle.plane import Home, file_of, open_plane
from heddle.producers.envs import check_env
from heddle.producers.packing import Packed, Packer
from heddle.producers.play import Play
from heddle.producers.player import Player
from heddle.producers.ready_player import ReadyPlayer
from heddle.producers.vector_check import check_vector
from heddle.producers.vector_player import VectorPlayer
from heddle.shard import plan_shards
from heddle.spec import ExperimentSpec, load_spec
from tests.plane_kit import HERE
from tests.unit.fake_envs import Drawn

STEPS, ENVS = 20, 3
NOISE = "tests.frames_kit:Noise"
VECTOR = {"id": "tests.frames_kit:noise_vector", "vector": True, "wrappers": []}
STACK = {"id": "FrameStackObservation", "kwargs": {"stack_size": 4}}


class Noise(gymnasium.Env[Any, Any]):
    """Shows noise of uint8; episodes end, or are cut off, after a few steps or many.

    Args:
        shape: of an observation.
        shortest, spread: episodes last from `shortest` steps to `spread - 1` more, each length in its turn.
        cut_every: each episode of that many is cut off instead of ending.
    """

    def __init__(
        self,
        env_index: int = 0,
        *,
        shape: tuple[int, ...] = (16, 17),
        shortest: int = 1,
        spread: int = 9,
        cut_every: int = 3,
    ) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 255, tuple(shape), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(3)
        self._episode, self._step = env_index, 0
        self._shortest, self._spread, self._cut_every = shortest, spread, cut_every

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._episode, self._step = self._episode + 1, 0
        return self._show(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._step += 1
        over = self._step >= self._shortest + (7 * self._episode) % self._spread
        cut = self._episode % self._cut_every == 0
        return self._show(), float(self._step), over and not cut, over and cut, {}

    def _show(self) -> Any:
        return self.np_random.integers(0, 256, self.observation_space.shape, np.uint8)


def noise_vector(num_envs: int, mode: str, stacked: int = 0, **options: Any) -> Any:
    """Several of them as one, each with so many frames stacked, 0 = as they are."""

    def make(index: int) -> Callable[[], Any]:
        def made() -> Any:
            env = Noise(index, **options)
            return gymnasium.wrappers.FrameStackObservation(env, stacked) if stacked else env

        return made

    made = [make(index) for index in range(num_envs)]
    return gymnasium.vector.SyncVectorEnv(made, autoreset_mode=gymnasium.vector.AutoresetMode(mode))


class Scene:
    """A player of stacked observations, and a packer."""

    def __init__(self, root: Path, **changes: Any) -> None:
        env = {
            "id": NOISE,
            "num_envs": ENVS,
            "envs_per_shard": ENVS,
            "wrappers": [STACK],
        } | changes.pop("env", {})
        source = {
            "experiment": {"name": "folds", "seed": 3},
            "env": env,
            "rollout": {"steps": STEPS} | changes.pop("rollout", {}),
            "trainer": {"minibatch": 1},
            "budget": {"env_steps": 1000},
            **changes,
        }
        self.spec: ExperimentSpec = load_spec(source).spec
        self.home = Home(open_plane(root, HERE), "b1", "folds-1")
        observation, action = (check_vector if self.spec.env.vector else check_env)(self.spec)
        policy: Any = Drawn()
        self.layout: Layout = make_layout(observation, action, steps=STEPS, outputs=dict(policy.outputs))
        make: type[Player | VectorPlayer | ReadyPlayer] = VectorPlayer if self.spec.env.vector else Player
        if self.spec.env.stepping != "inline":
            make = ReadyPlayer
        self.player: Play = make(plan_shards(self.spec)[0], self.spec, policy, self.layout)
        self.packer = Packer(self.spec, lambda: self.home)
        self.made = 0

    def play(self, plane: str = "") -> tuple[bytes, Packed]:
        """The next batch: whole, and as it was packed."""
        self.packer.lend(self.player, self.layout, plane)
        segments = self.player.play(1)
        whole = bytes(encode(self.layout, segments.whole()))
        packed = self.packer.pack(self.layout, segments, plane)
        self.player.recycle(segments)
        return whole, packed

    def settle(self, packed: Packed) -> None:
        """As appender and reader do."""
        assert packed.slot is not None
        self.made += 1
        name = file_of(0, 1, "n", self.made)
        packed.slot.offer(name)
        packed.slot.close()
        self.home.remove(name)

    def read(self, data: bytes | memoryview) -> Segments:
        return decode(self.layout, bytes(data), crc32=None, size_cap=1 << 24)


@contextmanager
def scenes(root: Path) -> Iterator[Callable[..., Scene]]:
    """Makes scenes whose shared memory lies in `root`, and closes them."""
    made: list[Scene] = []

    def make(**changes: Any) -> Scene:
        made.append(Scene(root, **changes))
        return made[-1]

    yield make
    for one in made:
        one.player.close()
        one.packer.close()
