"""V-trace: value targets and advantages from experience of a policy other than the one that learns.

Pure functions: tensors in, tensors out, no gradient, no state.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Clips:
    """Upper limits of the importance weights.

    Attributes:
        rho: of the temporal differences.
        c: of the traces.
        policy_rho: of the policy gradient.
    """

    rho: float = 1.0
    c: float = 1.0
    policy_rho: float = 1.0


@dataclass(frozen=True, slots=True)
class VtraceTargets:
    """What to learn from each step.

    Attributes:
        value: [B, T], the target of the value; 0 where not valid.
        advantage: [B, T]; 0 where not valid.
        weight: [B, T], importance weight of the step in the policy gradient, a factor of its advantage.
    """

    value: Tensor
    advantage: Tensor
    weight: Tensor


@torch.no_grad()
def vtrace(
    log_ratio: Tensor,
    rewards: Tensor,
    values: Tensor,
    following: Tensor,
    *,
    ended: Tensor,
    valid: Tensor,
    gamma: float,
    lam: float = 1.0,
    clips: Clips | None = None,
) -> VtraceTargets:
    """V-trace targets of segments that may be short, and that may hold several episodes.

    Args:
        log_ratio: [B, T] float32, log-probability of each action under the policy that learns, less the one under the
            policy that acted.
        rewards: [B, T] float32.
        values: [B, T+1] float32, by the current weights.
        following: [B, T] float32, from `gae.next_values`: what the bootstrap of each step is.
        ended: [B, T] bool, an episode ended with this step: nothing flows back across it.
        valid: [B, T] bool; the last valid step bootstraps from `following`.
        gamma: discount per step.
        lam: lambda, a factor of the traces; with 1 and no clipping in effect, on-policy targets are n-step returns.
        clips: upper limits of the weights.

    Source: Espeholt et al. 2018, arXiv:1802.01561, equation 1, remark 2 (lambda) and section 4.2 (policy gradient).
    """
    clips = clips or Clips()
    ratio = torch.where(valid, log_ratio, 0.0).exp()
    rho, c = ratio.clamp(max=clips.rho), lam * ratio.clamp(max=clips.c)
    now = values[:, :-1]
    delta = torch.where(valid, rho * (rewards + gamma * following - now), 0.0)
    goes_on = valid & ~ended
    goes_on[:, :-1] &= valid[:, 1:]
    goes_on[:, -1] = False
    keep = torch.where(goes_on, gamma * c, 0.0)
    surplus = torch.zeros_like(delta[:, 0])
    backwards = []  # of each step, its target less its value; time first, so that rows lie together
    for delta_now, keep_now in zip(
        reversed(delta.t().contiguous().unbind()), reversed(keep.t().contiguous().unbind()), strict=True
    ):
        surplus = torch.addcmul(delta_now, keep_now, surplus)
        backwards.append(surplus)
    over = torch.stack(backwards[::-1], dim=1)
    after = torch.zeros_like(over)
    after[:, :-1] = torch.where(goes_on[:, :-1], over[:, 1:], 0.0)
    advantage = torch.where(valid, rewards + gamma * (following + after) - now, 0.0)
    return VtraceTargets(torch.where(valid, now + over, 0.0), advantage, ratio.clamp(max=clips.policy_rho))
