"""EnvPool: its own CartPole in C++, 64 at once, and the small network in numpy; nothing is sent anywhere."""

from functools import cache

import envpool
import numpy as np
from common import Policy, play_for

ENVS, STEPS = 64, 128


class Pool:
    """One pool."""

    def __init__(self):
        self._pool, self._policy = envpool.make_gymnasium("CartPole-v1", num_envs=ENVS, num_threads=2), Policy()
        self._now = self._pool.reset()[0]
        self._obs = np.zeros((STEPS, ENVS, 4), np.float32)
        self._action = np.zeros((STEPS, ENVS), np.int32)

    def segment(self):
        """T steps of every environment; a call that only resets one is not counted."""
        steps, over = 0, np.zeros(ENVS, np.bool_)
        for step in range(STEPS):
            self._obs[step] = self._now
            self._action[step], _, _ = self._policy.act(self._now)
            steps += ENVS - int(over.sum())
            self._now, _, terminated, truncated, _ = self._pool.step(self._action[step])
            over = terminated | truncated
        return steps


@cache
def _pool():
    return Pool()


WORKLOADS = {"w1": lambda seconds: play_for(seconds, _pool().segment)}
