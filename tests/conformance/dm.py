"""An environment of dm_env that is none of dm_control's, made Gymnasium's as anybody would: with shimmy's parts."""

from typing import Any

import dm_env
import gymnasium
import numpy as np
from dm_env import specs
from shimmy.utils.dm_env import dm_env_step2gym_step, dm_spec2gym_space

WIDTH, HEIGHT = 5, 8


class Falling(dm_env.Environment):  # type: ignore[misc]
    """A ball falls, a paddle moves: rewards at the end alone, and a discount of 0 there, or of 1 where time is up."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)
        self._ball, self._paddle, self._row, self._is_over = 0, 0, 0, True

    def seed(self, seed: int) -> None:
        """Of all episodes from now on."""
        self._rng = np.random.default_rng(seed)

    def reset(self) -> dm_env.TimeStep:
        self._ball, self._paddle, self._row = int(self._rng.integers(WIDTH)), WIDTH // 2, 0
        return dm_env.restart(self._seen())

    def step(self, action: Any) -> dm_env.TimeStep:
        self._row += 1
        self._paddle = int(np.clip(self._paddle + int(action) - 1, 0, WIDTH - 1))
        if self._rng.random() < 0.05:
            return dm_env.truncation(0.0, self._seen())
        if self._row == HEIGHT - 1:
            return dm_env.termination(1.0 if self._ball == self._paddle else -1.0, self._seen())
        return dm_env.transition(0.0, self._seen())

    def observation_spec(self) -> Any:
        board = specs.BoundedArray((HEIGHT, WIDTH), np.float32, 0, 1, name="board")
        return {"board": board, "row": specs.BoundedArray((1,), np.int64, 0, HEIGHT, name="row")}

    def action_spec(self) -> Any:
        return specs.DiscreteArray(3, name="move")

    def _seen(self) -> dict[str, Any]:
        board = np.zeros((HEIGHT, WIDTH), np.float32)
        board[self._row, self._ball] = board[-1, self._paddle] = 1.0
        return {"board": board, "row": np.array([self._row], np.int64)}


class Seen(gymnasium.Env[Any, Any]):
    """Any dm_env.Environment with a `seed`."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.observation_space = dm_spec2gym_space(inner.observation_spec())
        self.action_space = dm_spec2gym_space(inner.action_spec())

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self._inner.seed(seed)
        return self._inner.reset().observation, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = dm_env_step2gym_step(self._inner.step(action))
        return observation, float(reward), bool(terminated), bool(truncated), info


def falling() -> Seen:
    """The factory that a spec names."""
    return Seen(Falling())
