"""A policy's network with everything around it as one torch module: statistics, masks, likeliest actions.

It never writes a file: `torch_export.py` does.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from heddle.policies.actions import Head, Heads
from heddle.policies.answers import answer_names
from heddle.policies.base import OutputSpec
from heddle.policies.normalise import CLIP, Normaliser
from heddle.policies.q import EPSILON, action_mask
from heddle.policies.sac import RANDOM, SacPolicy
from heddle.policies.torch_heads import mask_logits, value_of
from heddle.policies.torch_module import load_module_weights
from heddle.policies.weights import NORM_PREFIX, split_norm
from heddle.spaces import ACTION, leaves


class Portable(nn.Module, ABC):
    """Raw observations and states in; actions, the numbers they are chosen by, and the next states out.

    Attributes:
        inputs, outputs: names, in order.
        leaves: those of the observation.
    """

    def __init__(self, net: nn.Module, policy: Any) -> None:
        super().__init__()
        self.net = net.cpu().eval()
        self.state_spec: Mapping[str, OutputSpec] = policy.state
        self.leaves = [leaf.name for leaf in leaves(policy.observation)]
        self.inputs = [*self.leaves, *(f"state.{name}" for name in self.state_spec)]
        self.outputs = [*self.told(policy), *(f"next_state.{name}" for name in self.state_spec)]
        self.factors = _factors(policy)

    def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
        """`outputs` for `inputs`, [N, ...] each."""
        raw = dict(zip(self.leaves, given, strict=False))
        state = dict(zip(self.state_spec, given[len(self.leaves) :], strict=True))
        seen = dict(raw)
        for name, (mean, scale) in self.factors.items():
            seen[name] = ((raw[name].float() - mean) * scale).clamp(-CLIP, CLIP)
        answer = self.net(seen, state)
        return (*self.tell(answer, raw), *(answer["state"][name] for name in self.state_spec))

    @abstractmethod
    def told(self, policy: Any) -> list[str]:
        """Names of what `tell` gives, in order."""

    @abstractmethod
    def tell(self, answer: Mapping[str, Any], raw: Mapping[str, Tensor]) -> list[Tensor]:
        """What the network's answer to these observations comes to, in the order of `told`, [N, ...] each.

        Args:
            answer: by name, [N, ...]. raw: leaf -> [N, ...], as the environment shows it.
        """


class PortableHeads(Portable):
    """The likeliest action of every leaf, logits or means and log_stds, and the value."""

    def told(self, policy: Any) -> list[str]:
        squash = bool(getattr(self.net, "squash", False))
        self.heads: Heads = getattr(policy, "heads", None) or Heads(policy.observation, policy.action, squash=squash)
        self.names = answer_names(self.heads)
        return [*(head.leaf.name for head in self.heads.all), *self.names, "value"]

    def tell(self, answer: Mapping[str, Any], raw: Mapping[str, Tensor]) -> list[Tensor]:
        actions = [_likeliest(head, answer, raw) for head in self.heads.all]
        return [*actions, *(answer[name].float() for name in self.names), value_of(answer).float()]


class PortableValues(Portable):
    """The allowed action of the highest value, and the values of all, of those that are not allowed, too."""

    def told(self, policy: Any) -> list[str]:
        self.mask = action_mask(policy.observation, policy.action)
        return [ACTION, "q"]

    def tell(self, answer: Mapping[str, Any], raw: Mapping[str, Tensor]) -> list[Tensor]:
        values = answer["q"].float()
        return [mask_logits(values, raw[self.mask] if self.mask else None).argmax(dim=1), values]


class PortableSac(Portable):
    """The mean action, squashed into its bounds, and the mean and log_std before that."""

    def told(self, policy: SacPolicy) -> list[str]:
        self.low, self.span = torch.from_numpy(policy.low), torch.from_numpy(policy.high - policy.low)
        self.shape, self.dtype = (-1, *policy.action.shape), getattr(torch, policy.action.dtype)
        return [ACTION, "mean", "log_std"]

    def tell(self, answer: Mapping[str, Any], raw: Mapping[str, Tensor]) -> list[Tensor]:
        action = self.low + (answer["mean"].float().tanh() + 1) / 2 * self.span
        return [action.reshape(self.shape).to(self.dtype), answer["mean"].float(), answer["log_std"].float()]


def portable(policy: Any) -> Portable:
    """The policy's module with what belongs around it, in evaluation mode.

    Raises:
        ValueError: it has no torch module, or one of other weights (WeightsError), or says no spaces.
    """
    make = getattr(policy, "module", None)
    lacks = "no torch module" if not callable(make) else ""
    if not lacks and not (hasattr(policy, "observation") and hasattr(policy, "action")):
        lacks = "no attributes `observation` and `action` with its spaces"
    if lacks or make is None:
        raise ValueError(f"{type(policy).__name__} has {lacks}; its weights can be exported as safetensors")
    weights, _ = split_norm(policy.get_weights())
    kind = PortableSac if isinstance(policy, SacPolicy) else PortableValues if EPSILON in weights else PortableHeads
    net = make()
    load_module_weights(net, {name: array for name, array in weights.items() if name not in (EPSILON, RANDOM)})
    return kind(net, policy).eval()


def _factors(policy: Any) -> dict[str, tuple[Tensor, Tensor]]:
    _, norm = split_norm(policy.get_weights())
    if not any(name.startswith(NORM_PREFIX) for name in norm):
        return {}
    normaliser = Normaliser(policy.observation)
    normaliser.load(norm)
    found = {name: normaliser.factors(name) for name in normaliser.moments}
    return {name: (torch.from_numpy(pair[0]), torch.from_numpy(pair[1])) for name, pair in found.items() if pair}


def _likeliest(head: Head, answer: Mapping[str, Tensor], observations: Mapping[str, Tensor]) -> Tensor:
    shape, dtype = (-1, *head.leaf.space.shape), getattr(torch, head.leaf.chosen_dtype)
    if head.continuous:
        mean = answer[f"mean{head.suffix}"].reshape(-1, head.count)
        if head.low is not None and head.span is not None:
            low, span = torch.from_numpy(head.low), torch.from_numpy(head.span)
            mean = low + span * (torch.tanh(mean.double()) + 1.0) * 0.5
        return mean.reshape(shape).to(dtype)
    logits = answer[f"logits{head.suffix}"].reshape(-1, head.count)
    if head.kind == "bernoulli":
        return (logits > 0).reshape(shape).to(dtype)
    masks = [observations[name].flatten(1) for name in head.masks]
    parts = torch.split(logits, list(head.sizes), dim=1)
    allowed = torch.split(torch.cat(masks, dim=1), list(head.sizes), dim=1) if masks else [None] * len(parts)
    picks = [mask_logits(part, mask).argmax(dim=1) for part, mask in zip(parts, allowed, strict=True)]
    chosen = torch.stack(picks, dim=1).reshape(shape)
    if head.offset is not None:
        chosen = chosen + torch.from_numpy(head.offset.astype(np.int64))
    return chosen.to(dtype)
