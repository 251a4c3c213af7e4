"""The policy "q": values of actions from a small network, acting by the best one, or by chance with epsilon.

It never imports torch, unless `module()` is asked for. Epsilon travels with the weights, so that workers explore as
much as the trainer says.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from heddle.errors import EnvError
from heddle.policies.actions import find_masks
from heddle.policies.base import Acted, Array, Arrays, Noise, OutputSpec
from heddle.policies.features import Features
from heddle.policies.heads import MASKED_LOGIT, apply_mask
from heddle.policies.net import Net, initial_net
from heddle.policies.normalise import Normaliser
from heddle.policies.numpy_weights import NumpyWeights
from heddle.spaces import ACTION, Discrete, Space

EPSILON = "epsilon"
"""Name of the share of random actions among the weights: float32, no dimension."""


class QPolicy(NumpyWeights):
    """Values of the actions of a Discrete space.

    Args:
        observation, action: the spaces.
        hidden: widths of the hidden layers.
        activation: between them.
        dueling: a value and advantages instead of values of actions (Wang et al. 2016, arXiv:1511.06581, equation 9).
        rng: for the initial weights.

    Raises:
        EnvError: it does not fit the spaces.
    """

    outputs: Mapping[str, OutputSpec] = {}
    state: Mapping[str, OutputSpec] = {}
    noise = Noise("uniform", 2)

    def __init__(
        self,
        observation: Space,
        action: Space,
        *,
        hidden: Sequence[int],
        activation: Literal["tanh", "relu"],
        dueling: bool,
        rng: np.random.Generator,
    ) -> None:
        if not isinstance(action, Discrete):
            raise EnvError(
                f"has actions that policy.id = q cannot choose: {action}",
                key="policy.id",
                value="q",
                hint="it needs a Discrete action space; for a Box use trainer.learner = sac or ppo",
            )
        self.observation, self.action, self.count = observation, action, action.n
        self.hidden, self.activation, self.dueling = tuple(hidden), activation, dueling
        self.features = Features(observation, action)
        self.mask = action_mask(observation, action)
        self._weights = self._first(rng) | {EPSILON: np.array(1.0, np.float32)}
        self._normaliser: Normaliser | None = None
        self._pack()

    def initial_state(self, n: int) -> Arrays:
        return {}

    def act(
        self, observations: Mapping[str, Array], state: Arrays, noise: Array, *, deterministic: bool = False
    ) -> Acted:
        values = self.values(observations)
        chosen = values.argmax(axis=1)
        if not deterministic:
            allowed = values > MASKED_LOGIT
            order = np.cumsum(allowed, axis=1)
            rank = np.minimum((noise[:, 1] * order[:, -1]).astype(np.int64), order[:, -1] - 1)
            random = (order > rank[:, None]).argmax(axis=1)
            chosen = np.where(noise[:, 0] < self._weights[EPSILON], random, chosen)
        return Acted({ACTION: chosen})

    def values(self, observations: Mapping[str, Array]) -> NDArray[np.float32]:
        """Values [N, n] of the actions; very low where they are not allowed, unless none is."""
        found = self._answers(observations)
        values = found["q"] if "q" in found else combine(found["value"], found["advantage"])
        return apply_mask(values, observations[self.mask]) if self.mask else values

    def module(self) -> Any:
        """The same network, with the same weights, as a torch module."""
        from heddle.policies.torch_value import QModule

        return QModule(self)

    def _first(self, rng: np.random.Generator) -> Arrays:
        """Weights to begin with."""
        heads = {"advantage": (self.count, 0.1), "value": (1, 1.0)} if self.dueling else {"q": (self.count, 0.1)}
        return initial_net(rng, self.features.width, self.hidden, heads)

    def _answers(self, observations: Mapping[str, Array]) -> dict[str, NDArray[np.float32]]:
        """What the network gives: "q" [N, n], or "value" and "advantage"."""
        return self._net(self.features.encode(observations))

    def _pack(self) -> None:
        self.features.set_normaliser(self._normaliser)
        self._net = Net({name: array for name, array in self._weights.items() if name != EPSILON}, self.activation)


def action_mask(observation: Space, action: Space) -> str | None:
    """The leaf of the observation that says which actions of a Discrete space are allowed; None without one."""
    return next(iter(find_masks(observation, action).get(ACTION, ())), None)


def combine(value: NDArray[np.float32], advantage: NDArray[np.float32]) -> NDArray[np.float32]:
    """Values of actions [N, n] from a value [N, 1] and advantages [N, n]."""
    return np.asarray(value + advantage - advantage.mean(axis=1, keepdims=True), np.float32)
