"""What several sides share: how the workloads are cut, the small network in numpy, and a segment played with it."""

from functools import partial
from queue import Queue
from threading import Thread

import numpy as np
from envs import Images, Waiting, cartpole

HIDDEN = 64
EVERY = 64
"""Of so many numbers of an image the network looks at one."""
RUNNERS = 2
MAKERS = {"w1": cartpole, "w2": Images, "w3": Waiting}
ENVS = {"w1": 64, "w2": 16, "w3": 64}
"""Of all runners together."""
STEPS = {"w1": 128, "w2": 64, "w3": 32}
"""Of a segment, as Heddle's."""


def makers(workload, part=0, parts=1):
    """What makes each environment of one part."""
    each = ENVS[workload] // parts
    return [partial(MAKERS[workload], place) for place in range(part * each, (part + 1) * each)]


class Policy:
    """MLP 64-64 with tanh, one tower for logits and one for the value, sampled by inverse CDF."""

    def __init__(self, inputs=4, actions=2, seed=0):
        rng = np.random.default_rng(seed)
        sizes = [inputs, HIDDEN, HIDDEN, actions]
        self._layers = [
            (rng.normal(0, a**-0.5, (2, a, b)).astype(np.float32), np.zeros((2, 1, b), np.float32))
            for a, b in zip(sizes, sizes[1:], strict=False)
        ]
        self._rng = rng

    def act(self, observations):
        """Actions [n], log-probabilities [n], values [n]; of images it looks at some numbers."""
        hidden = observations
        if observations.dtype == np.uint8:
            hidden = observations.reshape(len(observations), -1)[:, ::EVERY].astype(np.float32) * np.float32(1 / 255)
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


def policy_for(space, actions, seed=0):
    """The network for an observation space; of an image it sees every so many-th number."""
    inputs = int(np.prod(space.shape))
    return Policy(inputs // EVERY if space.dtype == np.uint8 else inputs, actions, seed)


class Loop:
    """Environments in a list, arrays made once a segment."""

    def __init__(self, make, steps, seed=0):
        self.envs, self.steps = [one() for one in make], steps
        first = self.envs[0]
        self.policy = policy_for(first.observation_space, int(first.action_space.n), seed)
        self.now = np.stack([env.reset(seed=place)[0] for place, env in enumerate(self.envs)])

    def segment(self):
        """[T, n, ...] arrays of one segment of every environment."""
        n, t = len(self.envs), self.steps
        obs, action = np.empty((t, *self.now.shape), self.now.dtype), np.zeros((t, n), np.int64)
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


class Threads:
    """A thread for each environment, which plays segments of its own: none waits for another while somebody asks."""

    def __init__(self, make, steps):
        self._done, self._gather = Queue(maxsize=len(make)), len(make)
        for place, one in enumerate(make):
            Thread(target=self._play, args=(Loop([one], steps, place),), daemon=True).start()

    def segment(self):
        """[T, n, ...] arrays of as many segments as there are environments, whose ever they are."""
        some = [self._done.get() for _ in range(self._gather)]
        return {name: np.concatenate([one[name] for one in some], axis=1) for name in some[0]}

    def _play(self, loop):
        while True:
            self._done.put(loop.segment())
