"""Generalised advantage estimation over segments that may be short, and that may hold several episodes.

Pure functions: tensors in, tensors out, no gradient, no state.
"""

import torch
from torch import Tensor


def next_values(values: Tensor, *, terminated: Tensor, truncated: Tensor, final_values: Tensor) -> Tensor:
    """The value of what followed each step, for its bootstrap.

    Args:
        values: [B, T+1] float32, of the observations; column t+1 follows step t.
        terminated, truncated: [B, T] bool; both true means terminated.
        final_values: [B, T] float32, value of the true last observation where an episode was truncated.

    Returns:
        [B, T] float32: 0 where the episode terminated, the final value where it was truncated, else column t+1.
    """
    following = torch.where(truncated, final_values, values[:, 1:])
    return following.masked_fill(terminated, 0.0)


def gae(
    rewards: Tensor, values: Tensor, following: Tensor, *, ended: Tensor, valid: Tensor, gamma: float, lam: float
) -> Tensor:
    """Advantages of each step; value targets are these plus `values[:, :-1]`.

    Args:
        rewards: [B, T] float32.
        values: [B, T+1] float32.
        following: [B, T] float32, from `next_values`.
        ended: [B, T] bool, an episode ended with this step: nothing flows back across it.
        valid: [B, T] bool; steps beyond a segment's length get 0, and the last valid one bootstraps from `following`.
        gamma: discount per step.
        lam: lambda; 0 gives one-step temporal differences, 1 Monte Carlo returns.

    Returns:
        [B, T] float32.

    Source: Schulman et al. 2016, arXiv:1506.02438, equation 16.
    """
    delta = torch.where(valid, rewards + gamma * following - values[:, :-1], 0.0)
    keep = torch.where(ended | ~valid, 0.0, gamma * lam)
    # Time first, so that each step of the recursion reads rows that lie together.
    columns = zip(reversed(delta.t().contiguous().unbind()), reversed(keep.t().contiguous().unbind()), strict=True)
    advantage = torch.zeros_like(delta[:, 0])
    backwards = []
    for delta_now, keep_now in columns:
        advantage = torch.addcmul(delta_now, keep_now, advantage)
        backwards.append(advantage)
    return torch.stack(backwards[::-1], dim=1)


def scatter_finals(final_values: Tensor, final_index: Tensor, *, like: Tensor) -> Tensor:
    """[K] values at [K, 2] (segment, step) as a [B, T] tensor, 0 elsewhere."""
    spread = torch.zeros_like(like)
    spread[final_index[:, 0], final_index[:, 1]] = final_values
    return spread
