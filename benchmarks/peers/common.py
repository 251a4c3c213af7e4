"""What several sides share: the small network in numpy, a segment of CartPole played with it, and W3's environment."""

import time

import gymnasium
import numpy as np

HIDDEN = 64


class Policy:
    """MLP 64-64 with tanh, one tower for logits and one for the value, sampled by inverse CDF."""

    def __init__(self, inputs=4, actions=2):
        rng = np.random.default_rng(0)
        sizes = [inputs, HIDDEN, HIDDEN, actions]
        self._layers = [
            (rng.normal(0, a**-0.5, (2, a, b)).astype(np.float32), np.zeros((2, 1, b), np.float32))
            for a, b in zip(sizes, sizes[1:], strict=False)
        ]
        self._rng = rng

    def act(self, observations):
        """Actions [n], log-probabilities [n], values [n]."""
        hidden = observations
        for place, (weight, bias) in enumerate(self._layers):
            hidden = np.matmul(hidden, weight) + bias
            if place < len(self._layers) - 1:
                hidden = np.tanh(hidden)
        logits, value = hidden[0], hidden[1][:, 0]
        shifted = logits - logits.max(axis=1, keepdims=True)
        cumulative = np.exp(shifted).cumsum(axis=1)
        total = cumulative[:, -1:]
        actions = np.minimum((cumulative <= self._rng.random((len(total), 1)) * total).sum(axis=1), logits.shape[1] - 1)
        return actions, shifted[np.arange(len(total)), actions] - np.log(total[:, 0]), value


class Loop:
    """Environments in a list, arrays made once."""

    def __init__(self, envs=32, steps=128):
        self.envs = [gymnasium.make("CartPole-v1") for _ in range(envs)]
        self.policy, self.steps = Policy(), steps
        self.now = np.stack([env.reset(seed=place)[0] for place, env in enumerate(self.envs)])

    def segment(self):
        """[T, n, ...] arrays of one segment of every environment."""
        n, t = len(self.envs), self.steps
        obs, action = np.zeros((t, n, 4), np.float32), np.zeros((t, n), np.int64)
        log_prob, value, reward = (np.zeros((t, n), np.float32) for _ in range(3))
        over = np.zeros((t, n), np.bool_)
        for step in range(t):
            obs[step] = self.now
            action[step], log_prob[step], value[step] = self.policy.act(self.now)
            for place, choice in enumerate(action[step].tolist()):
                seen, reward[step, place], terminated, truncated, _ = self.envs[place].step(choice)
                if terminated or truncated:
                    over[step, place] = True
                    seen, _ = self.envs[place].reset()
                self.now[place] = seen
        return {"obs": obs, "action": action, "log_prob": log_prob, "value": value, "reward": reward, "over": over}


class Waiting(gymnasium.Env):
    """W3: a step waits, lognormal, mean 10 ms; episodes never end."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, place=0, mean_s=0.01):
        drawn = np.random.default_rng(place).lognormal(0.0, 0.5, 256)
        self._waits, self._next = (drawn * (mean_s / drawn.mean())).tolist(), 0

    def reset(self, *, seed=None, options=None):
        """At once."""
        return np.zeros(4, np.float32), {}

    def step(self, action):
        """After a wait."""
        self._next = (self._next + 1) % len(self._waits)
        time.sleep(self._waits[self._next])
        return np.zeros(4, np.float32), 1.0, False, False, {}


def play_for(seconds, segment):
    """Steps of as many segments as begin within `seconds`; `segment` plays one and says how many steps it had."""
    steps, until = 0, time.monotonic() + seconds
    while time.monotonic() < until:
        steps += segment()
    return steps
