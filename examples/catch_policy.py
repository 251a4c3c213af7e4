"""A policy of your own: a torch module.

`policy.id = "catch_policy:Net"` in exp.toml names it. It gets the spaces and `policy.kwargs`; `forward` answers logits
(or mean and log_std) and a value. Workers that play it need torch, too.
"""

from typing import Any

import torch
from torch import Tensor, nn

from heddle.spaces import Box, Discrete


class Net(nn.Module):
    """Two layers, then one head for the action and one for the value."""

    def __init__(self, observation: Box, action: Discrete, width: int = 32) -> None:
        super().__init__()
        inputs = observation.shape[0]
        self.body = nn.Sequential(nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.logits = nn.Linear(width, action.n)
        self.value = nn.Linear(width, 1)

    def forward(self, observations: dict[str, Tensor], state: dict[str, Tensor]) -> dict[str, Any]:
        features = self.body(observations["obs"].to(torch.float32))
        return {"logits": self.logits(features), "value": self.value(features)}
