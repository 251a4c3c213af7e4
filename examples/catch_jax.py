"""A policy in JAX: a Flax module that acts in workers, and a learner (PPO) that trains it with Optax.

heddle run catch.toml --set policy.id=catch_jax:Net --set trainer.learner=catch_jax:Learner
"""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch

from heddle.consumers.learners import State, TrainBatch
from heddle.policies.base import Array, Arrays
from heddle.policies.jax_policy import FlaxPolicy
from heddle.spaces import Box, Discrete
from heddle.spec import ExperimentSpec


class Net(nn.Module):
    """Two layers, then one head for the action and one for the value."""

    observation: Box
    action: Discrete
    width: int = 32

    @nn.compact
    def __call__(self, observations: dict[str, jax.Array], state: dict[str, jax.Array]) -> dict[str, Any]:
        hidden = observations["obs"]
        for _ in range(2):
            hidden = nn.tanh(nn.Dense(self.width)(hidden))
        return {"logits": nn.Dense(self.action.n)(hidden), "value": nn.Dense(1)(hidden)}


class Learner:
    """PPO (Schulman et al. 2017) on whole batches, with Monte Carlo returns that end where an episode does."""

    min_steps = 2

    def __init__(self, spec: ExperimentSpec, policy: FlaxPolicy, *, device: torch.device, seed: int) -> None:
        self.options, self.policy = spec.trainer, policy
        self.optimizer = optax.adam(self.options.lr.start)
        self.moments = self.optimizer.init(policy.params)
        self.step = jax.jit(self._step)

    def update(self, batch: TrainBatch, progress: float) -> dict[str, float]:
        seen = batch.observations["obs"].numpy()
        value = np.asarray(self.policy.flax_module.apply(self.policy.params, {"obs": seen}, {})["value"])[..., 0]
        target = self._returns(batch, value)
        valid = batch.valid.numpy()
        advantage = target - value[:, :-1]
        advantage = (advantage - advantage[valid].mean()) / (advantage[valid].std() + 1e-8)
        data = (
            seen[:, :-1],
            batch.actions["action"].numpy(),
            batch.outputs["log_prob"].numpy(),
            advantage,
            target,
            valid,
        )
        params, loss = self.policy.params, jnp.zeros(())
        for _ in range(self.options.passes):
            params, self.moments, loss = self.step(params, self.moments, data)
        self.policy.params = params
        return {"loss": float(loss)}

    def _returns(self, batch: TrainBatch, value: Array) -> Array:
        """Discounted rewards to the end of the episode, or to the end of the segment and the value of what follows."""
        found, running = np.zeros(batch.reward.shape, np.float32), value[:, -1]
        ended, valid = (batch.terminated | batch.truncated).numpy(), batch.valid.numpy()
        for step in reversed(range(found.shape[1])):
            after = np.where(valid[:, step], running, value[:, step + 1])
            running = batch.reward[:, step].numpy() + self.options.gamma * np.where(ended[:, step], 0.0, after)
            running = np.where(valid[:, step], running, value[:, step])
            found[:, step] = running
        return found

    def _step(self, params: Any, moments: Any, data: tuple[Array, ...]) -> tuple[Any, Any, jax.Array]:
        seen, actions, old, advantage, target, valid = data

        def loss_of(params: Any) -> jax.Array:
            answer = self.policy.flax_module.apply(params, {"obs": seen}, {})
            log_probs = nn.log_softmax(answer["logits"])
            ratio = jnp.exp(jnp.take_along_axis(log_probs, actions[..., None], axis=-1)[..., 0] - old)
            gain = jnp.minimum(ratio * advantage, jnp.clip(ratio, 0.8, 1.2) * advantage)
            entropy = -(jnp.exp(log_probs) * log_probs).sum(axis=-1)
            error = (answer["value"][..., 0] - target) ** 2
            return jnp.mean(0.5 * error - gain - self.options.entropy * entropy, where=valid)

        loss, gradient = jax.value_and_grad(loss_of)(params)
        change, moments = self.optimizer.update(gradient, moments)
        return optax.apply_updates(params, change), moments, loss

    def get_weights(self) -> Arrays:
        return self.policy.get_weights()

    def set_weights(self, weights: Mapping[str, Array]) -> None:
        self.policy.set_weights(weights)

    def state(self) -> State:
        return {f"moment.{place}": np.array(leaf) for place, leaf in enumerate(jax.tree.leaves(self.moments))}, {}

    def load(self, tensors: Mapping[str, Array], meta: Mapping[str, Any]) -> None:
        leaves = [jnp.asarray(tensors[f"moment.{place}"]) for place in range(len(tensors))]
        self.moments = jax.tree.unflatten(jax.tree.structure(self.moments), leaves)
