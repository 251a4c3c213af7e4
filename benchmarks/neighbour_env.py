"""An environment that takes a millisecond a step, and a sister that ends its process every few steps when asked to."""

import os
from typing import Any

import gymnasium
import numpy as np

from heddle.clock import SystemClock

STEP_S = 0.001
LAST_STEP = 8
"""Fewer than a segment has: a process that ends here never delivers one."""


class Neighbour(gymnasium.Env[Any, Any]):
    """Environment 1 crashes where `crash` is set; the others never do."""

    def __init__(self, env_index: int = 0, *, crash: bool = False) -> None:
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self._crashes = crash and env_index == 1
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        SystemClock().sleep(STEP_S)
        self._steps += 1
        if self._crashes and self._steps >= LAST_STEP:
            os._exit(9)
        return np.zeros(4, np.float32), 0.0, False, False, {}
