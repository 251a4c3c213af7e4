"""The terms of PPO's objective and the numbers that tell how an update went.

Pure functions over [N] tensors: no weights, no state.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class PolicyTerm:
    """The policy's part of the objective.

    Attributes:
        loss: scalar with gradient.
        kl: scalar, estimate of KL(old || new), no gradient.
        clip_fraction: scalar, share of steps whose ratio left the clip range, no gradient.
    """

    loss: Tensor
    kl: Tensor
    clip_fraction: Tensor


def policy_term(log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor, *, clip: float) -> PolicyTerm:
    """The clipped surrogate objective, to be minimised.

    Args:
        log_prob: [N] of the policy that learns, with gradient.
        old_log_prob: [N] of the policy that acted.
        advantage: [N].
        clip: how far the ratio may move from 1 before its gradient stops.

    Source: Schulman et al. 2017, arXiv:1707.06347, equation 7; KL: http://joschu.net/blog/kl-approx.html, k3.
    """
    log_ratio = log_prob - old_log_prob
    ratio = log_ratio.exp()
    loss = -torch.min(ratio * advantage, ratio.clamp(1.0 - clip, 1.0 + clip) * advantage).mean()
    with torch.no_grad():
        change = ratio - 1.0
        return PolicyTerm(loss, (change - log_ratio).mean(), (change.abs() > clip).float().mean())


def value_term(
    value: Tensor, target: Tensor, old_value: Tensor, *, clip: float | None, pessimistic: bool = False
) -> Tensor:
    """Mean squared error of the value; with `clip`, the value may move only so far from `old_value`.

    Args:
        value: [N] with gradient.
        target: [N].
        old_value: [N], before the update.
        clip: None: not clipped.
        pessimistic: False: the clipped value alone is compared, as with Stable-Baselines3's `clip_range_vf`; True: the
            larger of both errors counts for each step, as with CleanRL's `clip_vloss` and the first PPO code of OpenAI.
    """
    plain = (target - value).square()
    if clip is None:
        return plain.mean()
    clipped = (target - old_value - (value - old_value).clamp(-clip, clip)).square()
    return (torch.max(plain, clipped) if pessimistic else clipped).mean()


def standardise(advantage: Tensor) -> Tensor:
    """[N] advantages with mean 0 and standard deviation 1; one alone is left as it is."""
    if len(advantage) < 2:
        return advantage
    std, mean = torch.std_mean(advantage)
    return (advantage - mean) / (std + 1e-8)


def explained_variance(value: Tensor, target: Tensor) -> float:
    """1 - Var(target - value) / Var(target) over [N]: 1 is perfect, 0 as good as a constant; NaN without variance."""
    variance = float(target.var(correction=0))
    if variance <= 1e-12 * float(target.square().mean() + value.square().mean()):  # float32 rounding and no more
        return float("nan")
    return 1.0 - float((target - value).var(correction=0)) / variance
