"""Flax modules of a user's that tests name by "tests.unit.jax_zoo:Name"."""

from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from heddle.policies.base import OutputSpec
from heddle.spaces import Space


class Cell(nn.Module):
    """A GRU cell before heads for a Discrete "gear" and a squashed "arm"."""

    observation: Space
    action: Space

    squash: ClassVar[bool] = True
    state_spec: ClassVar[dict[str, OutputSpec]] = {"hidden": OutputSpec("float32", (6,))}

    @nn.compact
    def __call__(self, observations: dict[str, jax.Array], state: dict[str, jax.Array]) -> dict[str, Any]:
        hidden, out = nn.GRUCell(6)(state["hidden"], observations["obs"])
        log_std = self.param("log_std", nn.initializers.zeros, (2,))
        numbers = {"logits.gear": nn.Dense(3)(out), "mean.arm": nn.Dense(2)(out), "log_std.arm": log_std}
        return numbers | {"value": nn.Dense(1)(out), "state": {"hidden": hidden}}


class Narrow(nn.Module):
    """Answers with a logit too few."""

    observation: Space
    action: Space

    @nn.compact
    def __call__(self, observations: dict[str, jax.Array], state: dict[str, jax.Array]) -> dict[str, Any]:
        rows = len(observations["obs"])
        return {"logits": jnp.zeros((rows, 2)), "value": jnp.zeros(rows)}


class Raises(nn.Module):
    """Cannot be applied."""

    observation: Space
    action: Space

    @nn.compact
    def __call__(self, observations: dict[str, jax.Array], state: dict[str, jax.Array]) -> dict[str, Any]:
        raise ValueError("no such layer")
