"""A learner of your own: advantage actor-critic in one file. Run it in this folder: heddle run own_learner.toml

The trainer around it reads experience, publishes weights, writes checkpoints and counts; a learner is tensors in,
metrics out, and a state that can be saved. Whatever it raises ends the experiment with the update, the shards and the
line; the last checkpoint stays.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from heddle.consumers.learners import TrainBatch
from heddle.errors import ExperimentFailed
from heddle.policies import Policy
from heddle.policies.torch_module import make_module
from heddle.spec import ExperimentSpec


class A2c:
    """Synchronous advantage actor-critic (Mnih et al. 2016, arXiv:1602.01783), for memoryless policies.

    Args:
        spec: the whole of the TOML file; [trainer] has lr, gamma and the like.
        policy: built from [policy], with the weights where learning starts.
        device: where to learn.
        seed: of the experiment.
        steps_back: rewards in one return; from [trainer] kwargs.
    """

    min_steps = 2  # fewer are kept for the next update

    def __init__(
        self, spec: ExperimentSpec, policy: Policy, *, device: torch.device, seed: int, steps_back: int = 16
    ) -> None:
        self.options, self.steps_back = spec.trainer, steps_back
        self.model = make_module(policy, device=device)  # the policy's network, its spaces, masks and statistics
        self.optimizer = torch.optim.Adam(self.model.net.parameters())
        self.updates = 0

    def update(self, batch: TrainBatch, progress: float) -> dict[str, float]:
        """One gradient step on B segments of up to T steps; `progress` is the share of the budget that is used."""
        values, finals = self.model.values(
            batch.observations,
            ended=batch.terminated | batch.truncated,
            state=batch.state,
            final_index=batch.final_index,
            final_observations=batch.final_observations,
        )
        returns = self.returns(batch, values, finals)[batch.valid]
        flat = {name: leaf[:, :-1][batch.valid] for name, leaf in batch.observations.items()}
        judged = self.model.evaluate(flat, {name: leaf[batch.valid] for name, leaf in batch.actions.items()})
        advantage = returns - judged.value.detach()
        policy_loss = -(judged.log_prob * (advantage - advantage.mean()) / (advantage.std() + 1e-8)).mean()
        value_loss = (returns - judged.value).square().mean()
        loss = policy_loss + self.options.value_coef * value_loss - self.options.entropy * judged.entropy.mean()
        if not torch.isfinite(loss):
            raise ExperimentFailed(f"the loss of update {self.updates + 1} is {loss.item()}")
        for group in self.optimizer.param_groups:
            group["lr"] = self.options.lr.at(progress)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(self.model.net.parameters(), self.options.max_grad_norm)
        self.optimizer.step()
        self.updates += 1
        return {"policy_loss": policy_loss.item(), "value_loss": value_loss.item(), "grad_norm": norm.item()}

    def returns(self, batch: TrainBatch, values: torch.Tensor, finals: torch.Tensor) -> torch.Tensor:
        """[B, T] returns of `steps_back` steps: a termination is worth nothing more, a truncation its last value."""
        after = values[:, 1:].clone()  # a truncated step led to a final observation of its own
        after[batch.final_index[:, 0], batch.final_index[:, 1]] = finals
        after[batch.terminated] = 0.0
        goes_on = batch.valid & ~(batch.terminated | batch.truncated)
        goes_on[:, :-1] &= batch.valid[:, 1:]
        goes_on[:, -1] = False
        returns = batch.reward + self.options.gamma * after
        for _ in range(self.steps_back - 1):  # each round looks one step further
            ahead = torch.cat([returns[:, 1:], returns[:, -1:]], dim=1)
            returns = batch.reward + self.options.gamma * torch.where(goes_on, ahead, after)
        return returns

    def get_weights(self) -> dict[str, np.ndarray]:
        """What workers act with."""
        return self.model.get_weights()

    def set_weights(self, weights: Mapping[str, np.ndarray]) -> None:
        """The opposite."""
        self.model.set_weights(weights)

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Everything but the weights that an equal continuation needs: arrays, and values that JSON can hold."""
        moments = self.optimizer.state_dict()["state"]
        arrays = {f"{index}.{name}": value.numpy() for index, kept in moments.items() for name, value in kept.items()}
        return arrays, {"updates": self.updates}

    def load(self, tensors: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
        """The opposite."""
        whole = self.optimizer.state_dict()
        whole["state"] = {}
        for name, array in tensors.items():
            index, _, part = name.partition(".")
            whole["state"].setdefault(int(index), {})[part] = torch.from_numpy(np.array(array))
        self.optimizer.load_state_dict(whole)
        self.updates = int(meta["updates"])
