"""Proximal policy optimisation, on data of the current policy or of one a few versions behind.

It never reads a stream, decides what is stale or publishes: the trainer does.

Source: Schulman et al. 2017, arXiv:1707.06347, with the details of Huang et al. 2022, "The 37 implementation details of
PPO". Details that change results, each a key of [trainer], and what is on where nothing is said:

    key                       here    Stable-Baselines3   CleanRL
    normalize_advantage       yes     yes                 yes      per minibatch
    lr falls to 0             no      no                  yes      lr = { start = 2.5e-4, end = 0.0 }
    clip falls                no      no                  no       clip = { start = 0.2, end = 0.0 }
    value_clip                none    none                0.2      clip_range_vf, clip_vloss
    value_clip_pessimistic    no      no                  yes      the larger of both errors
    value_coef                0.5     0.5                 0.25     CleanRL halves the squared error first
    entropy                   0       0                   0.01
    max_grad_norm             0.5     0.5                 0.5
    target_kl                 none    none                none     ends the update above it; there above 1.5 times it,
                                                                   and in CleanRL after the pass only
    recompute_advantage       no      no                  no       before every pass (Andrychowicz et al. 2021)
    passes, minibatch         10, 64  10, 64              4, 4 a pass
    Adam's epsilon            1e-5    1e-5                1e-5     no key
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from heddle.consumers.learners.base import TrainBatch
from heddle.consumers.learners.gae import gae
from heddle.consumers.learners.losses import explained_variance, policy_term, standardise, value_term
from heddle.consumers.learners.on_policy import OnPolicy, bootstraps
from heddle.policies.torch_module import Evaluated

_SUMS = ("policy_loss", "value_loss", "entropy", "kl", "clip_fraction", "grad_norm")


@dataclass(slots=True)
class _Data:
    """One update's data. `per_step` columns are [B, T]; flat step b*T+t is row b*(T+1)+t of the observations.

    Attributes:
        observations: leaf -> [B, T+1, ...], normalised.
        actions: leaf -> [B, T, ...].
        reward: [B, T], scaled when the spec says so.
        ended: [B, T] bool.
        columns: [B*T, 4]: log-probability when it acted, advantage, value target, value before the update.
    """

    batch: TrainBatch
    observations: dict[str, Tensor]
    final_observations: dict[str, Tensor]
    actions: dict[str, Tensor]
    reward: Tensor
    ended: Tensor
    columns: Tensor


class Ppo(OnPolicy):
    """PPO for any policy with a torch module, recurrent or not."""

    name = "ppo"

    def update(self, batch: TrainBatch, progress: float) -> dict[str, float]:
        lr, clip = self.options.lr.at(progress), self.options.clip.at(progress)
        self.optimizer.set_lr(lr)
        data = self._prepare(batch)
        steps = batch.valid.flatten().nonzero().squeeze(1)
        fitted = explained_variance(data.columns[steps, 3], data.columns[steps, 2])
        means, passes = self._passes(data, steps, clip)
        self.learn_statistics(batch)
        self.updates += 1
        if math.isfinite(fitted):  # it says nothing when all targets are equal, and JSON has no NaN
            means["explained_variance"] = fitted
        return means | {"lr": lr, "clip": clip, "passes": passes} | self.guard.metrics()

    def _prepare(self, batch: TrainBatch) -> _Data:
        """Normalise once: the statistics stay as they were when the policy acted until the update is over."""
        reward, ended = self.rewards(batch), batch.terminated | batch.truncated
        data = _Data(
            batch=batch,
            observations=self.model.normalise(batch.observations),
            final_observations=self.model.normalise(batch.final_observations),
            actions=batch.actions,
            reward=reward,
            ended=ended,
            columns=torch.empty(reward.numel(), 4, device=reward.device),
        )
        data.columns[:, 0] = batch.outputs["log_prob"].flatten()
        values = self._estimate(data)
        data.columns[:, 3] = values.flatten()
        return data

    @torch.no_grad()
    def _estimate(self, data: _Data) -> Tensor:
        """Write advantages and value targets by the current weights into `data`; returns the values [B, T]."""
        batch = data.batch
        values, finals = self.model.values(
            data.observations,
            ended=data.ended,
            state=batch.state,
            final_index=batch.final_index,
            final_observations=data.final_observations,
        )
        following = bootstraps(values, finals, batch)
        gamma, lam = self.options.gamma, self.options.gae_lambda
        advantage = gae(data.reward, values, following, ended=data.ended, valid=batch.valid, gamma=gamma, lam=lam)
        data.columns[:, 1] = advantage.flatten()
        data.columns[:, 2] = (advantage + values[:, :-1]).flatten()
        return values[:, :-1]

    def _passes(self, data: _Data, steps: Tensor, clip: float) -> tuple[dict[str, float], float]:
        """Sweep over the data; returns the mean of each number in _SUMS, and how many passes were begun."""
        sums = torch.zeros(len(_SUMS), device=data.reward.device)
        taken, begun = 0, 0
        for turn in range(self.options.passes):
            if turn and self.options.recompute_advantage:
                self._estimate(data)
            begun, enough = turn + 1, False
            for evaluated, columns in self._minibatches(data, steps):
                numbers = self._step(evaluated, columns, clip)
                if numbers is None:
                    continue
                sums += numbers
                taken += 1
                if self.options.target_kl is not None and float(numbers[3]) > self.options.target_kl:
                    enough = True
                    break
            self.refuse_nan(_SUMS, sums)
            if enough:
                break
        return dict(zip(_SUMS, (sums / max(1, taken)).tolist(), strict=True)), float(begun)

    def _minibatches(self, data: _Data, steps: Tensor) -> Iterator[tuple[Evaluated, Tensor]]:
        """The data in random order, judged by the current weights: Evaluated of [n], and the [n, 4] columns."""
        if self.model.recurrent:
            yield from self._sequences(data)
            return
        rows, columns = data.reward.shape
        order = steps[torch.randperm(len(steps), generator=self.generator).to(steps.device)]
        shuffled, sources = data.columns[order], order + order.div(columns, rounding_mode="floor")
        flat = {name: values.flatten(0, 1) for name, values in data.observations.items()}
        actions = {name: values.flatten(0, 1) for name, values in data.actions.items()}
        parts = math.ceil(len(order) / self.options.minibatch)  # of equal size, so that none is tiny
        for chosen, source, numbers in zip(
            order.tensor_split(parts), sources.tensor_split(parts), shuffled.tensor_split(parts), strict=True
        ):
            observations = {name: values.index_select(0, source) for name, values in flat.items()}
            taken = {name: values.index_select(0, chosen) for name, values in actions.items()}
            yield self.model.evaluate(observations, taken), numbers

    def _sequences(self, data: _Data) -> Iterator[tuple[Evaluated, Tensor]]:
        """Whole segments at a time, so that gradients flow back through the state to each segment's start."""
        rows, columns = data.reward.shape
        order = torch.randperm(rows, generator=self.generator).to(data.reward.device)
        parts = min(rows, math.ceil(rows * columns / self.options.minibatch))
        for chosen in order.tensor_split(parts):
            valid = data.batch.valid[chosen]
            if not valid.any():
                continue
            judged = self.model.evaluate_sequence(
                {name: values[chosen] for name, values in data.observations.items()},
                {name: values[chosen] for name, values in data.actions.items()},
                data.ended[chosen],
                {name: values[chosen] for name, values in data.batch.state.items()},
            )
            flat = Evaluated(judged.log_prob[valid], judged.entropy[valid], judged.value[valid])
            yield flat, data.columns.view(rows, columns, -1)[chosen][valid]

    def _step(self, new: Evaluated, columns: Tensor, clip: float) -> Tensor | None:
        """One gradient step; returns the numbers in _SUMS, without gradient, or None where it was left out."""
        options = self.options
        old_log_prob, advantage, target, old_value = columns.unbind(1)
        if options.normalize_advantage:
            advantage = standardise(advantage)
        policy = policy_term(new.log_prob, old_log_prob, advantage, clip=clip)
        value = value_term(
            new.value, target, old_value, clip=options.value_clip, pessimistic=options.value_clip_pessimistic
        )
        entropy = new.entropy.mean()
        loss = policy.loss + options.value_coef * value
        if options.entropy:
            loss = loss - options.entropy * entropy
        losses = {"policy_loss": policy.loss.detach(), "value_loss": value.detach(), "entropy": entropy.detach()}
        norm = self.take_step(loss, options.max_grad_norm, losses)
        if norm is None:
            return None
        return torch.stack([*losses.values(), policy.kl, policy.clip_fraction, norm])
