"""An environment of your own: catch a falling ball.

`env.id = "catch_env:make"` in exp.toml names the factory below. This file must be importable where workers run: install
it, or start the roles in its folder.
"""

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

Observation = NDArray[np.float32]


class Catch(gymnasium.Env[Observation, np.int64]):
    """A ball falls one row a step; the paddle moves left, stays or moves right. Return 1 when caught, else -1."""

    def __init__(self, rows: int = 8, columns: int = 5) -> None:
        self.rows, self.columns = rows, columns
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (3,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(3)
        self._row, self._ball, self._paddle = 0, 0, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        self._row = 0
        self._ball = int(self.np_random.integers(self.columns))
        self._paddle = self.columns // 2
        return self._observe(), {}

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        self._row += 1
        self._paddle = min(self.columns - 1, max(0, self._paddle + int(action) - 1))
        over = self._row == self.rows - 1
        reward = (1.0 if self._ball == self._paddle else -1.0) if over else 0.0
        return self._observe(), reward, over, False, {}

    def _observe(self) -> Observation:
        scale = (self.rows - 1, self.columns - 1, self.columns - 1)
        return np.array((self._row, self._ball, self._paddle), np.float32) / np.array(scale, np.float32)


def make(env_index: int, num_envs: int, seed: int, **kwargs: Any) -> Catch:
    """Environment number `env_index` of `num_envs`; episodes are seeded through `reset`, so `seed` is not needed."""
    return Catch(**kwargs)
