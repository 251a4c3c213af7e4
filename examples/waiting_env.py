"""CartPole as a simulator far away: every answer takes as long as a network takes, now and then much longer.

Its reset and step are coroutines, so that one worker waits for hundreds of them at once. Yours would call an HTTP or
gRPC client here instead of sleeping.
"""

import asyncio

import gymnasium
import numpy as np


class FarCartPole:
    """CartPole-v1 behind a line.

    Args:
        mean_ms: what an answer takes; exponentially distributed.
    """

    def __init__(self, mean_ms: float = 10.0) -> None:
        self._env = gymnasium.make("CartPole-v1")
        self._line = np.random.default_rng()
        self._mean_s = mean_ms / 1000
        self.observation_space = self._env.observation_space
        self.action_space = self._env.action_space

    async def reset(self, *, seed: int | None = None):
        """Begin an episode: observation [4] float32, info."""
        await asyncio.sleep(self._line.exponential(self._mean_s))
        return self._env.reset(seed=seed)

    async def step(self, action):
        """One step: observation [4] float32, reward, terminated, truncated, info."""
        await asyncio.sleep(self._line.exponential(self._mean_s))
        return self._env.step(action)

    async def close(self) -> None:
        """Close the simulator."""
        self._env.close()
