"""The environments of the workloads for those that have no Heddle: the same as Heddle's own, in `waiting_env.py` and
`image_env.py` one folder up, which a test holds together.
"""

import time

import gymnasium
import numpy as np

SIGMA, WAITS = 0.5, 256
SHAPE, FRAMES, EPISODE = (84, 84, 4), 16, 500


class Waiting(gymnasium.Env):
    """W3: a step waits, lognormal, mean 10 ms; episodes never end."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    render_mode = None

    def __init__(self, place=0, mean_s=0.01):
        drawn = np.random.default_rng(place).lognormal(0.0, SIGMA, WAITS)
        self._waits, self._next = (drawn * (mean_s / drawn.mean())).tolist(), 0

    def reset(self, *, seed=None, options=None):
        """At once."""
        return np.zeros(4, np.float32), {}

    def step(self, action):
        """After a wait."""
        self._next = (self._next + 1) % WAITS
        time.sleep(self._waits[self._next])
        return np.zeros(4, np.float32), 1.0, False, False, {}


class Images(gymnasium.Env):
    """W2: images of a fixed set; an episode lasts 500 steps. `first` puts the channels first."""

    action_space = gymnasium.spaces.Discrete(4)
    render_mode = None

    def __init__(self, place=0, first=False):
        rng = np.random.default_rng(place)
        self._frames = [rng.integers(0, 256, SHAPE, np.uint8) for _ in range(FRAMES)]
        if first:
            self._frames = [np.ascontiguousarray(frame.transpose(2, 0, 1)) for frame in self._frames]
        self.observation_space = gymnasium.spaces.Box(0, 255, self._frames[0].shape, np.uint8)
        self._step = 0

    def reset(self, *, seed=None, options=None):
        """From the first frame."""
        self._step = 0
        return self._frames[0], {}

    def step(self, action):
        """The next frame."""
        self._step += 1
        return self._frames[self._step % FRAMES], 1.0, self._step >= EPISODE, False, {}


def cartpole(place=0):
    """W1, without Gymnasium's checker, as Heddle has it."""
    return gymnasium.make("CartPole-v1", disable_env_checker=True)
