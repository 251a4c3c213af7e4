"""A Flax module of the user's as a policy that workers can act with; acting is compiled for the CPU.

It never trains: a learner of the user's does, with the same module and parameters (`module`, `params`).

A module for Heddle is a `flax.linen.Module` with

    def __call__(self, observations: dict[str, jax.Array], state: dict[str, jax.Array]) -> dict[str, Any]

that answers as `torch_heads` describes; `state_spec` and `squash` are attributes of its class.
"""

from collections.abc import Mapping
from typing import Any

import flax
import jax
import numpy as np

from heddle.errors import EnvError
from heddle.policies.actions import Heads
from heddle.policies.answers import ROWS, answer_names, answer_problem, blank_observations, demand_shapes
from heddle.policies.base import Acted, Array, Arrays, OutputSpec, zero_state
from heddle.policies.heads import choose
from heddle.policies.normalise import CLIP, Normaliser
from heddle.policies.weights import check, split_norm
from heddle.spaces import Space, leaves
from heddle.spaces.cells import numbers_of
from heddle.spec.objects import describe_error, user_errors

SCALAR = OutputSpec("float32")


class FlaxPolicy:
    """Acts with a Flax module; it chooses in numpy, as the built-in policies do.

    Args:
        module: of flax.linen.
        observation, action: the spaces.
        name: as the spec names it, for messages.
        seed: of the first parameters.

    Attributes:
        params: what `module.init` gave, or the weights that came after.

    Raises:
        EnvError: the module's answer does not fit the spaces. It is asked once, here.
    """

    outputs: Mapping[str, OutputSpec] = {"log_prob": SCALAR, "value": SCALAR}

    def __init__(self, module: Any, observation: Space, action: Space, *, name: str, seed: int) -> None:
        self.flax_module = module
        self.observation, self.action = observation, action
        self.heads = Heads(observation, action, squash=bool(getattr(module, "squash", False)))
        self.noise = self.heads.noise
        self.state: Mapping[str, OutputSpec] = dict(getattr(module, "state_spec", {}))
        self._names, self._leaves = answer_names(self.heads), leaves(observation)
        self._normaliser: Normaliser | None = None
        self._cpu = jax.devices("cpu")[0]
        self._apply = jax.jit(module.apply)
        probe, state = blank_observations(observation), zero_state(self.state, ROWS)
        hint = "see heddle.policies.torch_heads for what a module answers"
        try:
            with jax.default_device(self._cpu):
                self.params = module.init(jax.random.key(seed), probe, state)
                answer = module.apply(self.params, probe, state)
        except user_errors() as error:
            raise EnvError(
                f"__call__ raised {describe_error(error)}", key="policy.id", value=name, hint=hint
            ) from error
        if problem := answer_problem(answer, self.heads, self.state, call="__call__"):
            raise EnvError(problem, key="policy.id", value=name, hint=hint)

    def initial_state(self, n: int) -> Arrays:
        return zero_state(self.state, n)

    def act(
        self, observations: Mapping[str, Array], state: Arrays, noise: Array, *, deterministic: bool = False
    ) -> Acted:
        with jax.default_device(self._cpu):
            answer = self._apply(self.params, self._normalised(numbers_of(self._leaves, observations)), state)
        numbers = {name: np.asarray(answer[name], np.float32) for name in self._names}
        demand_shapes(numbers, self.heads, len(next(iter(observations.values()))))
        actions, log_prob = choose(self.heads, numbers, observations, None if deterministic else noise)
        value = np.asarray(answer["value"], np.float32).reshape(-1)
        after = {name: np.asarray(answer["state"][name]) for name in self.state}
        return Acted(actions, {"log_prob": log_prob, "value": value}, after)

    def get_weights(self) -> Arrays:
        """Copies of all collections of variables, as "params/Dense_0/kernel", with the statistics under "norm."."""
        norm = self._normaliser.weights() if self._normaliser else {}
        return flat_weights(self.params) | norm

    def set_weights(self, weights: Mapping[str, Array]) -> None:
        proper, norm = split_norm(weights)
        check(proper, flat_weights(self.params))
        normaliser = None
        if norm:
            normaliser = Normaliser(self.observation)
            normaliser.load(norm)
        self.params = flax.traverse_util.unflatten_dict(  # type: ignore[no-untyped-call]
            {tuple(name.split("/")): np.array(array) for name, array in proper.items()}
        )
        self._normaliser = normaliser

    def _normalised(self, observations: Mapping[str, Array]) -> dict[str, Array]:
        found: dict[str, Array] = {}
        for name, values in observations.items():
            factors = self._normaliser.factors(name) if self._normaliser else None
            if factors is not None:
                values = np.clip((values.astype(np.float32, copy=False) - factors[0]) * factors[1], -CLIP, CLIP)
            found[name] = values
        return found


def flat_weights(params: Any) -> Arrays:
    """Flax variables by name, copies."""
    flat = flax.traverse_util.flatten_dict(params, sep="/")  # type: ignore[no-untyped-call]
    return {name: np.array(array) for name, array in flat.items()}
