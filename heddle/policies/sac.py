"""The policy "sac": a Gaussian squashed into the bounds of a Box, acting in numpy.

It never imports torch, unless `module()` is asked for. Its weights hold the actor alone; critics stay in the trainer.
"random" among them is 1 while actions shall be drawn evenly from the whole Box.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from heddle.errors import EnvError
from heddle.policies.base import Acted, Array, Arrays, Noise, OutputSpec
from heddle.policies.features import Features
from heddle.policies.net import Net, initial_net
from heddle.policies.normalise import Normaliser
from heddle.policies.numpy_weights import NumpyWeights
from heddle.spaces import ACTION, Box, Space

RANDOM = "random"
LOG_STD_LIMITS = (-20.0, 2.0)
"""As in the paper's code and Stable-Baselines3."""


class SacPolicy(NumpyWeights):
    """Actions of a bounded float Box: low + (tanh(mean + std * noise) + 1) / 2 * (high - low).

    Attributes:
        low, high: [A] float32, the bounds.

    Args:
        observation, action: the spaces.
        hidden: widths of the hidden layers.
        activation: between them.
        rng: for the initial weights.

    Raises:
        EnvError: it does not fit the spaces.

    Source: Haarnoja et al. 2018, arXiv:1812.05905, appendix C.
    """

    outputs: Mapping[str, OutputSpec] = {}
    state: Mapping[str, OutputSpec] = {}

    def __init__(
        self,
        observation: Space,
        action: Space,
        *,
        hidden: Sequence[int],
        activation: Literal["tanh", "relu"],
        rng: np.random.Generator,
    ) -> None:
        if not isinstance(action, Box) or np.dtype(action.dtype).kind != "f":
            raise _unfit(action, "it needs a float Box; for a Discrete space use trainer.learner = dqn")
        self.low, self.high = (_flat(bound, action) for bound in (action.low, action.high))
        if not (np.isfinite(self.low).all() and np.isfinite(self.high).all() and (self.low < self.high).all()):
            raise _unfit(action, "it needs finite bounds, low below high: wrap the environment in RescaleAction")
        self.observation, self.action, self.size = observation, action, action.size
        self.hidden, self.activation = tuple(hidden), activation
        self.noise = Noise("normal", self.size)
        self.features = Features(observation, action)
        self._weights = self._first(rng) | {RANDOM: np.array(1.0, np.float32)}
        self._normaliser: Normaliser | None = None
        self._pack()

    def initial_state(self, n: int) -> Arrays:
        return {}

    def act(
        self, observations: Mapping[str, Array], state: Arrays, noise: Array, *, deterministic: bool = False
    ) -> Acted:
        found = self._answers(observations)
        inner = found["mean"]
        if not deterministic:
            inner = inner + np.exp(np.clip(found["log_std"], *LOG_STD_LIMITS)) * noise.astype(np.float32)
        share = (np.tanh(inner) + 1) / 2
        if not deterministic and self._weights[RANDOM]:
            share = _uniform(noise)
        actions = self.low + share * (self.high - self.low)
        shape = (len(actions), *self.action.shape)
        return Acted({ACTION: actions.reshape(shape).astype(self.action.dtype, copy=False)})

    def module(self) -> Any:
        """The actor, with the same weights, as a torch module."""
        from heddle.policies.torch_sac import SacActor

        return SacActor(self)

    def _first(self, rng: np.random.Generator) -> Arrays:
        """Weights to begin with."""
        heads = {"mean": (self.size, 0.01), "log_std": (self.size, 0.01)}
        return initial_net(rng, self.features.width, self.hidden, heads)

    def _answers(self, observations: Mapping[str, Array]) -> dict[str, Array]:
        """What the network gives: "mean" and "log_std" [N, A], before squashing."""
        return dict(self._net(self.features.encode(observations)))

    def _pack(self) -> None:
        self.features.set_normaliser(self._normaliser)
        self._net = Net({name: array for name, array in self._weights.items() if name != RANDOM}, self.activation)


def _uniform(normal: Array) -> Array:
    """Standard normal numbers as uniform ones on [0, 1]: the normal distribution's CDF."""
    flat = [0.5 * (1.0 + math.erf(value / math.sqrt(2.0))) for value in normal.reshape(-1).tolist()]
    return np.array(flat, np.float32).reshape(normal.shape)


def _flat(bound: Any, action: Box) -> Array:
    return np.broadcast_to(np.asarray(bound, np.float32), action.shape).reshape(-1).astype(np.float32)


def _unfit(action: Space, hint: str) -> EnvError:
    return EnvError(
        f"has actions that policy.id = sac cannot choose: {action}", key="policy.id", value="sac", hint=hint
    )
