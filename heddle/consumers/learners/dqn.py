"""Deep Q-learning on a replay buffer: double, dueling, n-step and prioritised as the spec says.

It never reads a stream or publishes: the trainer does.

Sources: Mnih et al. 2015, Nature 518; van Hasselt et al. 2016, arXiv:1509.06461 (double); Wang et al. 2016,
arXiv:1511.06581 (dueling); Schaul et al. 2016, arXiv:1511.05952 (priorities); Hessel et al. 2018, arXiv:1710.02298.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from heddle.consumers.learners.off_policy import OffPolicy
from heddle.consumers.learners.optimizer import FlatAdam
from heddle.consumers.learners.replay_sample import Sample
from heddle.consumers.learners.target import Target
from heddle.consumers.learners.value_targets import bootstrapped, greedy_value, huber
from heddle.policies.base import Array, Arrays, Policy
from heddle.policies.q import EPSILON, action_mask
from heddle.policies.torch_heads import mask_logits
from heddle.policies.torch_module import load_module_weights, module_weights
from heddle.spec import ExperimentSpec
from heddle.spec.learning import DqnOptions

_TARGET = "target."


class Dqn(OffPolicy):
    """DQN for the policy "q", or one of the user's with "epsilon" among its weights and a module that answers "q"."""

    name = "dqn"
    extra = EPSILON

    def __init__(self, spec: ExperimentSpec, policy: Policy, *, device: torch.device, seed: int) -> None:
        super().__init__(spec, policy, device=device, seed=seed)
        self.own = self.options.dqn or DqnOptions()
        self.optimizer = FlatAdam(self.model.net)
        self.target = Target(self.model.net, self.optimizer)
        self.mask = action_mask(self.model.observation, self.model.action)
        self._steps = 0

    def learn(self, sample: Sample, progress: float) -> tuple[dict[str, Tensor], Tensor] | None:
        self.optimizer.set_lr(self.options.lr.at(progress))
        table = self.tensors(
            {"returns": sample.returns, "discount": sample.discount, "weights": sample.weights}
            | {"action": sample.leaves["action"]}
        )
        with torch.no_grad():
            following = self.seen(sample.following)
            mask = following[self.mask] if self.mask else None
            ahead = mask_logits(self.target.net(following, {})["q"], mask)
            online = mask_logits(self.model.answer(following, {})["q"], mask) if self.own.double else None
            target = bootstrapped(table["returns"], table["discount"], greedy_value(ahead, online))
        values = self.model.answer(self.seen(sample.leaves), {})["q"]
        chosen = values.gather(1, table["action"].long().unsqueeze(1)).squeeze(1)
        loss = huber(chosen, target, table["weights"])
        self.optimizer.backward(loss)
        norm = self.optimizer.norm()
        losses, leap = {"value_loss": loss.detach()}, self.optimizer.leap()
        if not self.guard.lets_pass(norm, losses, update=self.updates + 1, leap=leap):
            return None
        self.optimizer.step(self.options.max_grad_norm, norm)
        self._steps += 1
        if self._steps % self.own.target_every == 0:
            self.target.follow(self.own.tau)
        errors = (chosen - target).detach()
        return {"value_loss": loss.detach(), "value": chosen.detach().mean(), "grad_norm": norm}, errors

    def explore(self, progress: float, *, random: bool) -> float:
        return 1.0 if random else self.own.epsilon.at(progress / self.own.epsilon_share)

    def own_state(self) -> Arrays:
        target = {f"{_TARGET}{name}": array for name, array in module_weights(self.target.net).items()}
        return self.optimizer.state() | target | {"steps": np.array(self._steps)}

    def load_own(self, tensors: Mapping[str, Array]) -> None:
        self.optimizer.load(tensors)
        named = {name: array for name, array in tensors.items() if name.startswith(_TARGET)}
        load_module_weights(self.target.net, {name.removeprefix(_TARGET): array for name, array in named.items()})
        self._steps = int(tensors["steps"])
