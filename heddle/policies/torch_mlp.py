"""The built-in multilayer perceptron as a torch module, for learning.

It never acts in an environment: `mlp.py` does, with the same weights under the same names.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from heddle.policies.mlp import MlpPolicy, layer_shapes
from heddle.policies.outputs import split_output
from heddle.policies.torch_torso import encode
from heddle.policies.weights import split_norm


class MlpModule(nn.Module):
    """The network of `policy`, starting with its weights. `forward` is as `torch_heads` says."""

    def __init__(self, policy: MlpPolicy) -> None:
        super().__init__()
        self.parts = policy.features.parts
        self.heads, self.squash = policy.heads, policy.squash
        self.activation = torch.tanh if policy.activation == "tanh" else torch.relu
        towers: dict[str, list[nn.Linear]] = {}
        for name, (out, into) in layer_shapes(policy).items():
            towers.setdefault(name.split(".")[0], []).append(nn.Linear(into, out))
        self.trunk = nn.ModuleList(towers.get("trunk", []))
        self.policy = nn.ModuleList(towers["policy"])
        self.value = nn.ModuleList(towers["value"])
        self.log_std: nn.Parameter | None = None
        if policy.heads.means and policy.std == "parameter":
            self.log_std = nn.Parameter(torch.zeros(policy.heads.means))
        proper, _ = split_norm(policy.get_weights())
        self.load_state_dict({name: torch.from_numpy(array) for name, array in proper.items()})

    def forward(self, observations: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> dict[str, Any]:
        """What actions are chosen by, as `torch_heads` has it, and "value" [N] float32, of leaf -> [N, ...]."""
        hidden = encode(self.parts, observations)
        for layer in self.trunk:
            hidden = self.activation(layer(hidden))
        value = self._tower(self.value, hidden).squeeze(1)
        chosen = self._tower(self.policy, hidden)
        return split_output(self.heads, chosen, self.log_std) | {"value": value}

    def _tower(self, layers: nn.ModuleList, hidden: Tensor) -> Tensor:
        last = len(layers) - 1
        for index, layer in enumerate(layers):
            hidden = layer(hidden)
            if index < last:
                hidden = self.activation(hidden)
        return hidden
