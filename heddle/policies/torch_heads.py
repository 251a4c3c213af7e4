"""What a trainable torch module answers, and what its numbers mean: log-probabilities and entropies.

It never holds weights.

A module for Heddle is any `torch.nn.Module` with

    def forward(self, observations: dict[str, Tensor], state: dict[str, Tensor]) -> dict[str, Any]

where `observations` are leaves [N, ...] in the environment's dtypes (normalised ones as float32), and the answer holds

    "logits"  [N, n]            for a Discrete action of n values; of a MultiDiscrete one those of all elements, one
                                behind the other; of a MultiBinary one a logit of 1 for each element; or
    "mean"    [N, A], "log_std" [A] or [N, A]   for a Box action of A floats,
    "value"   [N] or [N, 1],
    "state"   name -> [N, ...]  only when the module is recurrent.

Of a Dict or Tuple action each leaf has its own: "logits.gear" and "mean.arm" for "action.gear" and "action.arm".

A recurrent module says what it carries in an attribute `state_spec: dict[str, OutputSpec]`; its state is zeros when an
episode starts. It may have a method `unroll` as `torch_nets.Net` has it, which makes learning faster. With an attribute
`squash = True` continuous actions go through tanh to their bounds. An "action_mask" leaf of the observations is applied
to the logits by Heddle.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, softplus

from heddle.policies.actions import Head, Heads
from heddle.policies.heads import HALF_LOG_TAU, MASKED_LOGIT, SQUASH_LIMIT

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(32)
"""Where and how much each of 32 points counts in a mean over the standard normal distribution (Gauss and Hermite)."""


def judge(
    answer: Mapping[str, Any], heads: Heads, actions: Mapping[str, Tensor], observations: Mapping[str, Tensor]
) -> tuple[Tensor, Tensor]:
    """Log-probabilities [N] and entropies [N] of actions under a module's answer, all leaves together.

    Args:
        actions: leaf -> [N, ...].
        observations: leaf -> [N, ...], for the masks among them.
    """
    found = [_judge_leaf(answer, head, actions[head.leaf.name], observations) for head in heads.all]
    if len(found) == 1:
        return found[0]
    log_probs, entropies = zip(*found, strict=True)
    return torch.stack(log_probs).sum(dim=0), torch.stack(entropies).sum(dim=0)


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


def multi_categorical(
    logits: Tensor, sizes: Sequence[int], actions: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Log-probabilities [N] of index arrays [N, k], and entropies [N], each element under logits of its own.

    Args:
        logits: [N, sum of sizes], those of an element together.
        mask: [N, sum of sizes], non-zero where allowed.
    """
    masks = [None] * len(sizes) if mask is None else torch.split(mask, list(sizes), dim=1)
    found = [
        categorical(mask_logits(part, allowed), actions[:, place])
        for place, (part, allowed) in enumerate(zip(torch.split(logits, list(sizes), dim=1), masks, strict=True))
    ]
    log_probs, entropies = zip(*found, strict=True)
    return torch.stack(log_probs).sum(dim=0), torch.stack(entropies).sum(dim=0)


