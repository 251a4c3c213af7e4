"""A torch module of the user's as a policy that workers can act with.

It never trains: the learner takes the same module by `module()`.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from heddle.errors import EnvError
from heddle.policies.actions import Heads
from heddle.policies.answers import ROWS, answer_names, answer_problem, blank_observations, demand_shapes
from heddle.policies.base import Acted, Array, Arrays, OutputSpec, zero_state
from heddle.policies.heads import choose
from heddle.policies.normalise import CLIP, Normaliser
from heddle.policies.torch_heads import value_of
from heddle.policies.torch_module import load_module_weights, module_weights
from heddle.policies.weights import split_norm
from heddle.spaces import Space, leaves
from heddle.spaces.cells import numbers_of
from heddle.spec.objects import user_errors

SCALAR = OutputSpec("float32")


class TorchPolicy:
    """Acts with a module whose `forward` is as `torch_heads` says; it chooses in numpy, as the built-in policy does.

    Args:
        net: the module; moved to the CPU, in evaluation mode.
        observation, action: the spaces.
        name: as the spec names it, for messages.

    Raises:
        EnvError: numpy cannot hold its parameters, or its answer, for which it is asked once, does not fit the spaces.
    """

    outputs: Mapping[str, OutputSpec] = {"log_prob": SCALAR, "value": SCALAR}

    def __init__(self, net: nn.Module, observation: Space, action: Space, *, name: str) -> None:
        _demand_held(net, name=name)
        self.net = net.cpu().eval()  # acting draws no dropout and leaves running statistics alone
        self.observation, self.action, self.name = observation, action, name
        self._leaves = leaves(observation)
        self.heads = Heads(observation, action, squash=bool(getattr(net, "squash", False)))
        self.noise = self.heads.noise
        self.state: Mapping[str, OutputSpec] = dict(getattr(net, "state_spec", {}))
        self._names = answer_names(self.heads)
        self._normaliser: Normaliser | None = None
        self._check_answer()

    def initial_state(self, n: int) -> Arrays:
        return zero_state(self.state, n)

    @torch.inference_mode()
    def act(
        self, observations: Mapping[str, Array], state: Arrays, noise: Array, *, deterministic: bool = False
    ) -> Acted:
        answer = self.net(
            self._tensors(numbers_of(self._leaves, observations)),
            {name: torch.from_numpy(value) for name, value in state.items()},
        )
        numbers = {name: _float32(answer[name]) for name in self._names}
        demand_shapes(numbers, self.heads, len(next(iter(observations.values()))))
        actions, log_prob = choose(self.heads, numbers, observations, None if deterministic else noise)
        after = {name: answer["state"][name].numpy() for name in self.state}
        return Acted(actions, {"log_prob": log_prob, "value": _float32(value_of(answer))}, after)

    def get_weights(self) -> Arrays:
        norm = self._normaliser.weights() if self._normaliser else {}
        return module_weights(self.net) | norm

    def set_weights(self, weights: Mapping[str, Array]) -> None:
        proper, norm = split_norm(weights)
        normaliser = None
        if norm:
            normaliser = Normaliser(self.observation)
            normaliser.load(norm)
        load_module_weights(self.net, proper)
        self._normaliser = normaliser

    def module(self) -> nn.Module:
        """The module itself, for a learner."""
        return self.net

    def _tensors(self, observations: Mapping[str, Array]) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for name, values in observations.items():
            factors = self._normaliser.factors(name) if self._normaliser else None
            if factors is not None:
                values = np.clip((values.astype(np.float32, copy=False) - factors[0]) * factors[1], -CLIP, CLIP)
            found[name] = torch.from_numpy(values)
        return found

    def _check_answer(self) -> None:
        hint = "see heddle.policies.torch_heads for what forward returns"
        state = {name: torch.from_numpy(value) for name, value in zero_state(self.state, ROWS).items()}
        try:
            with torch.no_grad():
                answer: Any = self.net(self._tensors(blank_observations(self.observation)), state)
        except user_errors() as error:
            reason = f"forward raised {type(error).__name__}: {error}"
            raise EnvError(reason, key="policy.id", value=self.name, hint=hint) from error
        if problem := answer_problem(answer, self.heads, self.state, call="forward"):
            raise EnvError(problem, key="policy.id", value=self.name, hint=hint)


def _demand_held(net: nn.Module, *, name: str) -> None:
    """Weights travel as numpy arrays, which know fewer kinds of numbers than torch.

    Raises:
        EnvError: a parameter or buffer is of a kind that numpy lacks.
    """
    for part, tensor in net.state_dict().items():
        if tensor.is_floating_point() and tensor.dtype not in (torch.float16, torch.float32, torch.float64):
            reason = f"needs float32 parameters, {part} is {tensor.dtype}, which numpy has not"
            hint = "keep the module in float32; its forward may compute in another, as torch.autocast does"
            raise EnvError(reason, key="policy.id", value=name, hint=hint)


def _float32(tensor: Tensor) -> NDArray[np.float32]:
    return tensor.to(torch.float32).numpy()
