"""V-trace actor-critic: what IMPALA learns by, from experience of policies a few versions behind.

It never reads a stream, decides what is stale or publishes: the trainer does.

Source: Espeholt et al. 2018, arXiv:1802.01561. Its RMSProp is Adam here, and every term of the loss is a mean over
steps, not a sum, so that the learning rate does not depend on the size of an update.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from heddle.consumers.learners.base import TrainBatch
from heddle.consumers.learners.losses import explained_variance, standardise
from heddle.consumers.learners.on_policy import OnPolicy, bootstraps, select_rows
from heddle.consumers.learners.vtrace_targets import Clips, VtraceTargets, vtrace
from heddle.policies.torch_module import Evaluated
from heddle.spec.learning import VtraceOptions

_SUMS = ("policy_loss", "value_loss", "entropy", "rho", "grad_norm")


@dataclass(slots=True)
class _Part:
    """What the current weights think of some segments, [b, T] each."""

    judged: Evaluated
    targets: VtraceTargets
    rho: Tensor


class Vtrace(OnPolicy):
    """V-trace actor-critic for any policy with a torch module, recurrent or not.

    Each gradient step takes whole segments, about `minibatch` steps of them, and computes their targets by the weights
    as they are then.
    """

    name = "vtrace"

    def update(self, batch: TrainBatch, progress: float) -> dict[str, float]:
        lr = self.options.lr.at(progress)
        self.optimizer.set_lr(lr)
        reward = self.rewards(batch)
        observations = self.model.normalise(batch.observations)
        finals = self.model.normalise(batch.final_observations)
        sums = torch.zeros(len(_SUMS), device=reward.device)
        taken, fitted = 0, math.nan
        for _ in range(self.options.passes):
            for rows in self._rows(batch):
                part = self._judge(batch, rows, observations, finals, reward)
                if math.isnan(fitted):
                    chosen = batch.valid[rows]
                    fitted = explained_variance(part.judged.value.detach()[chosen], part.targets.value[chosen])
                numbers = self._step(part, batch.valid[rows])
                if numbers is not None:
                    sums += numbers
                    taken += 1
            self.refuse_nan(_SUMS, sums)
        self.learn_statistics(batch)
        self.updates += 1
        means = dict(zip(_SUMS, (sums / max(1, taken)).tolist(), strict=True))
        if math.isfinite(fitted):
            means["explained_variance"] = fitted
        return means | {"lr": lr} | self.guard.metrics()

    def _rows(self, batch: TrainBatch) -> Iterator[Tensor]:
        """Indexes of whole segments, in random order, about `minibatch` steps at a time; none without a valid step."""
        order = torch.randperm(len(batch.valid), generator=self.generator).to(batch.device)
        order = order[batch.valid[order].any(dim=1)]
        parts = min(len(order), max(1, math.ceil(batch.num_steps / self.options.minibatch)))
        yield from order.tensor_split(parts)

    def _judge(
        self,
        batch: TrainBatch,
        rows: Tensor,
        observations: dict[str, Tensor],
        finals: dict[str, Tensor],
        reward: Tensor,
    ) -> _Part:
        options, table = self.options, self.options.vtrace or VtraceOptions()
        own = select_rows(batch, rows)
        seen = {name: values[rows] for name, values in observations.items()}
        ended = own.terminated | own.truncated
        after = {name: values[own.finals] for name, values in finals.items()}
        values, final_values = self.model.values(
            seen, ended=ended, state=own.state, final_index=own.final_index, final_observations=after
        )
        actions = {name: values[rows] for name, values in batch.actions.items()}
        if self.model.recurrent:
            judged = self.model.evaluate_sequence(seen, actions, ended, own.state)
        else:
            flat = {name: tensor[:, :-1].flatten(0, 1) for name, tensor in seen.items()}
            one = self.model.evaluate(flat, {name: values.flatten(0, 1) for name, values in actions.items()})
            shape = own.valid.shape
            judged = Evaluated(one.log_prob.view(shape), one.entropy.view(shape), one.value.view(shape))
        log_ratio = torch.where(own.valid, judged.log_prob.detach() - batch.outputs["log_prob"][rows], 0.0)
        targets = vtrace(
            log_ratio,
            reward[rows],
            values,
            bootstraps(values, final_values, own),
            ended=ended,
            valid=own.valid,
            gamma=options.gamma,
            lam=options.gae_lambda,
            clips=Clips(rho=table.rho_clip, c=table.c_clip, policy_rho=table.policy_rho_clip),
        )
        return _Part(judged, targets, log_ratio.exp())

    def _step(self, part: _Part, valid: Tensor) -> Tensor | None:
        options = self.options
        advantage = part.targets.advantage[valid]
        if (
            options.normalize_advantage
        ):  # before the weight, or steps that shall not count would get the mean's negative
            advantage = standardise(advantage)
        policy = -(part.judged.log_prob[valid] * part.targets.weight[valid] * advantage).mean()
        value = (part.targets.value - part.judged.value)[valid].square().mean()
        entropy = part.judged.entropy[valid].mean()
        loss = policy + options.value_coef * value - options.entropy * entropy
        losses = {"policy_loss": policy.detach(), "value_loss": value.detach(), "entropy": entropy.detach()}
        norm = self.take_step(loss, options.max_grad_norm, losses)
        return None if norm is None else torch.stack([*losses.values(), part.rho[valid].mean(), norm])
