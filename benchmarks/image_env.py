"""W2's environments and policy: images that cost nothing to make, and a small network that looks at some pixels.

Their observations are of a fixed set; an episode lasts 500 steps. Those of `Stacked` are the last four frames, as a
FrameStackObservation gives them, but for the time that one takes; `Frames` leaves stacking to it.
"""

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np

from heddle.policies.base import Acted, Array, Arrays
from heddle.policies.mlp import MlpPolicy
from heddle.spaces import Box, Space

ID, STACKED, FRAMES_ALONE = (f"benchmarks.image_env:{name}" for name in ("Images", "Stacked", "Frames"))
POLICY = "benchmarks.image_env:Glance"
EVERY = 64
"""Of so many numbers the policy looks at one."""
SHAPE = (84, 84, 4)
FRAMES = 16
EPISODE = 500


class Images(gymnasium.Env[Any, Any]):
    """See the module."""

    def __init__(self, env_index: int = 0) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 255, SHAPE, np.uint8)
        self.action_space = gymnasium.spaces.Discrete(4)
        rng = np.random.default_rng(env_index)
        self._frames = [rng.integers(0, 256, SHAPE, np.uint8) for _ in range(FRAMES)]
        self._step = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._step = 0
        return self._frames[0], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._step += 1
        return self._frames[self._step % FRAMES], 1.0, self._step >= EPISODE, False, {}


class Stacked(Images):
    """Four frames of 84 by 84, of which each step shows one that is new."""

    def __init__(self, env_index: int = 0) -> None:
        super().__init__(env_index)
        *size, depth = SHAPE
        self.observation_space = gymnasium.spaces.Box(0, 255, (depth, *size), np.uint8)
        drawn = np.random.default_rng(env_index).integers(0, 256, (FRAMES, *size), np.uint8)
        film = np.concatenate([drawn, drawn[: depth - 1]])
        self._frames = [film[first : first + depth] for first in range(FRAMES)]


class Frames(Images):
    """Frames of 84 by 84, one at a time: for gymnasium's FrameStackObservation to stack."""

    def __init__(self, env_index: int = 0) -> None:
        super().__init__(env_index)
        size = SHAPE[:-1]
        self.observation_space = gymnasium.spaces.Box(0, 255, size, np.uint8)
        self._frames = list(np.random.default_rng(env_index).integers(0, 256, (FRAMES, *size), np.uint8))


class Glance(MlpPolicy):
    """An MLP 64-64 on every 64th number of an image."""

    def __init__(self, observation: Space, action: Space, *, seed: int) -> None:
        seen = Box((int(np.prod(SHAPE)) // EVERY,), "float32")
        super().__init__(seen, action, rng=np.random.default_rng(seed))

    def act(
        self, observations: Mapping[str, Array], state: Arrays, noise: Array, *, deterministic: bool = False
    ) -> Acted:
        images = observations["obs"]
        seen = images.reshape(len(images), -1)[:, ::EVERY].astype(np.float32) * np.float32(1 / 255)
        return super().act({"obs": seen}, state, noise, deterministic=deterministic)
