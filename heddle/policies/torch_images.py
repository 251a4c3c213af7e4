"""The policies "q" and "sac" for images: a torso of convolutions in front of their heads, acting in torch.

They never learn by themselves: the learners take the same modules by `module()`.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from heddle.policies.base import Array, Arrays
from heddle.policies.features import Features
from heddle.policies.normalise import CLIP, Normaliser
from heddle.policies.q import EPSILON, QPolicy
from heddle.policies.sac import RANDOM, SacPolicy
from heddle.policies.torch_module import load_module_weights, module_weights
from heddle.policies.torch_sac import ActorHeads
from heddle.policies.torch_torso import Torso
from heddle.policies.torch_value import QHeads
from heddle.spaces import Space
from heddle.spec import PolicySpec


class ImageQ(QPolicy):
    """As `QPolicy`, through `policy.torso`.

    Raises:
        EnvError: it does not fit the spaces.
    """

    def __init__(self, spec: PolicySpec, observation: Space, action: Space, *, rng: np.random.Generator) -> None:
        self._spec = spec
        shape: dict[str, Any] = {"hidden": spec.hidden, "activation": spec.activation, "dueling": spec.dueling}
        super().__init__(observation, action, **shape, rng=rng)

    def module(self) -> nn.Module:
        return self._module

    def _first(self, rng: np.random.Generator) -> Arrays:
        torso = Torso(self.features, self._spec, self._spec.torso)
        self._module = QHeads(torso, torso.width, self.count, dueling=self.dueling)
        return module_weights(self._module)

    def _answers(self, observations: Mapping[str, Array]) -> dict[str, Any]:
        return _answers(self._module, observations, self._normaliser)

    def _pack(self) -> None:
        load_module_weights(self._module, {name: a for name, a in self._weights.items() if name != EPSILON})


class ImageSac(SacPolicy):
    """As `SacPolicy`, through `policy.torso`.

    Raises:
        EnvError: it does not fit the spaces.
    """

    def __init__(self, spec: PolicySpec, observation: Space, action: Space, *, rng: np.random.Generator) -> None:
        self._spec = spec
        super().__init__(observation, action, hidden=spec.hidden, activation=spec.activation, rng=rng)

    def module(self) -> nn.Module:
        return self._module

    def critic_trunk(self) -> nn.Module:
        """For a critic: convolutions of its own, and the action beside what they give."""
        return ImageAndAction(self.features, self._spec, self.size)

    def _first(self, rng: np.random.Generator) -> Arrays:
        torso = Torso(self.features, self._spec, self._spec.torso)
        self._module = ActorHeads(torso, torso.width, self.size)
        return module_weights(self._module)

    def _answers(self, observations: Mapping[str, Array]) -> dict[str, Array]:
        return _answers(self._module, observations, self._normaliser)

    def _pack(self) -> None:
        load_module_weights(self._module, {name: a for name, a in self._weights.items() if name != RANDOM})


class ImageAndAction(nn.Module):
    """Observations through convolutions, joined with an action [N, actions], through the hidden layers.

    Attributes:
        size: of what comes out.
    """

    def __init__(self, features: Features, spec: PolicySpec, actions: int) -> None:
        super().__init__()
        self.torso = Torso(features, spec.model_copy(update={"hidden": ()}), spec.torso)
        sizes = (self.torso.width + actions, *spec.hidden)
        self.hidden = nn.ModuleList(nn.Linear(into, out) for into, out in zip(sizes, sizes[1:], strict=False))
        self.size = sizes[-1]
        self.activation = torch.tanh if spec.activation == "tanh" else torch.relu

    def forward(self, observations: Mapping[str, Tensor], actions: Tensor) -> Tensor:
        """[N, size] of leaf -> [N, ...] and actions [N, actions]."""
        hidden = torch.cat([self.torso(observations), actions], dim=1)
        for layer in self.hidden:
            hidden = self.activation(layer(hidden))
        return hidden


@torch.inference_mode()
def _answers(module: nn.Module, observations: Mapping[str, Array], normaliser: Normaliser | None) -> dict[str, Array]:
    tensors: dict[str, Tensor] = {}
    for name, values in observations.items():
        factors = normaliser.factors(name) if normaliser else None
        if factors is not None:
            values = np.clip((values.astype(np.float32, copy=False) - factors[0]) * factors[1], -CLIP, CLIP)
        tensors[name] = torch.from_numpy(values)
    return {name: tensor.numpy() for name, tensor in module(tensors, {}).items()}