def bernoulli(logits: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities [N] of zeros and ones [N, k], and entropies [N]; logits [N, k] are those of a 1."""
    log_prob = -binary_cross_entropy_with_logits(logits, actions.to(logits.dtype), reduction="none")
    entropy = binary_cross_entropy_with_logits(logits, torch.sigmoid(logits), reduction="none")
    return log_prob.sum(dim=1), entropy.sum(dim=1)


def gaussian(mean: Tensor, log_std: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
    """Log-densities [N] of `actions` [N, A], and entropies [N], under independent normals."""
    spread = log_std.expand_as(mean)
    scaled = (actions - mean) * torch.exp(-spread)
    log_prob = (-0.5 * scaled * scaled - spread - HALF_LOG_TAU).sum(dim=1)
    return log_prob, (spread + (0.5 + HALF_LOG_TAU)).sum(dim=1)


def squashed(mean: Tensor, log_std: Tensor, actions: Tensor, *, low: Tensor, span: Tensor) -> tuple[Tensor, Tensor]:
    """Log-densities [N] of `actions` [N, A] within their bounds, and entropies [N]: see `heads.squashed`.

    The entropy has no closed form; it is a mean over 32 points of the normal distribution, exact to about 1e-3.

    Args:
        low, span: [A] float64: the least actions, and from there to the greatest.
    """
    spread = log_std.expand_as(mean)
    found = (2.0 * (actions.to(torch.float64) - low) / span - 1.0).clamp(-SQUASH_LIMIT, SQUASH_LIMIT)
    scaled = (torch.atanh(found) - mean) * torch.exp(-spread)
    volume = torch.log(0.5 * span)
    each = -0.5 * scaled * scaled - spread - HALF_LOG_TAU - torch.log1p(-found * found) - volume
    nodes = torch.as_tensor(_NODES, dtype=mean.dtype, device=mean.device)
    weights = torch.as_tensor(_WEIGHTS / _WEIGHTS.sum(), dtype=mean.dtype, device=mean.device)
    points = mean.unsqueeze(-1) + torch.exp(spread).unsqueeze(-1) * nodes
    slope = (2.0 * (np.log(2.0) - points - softplus(-2.0 * points)) * weights).sum(dim=-1)  # mean of log(1 - tanh^2)
    entropy = spread + (0.5 + HALF_LOG_TAU) + slope + volume.to(mean.dtype)
    return each.to(mean.dtype).sum(dim=1), entropy.sum(dim=1)


def permitted(heads: Heads, actions: Mapping[str, Tensor], observations: Mapping[str, Tensor]) -> Tensor | None:
    """[N] bool, whether the masks among the observations allow these actions, all elements of all leaves; None without
    masks. Where a mask allows nothing it counts for nothing, as when acting.

    Args:
        actions: leaf -> [N, ...].
        observations: leaf -> [N, ...].
    """
    found: Tensor | None = None
    for head in (head for head in heads.all if head.masks):
        chosen = actions[head.leaf.name].reshape(-1, head.elements).to(torch.int64)
        mask = torch.cat([observations[name].reshape(len(chosen), -1) for name in head.masks], dim=1)
        for place, part in enumerate(torch.split(mask, list(head.sizes), dim=1)):
            allowed = part != 0
            allowed = allowed | ~allowed.any(dim=1, keepdim=True)
            fits = allowed.gather(1, chosen[:, place : place + 1]).squeeze(1)
            found = fits if found is None else found & fits
    return found


def value_of(answer: Mapping[str, Any]) -> Tensor:
    """The values [N] of a module's answer."""
    value: Tensor = answer["value"]
    return value.squeeze(1) if value.dim() == 2 else value


def _judge_leaf(
    answer: Mapping[str, Any], head: Head, actions: Tensor, observations: Mapping[str, Tensor]
) -> tuple[Tensor, Tensor]:
    rows = len(actions)
    if head.continuous:
        mean = answer[f"mean{head.suffix}"].reshape(rows, head.count)
        log_std, flat = answer[f"log_std{head.suffix}"], actions.reshape(rows, head.count)
        if head.low is None or head.span is None:
            return gaussian(mean, log_std, flat.to(mean.dtype))
        low, span = (torch.as_tensor(bound, device=mean.device) for bound in (head.low, head.span))
        return squashed(mean, log_std, flat, low=low, span=span)
    logits = answer[f"logits{head.suffix}"].reshape(rows, head.count)
    flat = actions.reshape(rows, head.elements)
    if head.kind == "bernoulli":
        return bernoulli(logits, flat)
    if head.offset is not None:
        flat = flat - torch.as_tensor(head.offset.reshape(-1).astype(np.int64), device=flat.device)
    masks = [observations[name].reshape(rows, -1) for name in head.masks]
    mask = torch.cat(masks, dim=1) if masks else None
    if len(head.sizes) == 1:
        return categorical(mask_logits(logits, mask), flat[:, 0].to(torch.int64))
    return multi_categorical(logits, head.sizes, flat.to(torch.int64), mask)
