"""What a trainable torch module answers, and what its numbers mean: log-probabilities and entropies.

It never holds weights.

A module for Heddle is any `torch.nn.Module` with

    def forward(self, observations: dict[str, Tensor], state: dict[str, Tensor]) -> dict[str, Any]

where `observations` are leaves [N, ...] in the environment's dtypes (normalised ones as float32), and the answer holds

    "logits"  [N, n]            for a Discrete action, or
    "mean"    [N, A], "log_std" [A] or [N, A]   for a Box action of A numbers,
    "value"   [N] or [N, 1],
    "state"   name -> [N, ...]  only when the module is recurrent.

A recurrent module says what it carries in an attribute `state_spec: dict[str, OutputSpec]`; its state is zeros when an
episode starts. An "action_mask" leaf of the observations is applied to the logits by Heddle.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from heddle.policies.heads import HALF_LOG_TAU, MASKED_LOGIT
from heddle.spaces import Discrete, Space


def mask_logits(logits: Tensor, mask: Tensor | None) -> Tensor:
    """As `heads.apply_mask`: logits [N, n], mask [N, ...] of n numbers or None."""
    if mask is None:
        return logits
    allowed = mask.reshape(logits.shape) != 0
    allowed = allowed | ~allowed.any(dim=1, keepdim=True)
    return logits.masked_fill(~allowed, float(MASKED_LOGIT))


def categorical(logits: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities [N] of `actions` [N] int64, and entropies [N], under softmax(logits [N, n])."""
    log_probs = torch.log_softmax(logits, dim=1)
    chosen = log_probs.gather(1, actions.unsqueeze(1)).squeeze(1)
    return chosen, -(log_probs.exp() * log_probs).sum(dim=1)


def gaussian(mean: Tensor, log_std: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
    """Log-densities [N] of `actions` [N, A], and entropies [N], under independent normals."""
    spread = log_std.expand_as(mean)
    scaled = (actions - mean) * torch.exp(-spread)
    log_prob = (-0.5 * scaled * scaled - spread - HALF_LOG_TAU).sum(dim=1)
    return log_prob, (spread + (0.5 + HALF_LOG_TAU)).sum(dim=1)


def judge(answer: Mapping[str, Any], action: Space, actions: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Log-probabilities [N] and entropies [N] of `actions` [N, ...] under a module's answer."""
    if isinstance(action, Discrete):
        return categorical(mask_logits(answer["logits"], mask), actions)
    mean = answer["mean"].reshape(len(actions), -1)
    return gaussian(mean, answer["log_std"], actions.reshape(mean.shape).to(mean.dtype))


def value_of(answer: Mapping[str, Any]) -> Tensor:
    """The values [N] of a module's answer."""
    value: Tensor = answer["value"]
    return value.squeeze(1) if value.dim() == 2 else value
