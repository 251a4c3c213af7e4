"""Soft actor-critic: twin critics, and a temperature that keeps the entropy where it shall be.

It never reads a stream or publishes: the trainer does, and what it publishes is the actor alone.

Source: Haarnoja et al. 2018, arXiv:1812.05905.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from heddle.consumers.learners.base import to_numpy
from heddle.consumers.learners.off_policy import OffPolicy
from heddle.consumers.learners.optimizer import FlatAdam
from heddle.consumers.learners.replay_sample import Sample
from heddle.consumers.learners.target import Target
from heddle.consumers.learners.value_targets import bootstrapped
from heddle.errors import EnvError
from heddle.policies.base import Array, Arrays, Policy
from heddle.policies.sac import RANDOM, SacPolicy
from heddle.policies.torch_module import load_module_weights, module_weights
from heddle.policies.torch_sac import TwinCritics, squashed
from heddle.spec import ExperimentSpec
from heddle.spec.learning import SacOptions


class _Temperature(nn.Module):
    def __init__(self, first: float) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.tensor([math.log(first)], dtype=torch.float32))


class Sac(OffPolicy):
    """SAC for the policy "sac". Raises EnvError for another one."""

    name = "sac"
    extra = RANDOM

    def __init__(self, spec: ExperimentSpec, policy: Policy, *, device: torch.device, seed: int) -> None:
        super().__init__(spec, policy, device=device, seed=seed)
        if not isinstance(policy, SacPolicy):
            raise EnvError(
                "cannot be trained by sac", key="policy.id", value=spec.policy.id, hint="use policy.id = sac"
            )
        self.own = self.options.sac or SacOptions()
        torch.manual_seed(seed)  # the critics' first weights
        self.critic = TwinCritics(policy).to(device)
        self.temperature = _Temperature(self.own.first_temperature).to(device)
        self.optimizers = {
            "actor": FlatAdam(self.model.net),
            "critic": FlatAdam(self.critic),
            "temperature": FlatAdam(self.temperature),
        }
        self.target = Target(self.critic, self.optimizers["critic"])
        self.generator = torch.Generator().manual_seed(seed)
        self.aim = -float(policy.size) if self.own.target_entropy is None else self.own.target_entropy
        self._low, self._high = (torch.from_numpy(bound).to(device) for bound in (policy.low, policy.high))

    def learn(self, sample: Sample, progress: float) -> tuple[dict[str, Tensor], Tensor] | None:
        lr = self.options.lr.at(progress)
        rates = {"critic": lr if self.own.critic_lr is None else self.own.critic_lr.at(progress)}
        for name, optimizer in self.optimizers.items():
            optimizer.set_lr(rates.get(name, lr))
        now, heat = self.seen(sample.leaves), self.alpha()
        critic = self._learn_critic(sample, now, heat)
        actor = self._learn_actor(now, heat) if critic is not None else None
        if critic is None or actor is None:
            return None
        losses, errors = critic
        return losses | actor, errors

    def alpha(self) -> Tensor:
        """The temperature now, a scalar without gradient."""
        if self.own.temperature is not None:
            return torch.tensor(self.own.temperature, device=self.model.device)
        return self.temperature.log.detach().exp()[0]

    def _learn_critic(
        self, sample: Sample, now: dict[str, Tensor], heat: Tensor
    ) -> tuple[dict[str, Tensor], Tensor] | None:
        table = self.tensors({"returns": sample.returns, "discount": sample.discount, "weights": sample.weights})
        chosen = torch.from_numpy(sample.leaves["action"]).to(self.model.device).float().reshape(len(sample.rows), -1)
        chosen = torch.clamp(chosen, self._low, self._high)  # as the environment was given it, whoever chose it
        done = 2 * (chosen - self._low) / (self._high - self._low) - 1
        with torch.no_grad():
            following = self.seen(sample.following)
            action, log_prob = self._act(following)
            ahead = torch.min(*self.target.net(following, action)) - heat * log_prob
            target = bootstrapped(table["returns"], table["discount"], ahead)
        one, two = self.critic(now, done)
        both = (one - target).square() + (two - target).square()
        loss = 0.5 * (table["weights"] * both).mean()
        norm = self._step("critic", loss, "value_loss")
        if norm is None:
            return None
        self.target.follow(self.own.tau)
        errors = (0.5 * (one + two) - target).detach()
        return {"value_loss": loss.detach(), "value": one.detach().mean(), "grad_norm": norm}, errors

    def _learn_actor(self, now: dict[str, Tensor], heat: Tensor) -> dict[str, Tensor] | None:
        action, log_prob = self._act(now)
        loss = (heat * log_prob - torch.min(*self.critic(now, action))).mean()
        if self._step("actor", loss, "policy_loss") is None:
            return None
        mean = log_prob.detach().mean()
        if self.own.temperature is None:
            push = -(self.temperature.log * (mean + self.aim)).mean()
            if self._step("temperature", push, "temperature_loss") is None:
                return None
        return {"policy_loss": loss.detach(), "entropy": -mean, "temperature": self.alpha()}

    def _act(self, observations: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        answer = self.model.answer(observations, {})
        mean: Tensor = answer["mean"]
        noise = torch.randn(mean.shape, generator=self.generator).to(mean.device)
        return squashed(mean, answer["log_std"], noise)

    def _step(self, which: str, loss: Tensor, name: str) -> Tensor | None:
        optimizer = self.optimizers[which]
        optimizer.backward(loss)  # the actor's runs through the critics, which do not learn from it
        norm = optimizer.norm()
        losses, leap = {name: loss.detach()}, optimizer.leap()
        if not self.guard.lets_pass(norm, losses, update=self.updates + 1, leap=leap, of=which):
            return None
        return optimizer.step(self.options.max_grad_norm, norm)

    def explore(self, progress: float, *, random: bool) -> float:
        return float(random)

    def own_state(self) -> Arrays:
        arrays: Arrays = {"generator": to_numpy(self.generator.get_state())}
        for which, optimizer in self.optimizers.items():
            arrays |= {f"{which}/{name}": array for name, array in optimizer.state().items()}
        for which, net in (*self._nets().items(), ("heat", self.temperature)):
            arrays |= {f"{which}:{name}": array for name, array in module_weights(net).items()}
        return arrays

    def load_own(self, tensors: Mapping[str, Array]) -> None:
        self.generator.set_state(torch.from_numpy(tensors["generator"].copy()))
        for which, optimizer in self.optimizers.items():
            optimizer.load(_under(f"{which}/", tensors))
        for which, net in (*self._nets().items(), ("heat", self.temperature)):
            load_module_weights(net, _under(f"{which}:", tensors))

    def _nets(self) -> dict[str, nn.Module]:
        return {"critic": self.critic, "target": self.target.net}


def _under(prefix: str, tensors: Mapping[str, Array]) -> Arrays:
    return {name.removeprefix(prefix): array for name, array in tensors.items() if name.startswith(prefix)}
