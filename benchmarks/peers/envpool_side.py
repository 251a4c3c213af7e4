"""EnvPool: its own CartPole in C++, 64 at once, and the small network in numpy; nothing is sent anywhere.

It plays no environment that is written in Python, so neither W2 nor W3.
"""

import envpool
import numpy as np
from common import ENVS, STEPS, Policy

N, T = ENVS["w1"], STEPS["w1"]


class Pool:
    """One pool."""

    def __init__(self):
        self._pool, self._policy = envpool.make_gymnasium("CartPole-v1", num_envs=N, num_threads=2), Policy()
        self._now = self._pool.reset()[0]
        self._obs = np.zeros((T, N, 4), np.float32)
        self._action = np.zeros((T, N), np.int32)

    def segment(self):
        """T steps of every environment; a call that only resets one is not counted."""
        steps, over = 0, np.zeros(N, np.bool_)
        for step in range(T):
            self._obs[step] = self._now
            self._action[step], _, _ = self._policy.act(self._now)
            steps += N - int(over.sum())
            self._now, _, terminated, truncated, _ = self._pool.step(self._action[step])
            over = terminated | truncated
        return steps


SIDES = {"w1": Pool}
