"""A network that follows another one. It is flat like the other's trained parameters, so that following is one call.

It is never trained.
"""

import copy

import torch
from torch import nn

from heddle.consumers.learners.optimizer import FlatAdam, flatten, trained


class Target:
    """A copy of `online` as it is now.

    Attributes:
        net: the copy.

    Args:
        optimizer: of `online`.
    """

    def __init__(self, online: nn.Module, optimizer: FlatAdam) -> None:
        self.net = copy.deepcopy(online)
        self._ahead, self._behind = optimizer.flat.data, flatten(trained(self.net).values())
        mine = trained(self.net)
        own, other = dict(self.net.named_parameters()), dict(online.named_parameters())
        self._fixed = [(own[name], other[name]) for name in own if name not in mine]
        self._buffers = list(zip(self.net.buffers(), online.buffers(), strict=True))

    @torch.no_grad()
    def follow(self, tau: float) -> None:
        """Move by `tau` towards the online network; buffers, and parameters that nobody trains, become the same."""
        self._behind.lerp_(self._ahead, tau)
        for kept, now in (*self._fixed, *self._buffers):
            kept.copy_(now)
