"""Values of actions as torch modules, for learning; `q.py` acts with the same weights under the same names.

A module of the user's for the learner "dqn" has the `forward` that `torch_heads` describes, but answers with

    "q"  [N, n]   the value of each action of a Discrete space.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from heddle.policies.features import Features, Part
from heddle.policies.q import EPSILON, QPolicy
from heddle.policies.torch_torso import encode
from heddle.policies.weights import split_norm


class Trunk(nn.ModuleList):
    """Observations to the last hidden layer of a small network, as `net.Net` does it.

    Args:
        features: how observations become a vector.
        extra: more numbers that come in behind the observations.
    """

    def __init__(self, features: Features, hidden: Sequence[int], activation: str, *, extra: int = 0) -> None:
        sizes = (features.width + extra, *hidden)
        super().__init__(nn.Linear(into, out) for into, out in itertools.pairwise(sizes))
        self.parts: list[Part] = features.parts
        self.activation = torch.tanh if activation == "tanh" else torch.relu
        self.size = sizes[-1]

    def forward(self, observations: Mapping[str, Tensor], extra: Tensor | None = None) -> Tensor:
        """[N, size] float32 of leaf -> [N, ...] and of `extra` [N, extra]."""
        hidden = encode(self.parts, observations)
        if extra is not None:
            hidden = torch.cat([hidden, extra], dim=1)
        for layer in self:
            hidden = self.activation(layer(hidden))
        return hidden


class QHeads(nn.Module):
    """Values of actions behind a trunk.

    Args:
        trunk: observations to [N, size].
        count: actions.
    """

    def __init__(self, trunk: nn.Module, size: int, count: int, *, dueling: bool) -> None:
        super().__init__()
        self.trunk, self.dueling = trunk, dueling
        if dueling:
            self.value, self.advantage = nn.Linear(size, 1), nn.Linear(size, count)
        else:
            self.q = nn.Linear(size, count)

    def forward(self, observations: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> dict[str, Any]:
        """The values, [N, count] float32, as "q", of leaf -> [N, ...]."""
        hidden = self.trunk(observations)
        if not self.dueling:
            return {"q": self.q(hidden)}
        advantage = self.advantage(hidden)
        return {"q": self.value(hidden) + advantage - advantage.mean(dim=1, keepdim=True)}


class QModule(QHeads):
    """The network of `policy`, starting with its weights."""

    def __init__(self, policy: QPolicy) -> None:
        trunk = Trunk(policy.features, policy.hidden, policy.activation)
        super().__init__(trunk, trunk.size, policy.count, dueling=policy.dueling)
        proper, _ = split_norm(policy.get_weights())
        self.load_state_dict({name: torch.from_numpy(array) for name, array in proper.items() if name != EPSILON})
