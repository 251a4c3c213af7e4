"""The built-in multilayer perceptron as a torch module, for learning.

It never acts in an environment: `mlp.py` does, with the same weights under the same names.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from heddle.policies.features import IMAGE_SCALE
from heddle.policies.mlp import MlpPolicy, layer_shapes
from heddle.policies.weights import split_norm
from heddle.spaces import Discrete


class MlpModule(nn.Module):
    """The network of `policy`, starting with its weights. `forward` is as `torch_heads` says."""

    def __init__(self, policy: MlpPolicy) -> None:
        super().__init__()
        self.parts = policy.features.parts
        self.discrete = isinstance(policy.action, Discrete)
        self.activation = torch.tanh if policy.activation == "tanh" else torch.relu
        towers: dict[str, list[nn.Linear]] = {}
        for name, (out, into) in layer_shapes(policy).items():
            towers.setdefault(name.split(".")[0], []).append(nn.Linear(into, out))
        self.trunk = nn.ModuleList(towers.get("trunk", []))
        self.policy = nn.ModuleList(towers["policy"])
        self.value = nn.ModuleList(towers["value"])
        if not self.discrete:
            self.log_std = nn.Parameter(torch.zeros(policy.size))
        proper, _ = split_norm(policy.get_weights())
        self.load_state_dict({name: torch.from_numpy(array) for name, array in proper.items()})

    def forward(self, observations: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> dict[str, Any]:
        hidden = self.encode(observations)
        for layer in self.trunk:
            hidden = self.activation(layer(hidden))
        value = self._tower(self.value, hidden).squeeze(1)
        chosen = self._tower(self.policy, hidden)
        if self.discrete:
            return {"logits": chosen, "value": value}
        return {"mean": chosen, "log_std": self.log_std, "value": value}

    def encode(self, observations: Mapping[str, Tensor]) -> Tensor:
        """leaf -> [N, ...] becomes [N, width] float32, as `Features.encode`; normalising was done before."""
        columns = []
        for part in self.parts:
            space, values = part.leaf.space, observations[part.leaf.name]
            if isinstance(space, Discrete):
                columns.append(nn.functional.one_hot(values - space.start, space.n).float())
            elif space.dtype == "uint8":
                columns.append(values.flatten(1).float() * float(IMAGE_SCALE))
            else:
                columns.append(values.reshape(len(values), -1).float())
        return columns[0] if len(columns) == 1 else torch.cat(columns, dim=1)

    def _tower(self, layers: nn.ModuleList, hidden: Tensor) -> Tensor:
        last = len(layers) - 1
        for index, layer in enumerate(layers):
            hidden = layer(hidden)
            if index < last:
                hidden = self.activation(hidden)
        return hidden
