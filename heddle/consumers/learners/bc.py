"""Behaviour cloning: the policy is made to do what was recorded, by maximum likelihood.

It never looks at rewards and needs no log-probabilities in the recording; whoever acted may have been anybody.

Source: Pomerleau 1991, "Efficient training of artificial neural networks for autonomous navigation",
doi:10.1162/neco.1991.3.1.88.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from heddle.consumers.learners.base import TrainBatch
from heddle.consumers.learners.on_policy import OnPolicy
from heddle.errors import ExperimentFailed
from heddle.policies.torch_heads import permitted
from heddle.policies.torch_module import Evaluated

_SUMS = ("bc_loss", "entropy", "grad_norm")


class Bc(OnPolicy):
    """Behaviour cloning for any policy with a torch module, whatever its actions, recurrent or not.

    One update is one sweep over its batch, in minibatches; the value that a policy may have is not trained. Of
    [trainer] lr, minibatch, entropy, max_grad_norm, grad_limit, on_bad_step and normalize_observations count.
    """

    name = "bc"
    min_steps = 1

    def update(self, batch: TrainBatch, progress: float) -> dict[str, float]:
        lr = self.options.lr.at(progress)
        self.optimizer.set_lr(lr)
        self.learn_statistics(batch)
        sums, taken = torch.zeros(len(_SUMS), device=batch.device), 0
        taught, share = self._taught(batch)
        for judged in self._minibatches(batch, taught):
            numbers = self._step(judged)
            if numbers is not None:
                sums += numbers
                taken += 1
        self.refuse_nan(_SUMS, sums)
        self.updates += 1
        means = dict(zip(_SUMS, (sums / max(1, taken)).tolist(), strict=True))
        return means | {"lr": lr} | share | self.guard.metrics()

    def _taught(self, batch: TrainBatch) -> tuple[Tensor, dict[str, float]]:
        """[B, T] the steps to learn from, and the share that is left out: of actions that their mask forbids, which
        this policy never takes and whose likelihood is 0.

        Raises:
            ExperimentFailed: nothing is left.
        """
        shown = {name: values[:, :-1].flatten(0, 1) for name, values in batch.observations.items()}
        done = {name: values.flatten(0, 1) for name, values in batch.actions.items()}
        allowed = permitted(self.model.heads, done, shown)
        if allowed is None:
            return batch.valid, {}
        taught = batch.valid & allowed.view_as(batch.valid)
        share = 1.0 - float(taught.sum()) / max(1, batch.num_steps)
        if not taught.any():
            raise ExperimentFailed(
                f"update {self.updates + 1}: the action_mask of the recording forbids every action that was recorded;"
                " actions are counted from 0, and 1 in a mask allows one"
            )
        return taught, {"masked_share": share}

    def _minibatches(self, batch: TrainBatch, taught: Tensor) -> Iterator[Evaluated]:
        """The batch in random order, judged by the current weights."""
        observations = self.model.normalise(batch.observations)
        if self.model.recurrent:
            yield from self._sequences(batch, observations, taught)
            return
        steps = batch.reward.shape[1]
        chosen = taught.flatten().nonzero().squeeze(1)
        order = chosen[torch.randperm(len(chosen), generator=self.generator).to(chosen.device)]
        seen = {name: values.flatten(0, 1) for name, values in observations.items()}
        done = {name: values.flatten(0, 1) for name, values in batch.actions.items()}
        for part in order.tensor_split(math.ceil(len(order) / self.options.minibatch)):
            source = part + part.div(steps, rounding_mode="floor")  # observations have one row more a segment
            shown = {name: values.index_select(0, source) for name, values in seen.items()}
            yield self.model.evaluate(shown, {name: values.index_select(0, part) for name, values in done.items()})

    def _sequences(self, batch: TrainBatch, observations: dict[str, Tensor], taught: Tensor) -> Iterator[Evaluated]:
        """Whole segments at a time, from the state that the batch brings: zeros from a recording."""
        order = torch.randperm(len(taught), generator=self.generator).to(batch.device)
        order = order[taught[order].any(dim=1)]
        ended = batch.terminated | batch.truncated
        parts = min(len(order), max(1, math.ceil(batch.num_steps / self.options.minibatch)))
        for part in order.tensor_split(parts):
            shown = {name: values[part] for name, values in observations.items()}
            done = {name: values[part] for name, values in batch.actions.items()}
            state = {name: values[part] for name, values in batch.state.items()}
            judged = self.model.evaluate_sequence(shown, done, ended[part], state)
            valid = taught[part]
            yield Evaluated(judged.log_prob[valid], judged.entropy[valid], judged.value[valid])

    def _step(self, judged: Evaluated) -> Tensor | None:
        """One gradient step; the numbers in _SUMS without gradient, None where the guard left it out."""
        likelihood, entropy = -judged.log_prob.mean(), judged.entropy.mean()
        numbers = {"bc_loss": likelihood.detach(), "entropy": entropy.detach()}
        norm = self.take_step(likelihood - self.options.entropy * entropy, self.options.max_grad_norm, numbers)
        return None if norm is None else torch.stack([*numbers.values(), norm])
