"""Targets and losses of learners that learn values of actions. Pure functions over [N] tensors."""

import torch
from torch import Tensor


def bootstrapped(returns: Tensor, discount: Tensor, following: Tensor) -> Tensor:
    """[N] targets: rewards of n steps, and the discounted value of what followed.

    Args:
        returns: [N], discounted rewards.
        discount: [N], gamma to the number of rewards; 0 where the episode terminated.
        following: [N], the value of the observation after them.

    Source: Sutton 1988 for n = 1; Watkins 1989, chapter 7, for more, uncorrected as in Hessel et al. 2018.
    """
    return returns + discount * following


def greedy_value(target: Tensor, online: Tensor | None = None) -> Tensor:
    """[N] values of the best action by [N, n] values of the target network.

    Args:
        online: [N, n], by the online network, whose best action is taken then.

    Source: Mnih et al. 2015; with `online` van Hasselt et al. 2016, arXiv:1509.06461, equation 4.
    """
    if online is None:
        return target.max(dim=1).values
    return target.gather(1, online.argmax(dim=1, keepdim=True)).squeeze(1)


def huber(value: Tensor, target: Tensor, weights: Tensor) -> Tensor:
    """Mean over [N] of the weighted Huber loss: errors above 1 are clipped, as in Mnih et al. 2015."""
    losses = torch.nn.functional.smooth_l1_loss(value, target, reduction="none")
    return (weights * losses).mean()
