"""Behaviour cloning: the policy is made to do what was recorded, by maximum likelihood.

It never looks at rewards and needs no log-probabilities in the recording; whoever acted may have been anybody.

Source: Pomerleau 1991, "Efficient training of artificial neural networks for autonomous navigation",
doi:10.1162/neco.1991.3.1.88.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from heddle.consumers.learners.base import State, TrainBatch, to_numpy
from heddle.consumers.learners.optimizer import FlatAdam
from heddle.errors import CheckpointError, ExperimentFailed
from heddle.policies.base import Array, Arrays, Policy
from heddle.policies.normalise import Normaliser
from heddle.policies.torch_module import Evaluated, make_module
from heddle.spec import ExperimentSpec

_SUMS = ("bc_loss", "entropy", "grad_norm")


class Bc:
    """Behaviour cloning for any policy with a torch module, of discrete or continuous actions, recurrent or not.

    One update is one sweep over its batch, in minibatches; `trainer.passes` has no meaning here. The value that a
    policy may have is not trained.

    Args:
        spec: [trainer] lr, minibatch, entropy, max_grad_norm and normalize_observations count.
        policy: its weights are where learning starts.
        device: where it learns.
        seed: of the shuffling.

    Raises:
        EnvError: the policy cannot be trained.
    """

    min_steps = 1

    def __init__(self, spec: ExperimentSpec, policy: Policy, *, device: torch.device, seed: int) -> None:
        self.options = spec.trainer
        self.model = make_module(policy, device=device)
        weights = policy.get_weights()
        if self.options.normalize_observations:
            self.model.normaliser = Normaliser(self.model.observation)
            weights = self.model.normaliser.weights() | weights
        self.model.set_weights(weights)
        self.optimizer = FlatAdam(self.model.net)
        self.generator = torch.Generator().manual_seed(seed)
        self.updates = 0

    def update(self, batch: TrainBatch, progress: float) -> dict[str, float]:
        lr = self.options.lr.at(progress)
        self.optimizer.set_lr(lr)
        self._learn_statistics(batch)
        sums = torch.zeros(len(_SUMS), device=batch.device)
        taken = 0
        for judged in self._minibatches(batch):
            sums += self._step(judged)
            taken += 1
        means = dict(zip(_SUMS, (sums / taken).tolist(), strict=True))
        if not all(math.isfinite(value) for value in means.values()):
            shown = ", ".join(f"{name} = {value:g}" for name, value in means.items())
            raise ExperimentFailed(
                f"update {self.updates + 1} gave numbers that are not finite ({shown});"
                " lower trainer.lr, or look for extreme observations and for actions outside of the space"
            )
        self.updates += 1
        return means | {"lr": lr}

    def get_weights(self) -> Arrays:
        return self.model.get_weights()

    def set_weights(self, weights: Mapping[str, Array]) -> None:
        self.model.set_weights(weights)

    def state(self) -> State:
        arrays = self.optimizer.state() | {"generator": to_numpy(self.generator.get_state())}
        return arrays, {"learner": "bc", "updates": self.updates}

    def load(self, tensors: Mapping[str, Array], meta: Mapping[str, Any]) -> None:
        if meta.get("learner") != "bc":
            raise CheckpointError(f"the state is of learner {meta.get('learner')!r}, not of bc")
        try:
            self.optimizer.load(tensors)
            self.generator.set_state(torch.from_numpy(tensors["generator"].copy()))
            self.updates = int(meta["updates"])
        except (KeyError, ValueError, TypeError, RuntimeError) as error:
            raise CheckpointError(f"the state of bc is incomplete: {error!r}") from error

    def _minibatches(self, batch: TrainBatch) -> Iterator[Evaluated]:
        """The batch in random order, judged by the current weights."""
        observations = self.model.normalise(batch.observations)
        if self.model.recurrent:
            yield from self._sequences(batch, observations)
            return
        rows, steps = batch.reward.shape
        chosen = batch.valid.flatten().nonzero().squeeze(1)
        order = chosen[torch.randperm(len(chosen), generator=self.generator).to(chosen.device)]
        flat = {name: values.flatten(0, 1) for name, values in observations.items()}
        actions = batch.actions["action"].flatten(0, 1)
        for part in order.tensor_split(math.ceil(len(order) / self.options.minibatch)):
            source = part + part.div(steps, rounding_mode="floor")  # observations have one row more a segment
            shown = {name: values.index_select(0, source) for name, values in flat.items()}
            yield self.model.evaluate(shown, actions.index_select(0, part))

    def _sequences(self, batch: TrainBatch, observations: Mapping[str, Tensor]) -> Iterator[Evaluated]:
        """Whole segments at a time, from the state that the batch brings: zeros from a recording."""
        rows, steps = batch.reward.shape
        order = torch.randperm(rows, generator=self.generator).to(batch.device)
        ended = batch.terminated | batch.truncated
        for part in order.tensor_split(min(rows, math.ceil(rows * steps / self.options.minibatch))):
            shown = {name: values[part] for name, values in observations.items()}
            state = {name: values[part] for name, values in batch.state.items()}
            judged = self.model.evaluate_sequence(shown, batch.actions["action"][part], ended[part], state)
            valid = batch.valid[part]
            if valid.any():
                yield Evaluated(judged.log_prob[valid], judged.entropy[valid], judged.value[valid])

    def _step(self, judged: Evaluated) -> Tensor:
        """One gradient step; the numbers in _SUMS, without gradient."""
        likelihood, entropy = -judged.log_prob.mean(), judged.entropy.mean()
        loss = likelihood - self.options.entropy * entropy if self.options.entropy else likelihood
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        norm = self.optimizer.step(self.options.max_grad_norm)
        return torch.stack([likelihood.detach(), entropy.detach(), norm])

    def _learn_statistics(self, batch: TrainBatch) -> None:
        if self.model.normaliser is None:
            return
        seen = {
            name: batch.observations[name][:, :-1][batch.valid].cpu().numpy() for name in self.model.normaliser.moments
        }
        self.model.normaliser.update(seen)
