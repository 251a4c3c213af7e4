"""The built-in networks in torch: convolutions, memories, and heads for policy and value.

They never choose an action: `torch_policy.py` does, from what `forward` answers. `forward` is as `torch_heads` says.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from heddle.policies.actions import Heads
from heddle.policies.base import OutputSpec
from heddle.policies.features import Features
from heddle.policies.outputs import network_size, split_output
from heddle.policies.torch_memory import Memory, Tensors
from heddle.policies.torch_torso import Torso, orthogonal
from heddle.spaces import Space
from heddle.spec import PolicySpec

PIECE_ROWS = 4096
"""Observations looked at in one call while nothing is learned: bounds the memory that convolutions take."""


class Tower(nn.Module):
    """A torso and, in a recurrent policy, the memory behind it."""

    def __init__(self, features: Features, spec: PolicySpec) -> None:
        super().__init__()
        self.torso = Torso(features, spec, spec.looks_through)
        self.memory = Memory(spec.id, self.torso.width, spec.recurrent_size) if spec.recurrent else None
        self.width = spec.recurrent_size if self.memory else self.torso.width
        self.parts = self.memory.parts if self.memory else ()


class Net(nn.Module):
    """One tower for policy and value, or two side by side, and their heads.

    Attributes:
        state_spec: what its memories carry: "h" and, of an LSTM, "c"; "policy.h", "value.h" with two towers.

    Source: heads start orthogonal with gain 0.01 (policy) and 1 (value), Andrychowicz et al. 2021, arXiv:2006.05990.
    """

    def __init__(self, spec: PolicySpec, observation: Space, action: Space) -> None:
        super().__init__()
        features = Features(observation, action)
        self.heads, self.squash = Heads(observation, action, squash=spec.squash), spec.squash
        for name in ("trunk",) if spec.shared else ("policy", "value"):
            self.add_module(name, Tower(features, spec))
        width = next(tower.width for _, tower in self.towers())
        self.policy_head, self.value_head = nn.Linear(width, network_size(self.heads, spec.std)), nn.Linear(width, 1)
        orthogonal(self.policy_head, 0.01)
        orthogonal(self.value_head, 1.0)
        self.log_std: nn.Parameter | None = None
        if self.heads.means and spec.std == "parameter":
            self.log_std = nn.Parameter(torch.zeros(self.heads.means))
        carried = OutputSpec("float32", (spec.recurrent_size,))
        self.state_spec = {_key(name, part): carried for name, tower in self.towers() for part in tower.parts}

    def towers(self) -> list[tuple[str, Tower]]:
        """By name: "trunk", or "policy" and "value"."""
        return [(name, child) for name, child in self.named_children() if isinstance(child, Tower)]

    def forward(self, observations: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> dict[str, Any]:
        """One step of leaf -> [N, ...] from state name -> [N, recurrent_size]; with a memory also "state" behind it."""
        found: Tensors = {}
        after: Tensors = {}
        for name, tower in self.towers():
            hidden = tower.torso(observations)
            if tower.memory is not None:
                before = {part: state[_key(name, part)] for part in tower.parts}
                hidden, now = tower.memory.step(hidden.unsqueeze(1), before)
                hidden = hidden.squeeze(1)
                after |= {_key(name, part): value for part, value in now.items()}
            found[name] = hidden
        return self._heads(found) | ({"state": after} if after else {})

    def unroll(
        self, observations: Mapping[str, Tensor], ended: Tensor, state: Mapping[str, Tensor]
    ) -> tuple[dict[str, Any], dict[int, Tensors]]:
        """All steps of segments at once: equal to `forward` step by step, but faster.

        Args:
            observations: leaf -> [B, L, ...].
            ended: [B, L] bool; the state starts anew after such a step.
            state: name -> [B, ...] before step 0.

        Returns:
            The answer of `forward` to the B * L observations, those of a segment together; and the state after each
            step at which some episode ended, before it started anew: step -> name -> [B, ...].
        """
        flat = {name: values.flatten(0, 1) for name, values in observations.items()}
        found: Tensors = {}
        after: dict[int, Tensors] = {}
        for name, tower in self.towers():
            hidden = tower.torso(flat) if torch.is_grad_enabled() else _in_pieces(tower.torso, flat)
            if tower.memory is not None:
                before = {part: state[_key(name, part)] for part in tower.parts}
                out, cuts = tower.memory.unroll(hidden.view(*ended.shape, -1), ended, before)
                hidden = out.flatten(0, 1)
                for step, kept in cuts.items():
                    after.setdefault(step, {}).update({_key(name, part): kept[part] for part in kept})
            found[name] = hidden
        return self._heads(found), after

    def _heads(self, found: Mapping[str, Tensor]) -> dict[str, Any]:
        chosen = self.policy_head(found.get("trunk", found.get("policy")))
        value = self.value_head(found.get("trunk", found.get("value"))).squeeze(1)
        return split_output(self.heads, chosen, self.log_std) | {"value": value}


def make_net(spec: PolicySpec, observation: Space, action: Space) -> Net:
    """The network of a built-in policy; first weights come from torch's generator.

    Raises:
        EnvError: it does not fit the spaces.
    """
    return Net(spec, observation, action)


def _key(tower: str, part: str) -> str:
    return part if tower == "trunk" else f"{tower}.{part}"


def _in_pieces(torso: nn.Module, observations: Mapping[str, Tensor]) -> Tensor:
    parts = {name: torch.split(values, PIECE_ROWS) for name, values in observations.items()}
    count = len(next(iter(parts.values())))
    return torch.cat([torso({name: pieces[index] for name, pieces in parts.items()}) for index in range(count)])
