"""Environments of which a step is nothing but a wait, as of a simulator far away: plain, and as coroutines."""

import asyncio
import time
from typing import Any

import gymnasium
import numpy as np

SIGMA = 0.5
"""Of the logarithm of a wait."""
WAITS = 256


class Waits:
    """How long each step takes: drawn once, of exactly the mean that was asked for, and gone through again and again.

    Args:
        env_index: the environment's own place in its draws.
        mean_s: of a step.
    """

    def __init__(self, env_index: int, mean_s: float) -> None:
        drawn = np.random.default_rng(env_index).lognormal(0.0, SIGMA, WAITS)
        self._waits: list[float] = (drawn * (mean_s / drawn.mean())).tolist()
        self._next = 0

    def next(self) -> float:
        """Seconds of the next step."""
        self._next = (self._next + 1) % WAITS
        return self._waits[self._next]


class Waiting(gymnasium.Env[Any, Any]):
    """A step waits; its episodes never end."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, env_index: int = 0, mean_s: float = 0.01) -> None:
        self._waits, self._shown = Waits(env_index, mean_s), np.zeros(4, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """At once."""
        return self._shown, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """After a wait."""
        time.sleep(self._waits.next())
        return self._shown, 1.0, False, False, {}


class WaitingRemote:
    """`Waiting` as coroutines."""

    observation_space, action_space = Waiting.observation_space, Waiting.action_space

    def __init__(self, env_index: int = 0, mean_s: float = 0.01) -> None:
        self._waits, self._shown = Waits(env_index, mean_s), np.zeros(4, np.float32)

    async def reset(self, *, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        """At once."""
        return self._shown, {}

    async def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """After a wait."""
        await asyncio.sleep(self._waits.next())
        return self._shown, 1.0, False, False, {}
