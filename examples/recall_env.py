"""An environment that only memory can solve: repeat at the end what was shown at the beginning.

`env.id = "recall_env:Recall"` in exp.toml names it. A policy without memory is right once in `cues` times.
"""

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

Observation = NDArray[np.float32]


class Recall(gymnasium.Env[Observation, np.int64]):
    """A cue is shown once; `delay` blank steps later the same number must be chosen. Return 1 when it is, else 0.

    The observation is the cue one-hot (blank: zeros), and whether the answer counts now.
    """

    def __init__(self, cues: int = 4, delay: int = 6) -> None:
        self.cues, self.delay = cues, delay
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (cues + 1,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(cues)
        self._cue, self._step = 0, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        self._cue, self._step = int(self.np_random.integers(self.cues)), 0
        return self._observe(), {}

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        over = self._step == self.delay
        reward = 1.0 if over and int(action) == self._cue else 0.0
        self._step += 1
        return self._observe(), reward, over, False, {}

    def _observe(self) -> Observation:
        shown = np.zeros(self.cues + 1, np.float32)
        if self._step == 0:
            shown[self._cue] = 1.0
        if self._step == self.delay:
            shown[-1] = 1.0
        return shown
