"""Soft actor-critic's networks as torch modules, for learning; `sac.py` acts with the actor's weights."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from heddle.policies.heads import HALF_LOG_TAU
from heddle.policies.sac import LOG_STD_LIMITS, RANDOM, SacPolicy
from heddle.policies.torch_value import Trunk
from heddle.policies.weights import split_norm


class ActorHeads(nn.Module):
    """An actor behind a trunk, observations to [N, size]; answers "mean" and "log_std", [N, A] before squashing."""

    def __init__(self, trunk: nn.Module, size: int, actions: int) -> None:
        super().__init__()
        self.trunk, self.mean, self.log_std = trunk, nn.Linear(size, actions), nn.Linear(size, actions)

    def forward(self, observations: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> dict[str, Any]:
        """As the class says, of leaf -> [N, ...]; float32."""
        hidden = self.trunk(observations)
        return {"mean": self.mean(hidden), "log_std": self.log_std(hidden).clamp(*LOG_STD_LIMITS)}


class SacActor(ActorHeads):
    """The actor of `policy`, starting with its weights."""

    def __init__(self, policy: SacPolicy) -> None:
        trunk = Trunk(policy.features, policy.hidden, policy.activation)
        super().__init__(trunk, trunk.size, policy.size)
        proper, _ = split_norm(policy.get_weights())
        self.load_state_dict({name: torch.from_numpy(array) for name, array in proper.items() if name != RANDOM})


class TwinCritics(nn.Module):
    """Two values of an action, from networks of the actor's shape: a policy with `critic_trunk` makes their trunks."""

    def __init__(self, policy: SacPolicy) -> None:
        super().__init__()
        shape = (policy.features, policy.hidden, policy.activation)
        make: Any = getattr(policy, "critic_trunk", lambda: Trunk(*shape, extra=policy.size))
        self.trunks = nn.ModuleList(make() for _ in range(2))
        self.heads = nn.ModuleList(nn.Linear(trunk.size, 1) for trunk in self.trunks)  # type: ignore[arg-type]

    def forward(self, observations: Mapping[str, Tensor], actions: Tensor) -> tuple[Tensor, Tensor]:
        """Values [N] each, of actions [N, A] on [-1, 1]."""
        one, two = (
            head(trunk(observations, actions)).squeeze(1) for trunk, head in zip(self.trunks, self.heads, strict=True)
        )
        return one, two


def squashed(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Actions on (-1, 1) and their log-densities.

    Args:
        mean, log_std: [N, A], before squashing.
        noise: [N, A] standard normal.

    Returns:
        tanh(mean + std * noise) [N, A], and [N].

    Source: Haarnoja et al. 2018, arXiv:1812.05905, equation 21; log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2u)).
    """
    inner = mean + log_std.exp() * noise
    normal = (-0.5 * noise * noise - log_std - HALF_LOG_TAU).sum(dim=1)
    slope = 2.0 * (math.log(2.0) - inner - nn.functional.softplus(-2.0 * inner))
    return inner.tanh(), normal - slope.sum(dim=1)
