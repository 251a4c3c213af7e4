"""What learners of a policy and its value have in common: the model, its optimizer, the statistics, and their state.

It never says what is learned: subclasses do.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from heddle.consumers.learners.base import State, TrainBatch, to_numpy
from heddle.consumers.learners.gae import next_values, scatter_finals
from heddle.consumers.learners.guard import Guard
from heddle.consumers.learners.optimizer import FlatAdam
from heddle.errors import CheckpointError, EnvError, ExperimentFailed
from heddle.policies.base import Array, Arrays, Policy
from heddle.policies.normalise import Normaliser, RewardScaler
from heddle.policies.torch_module import make_module
from heddle.spec import ExperimentSpec


class OnPolicy:
    """A learner of any policy with a torch module that reports "log_prob", recurrent or not.

    Attributes:
        updates: updates done.

    Args:
        spec: [trainer] holds the hyperparameters; [policy] is already built.
        policy: its weights are where learning starts.
        device: where it learns.
        seed: of the shuffling.

    Raises:
        EnvError: the policy cannot be trained, or does not report "log_prob".
    """

    name: ClassVar[str]
    min_steps = 2  # a single step has no advantage left once it is standardised

    def __init__(self, spec: ExperimentSpec, policy: Policy, *, device: torch.device, seed: int) -> None:
        self.options = spec.trainer
        if "log_prob" not in policy.outputs:
            raise EnvError(
                f"cannot be trained by {self.name}: {type(policy).__name__} does not report log_prob with its actions",
                key="policy.id",
                value=spec.policy.id,
                hint="add log_prob to its outputs, or name another learner",
            )
        self.model = make_module(policy, device=device, compiled=spec.trainer.compile)
        if self.options.normalize_observations:
            self.model.normaliser = Normaliser(self.model.observation)
            self.model.set_weights(self.model.normaliser.weights() | policy.get_weights())
        else:
            self.model.set_weights(policy.get_weights())
        self.optimizer = FlatAdam(self.model.net)
        self.scaler = RewardScaler(self.options.gamma) if self.options.normalize_rewards else None
        self.guard = Guard(self.options)
        self.generator = torch.Generator().manual_seed(seed)
        self.updates = 0

    def complaint(self) -> str:
        """Why the experiment shall pause, told once; "" for nothing."""
        return self.guard.heard()

    def get_weights(self) -> Arrays:
        return self.model.get_weights()

    def set_weights(self, weights: Mapping[str, Array]) -> None:
        self.model.set_weights(weights)

    def state(self) -> State:
        arrays = self.optimizer.state() | {"generator": to_numpy(self.generator.get_state())}
        if self.scaler:
            arrays |= {f"reward.{name}": array for name, array in self.scaler.state().items()}
        return arrays, {"learner": self.name, "updates": self.updates}

    def load(self, tensors: Mapping[str, Array], meta: Mapping[str, Any]) -> None:
        if meta.get("learner") != self.name:
            raise CheckpointError(f"the state is of learner {meta.get('learner')!r}, not of {self.name}")
        try:
            self.optimizer.load(tensors)
            self.generator.set_state(torch.from_numpy(tensors["generator"].copy()))
            if self.scaler and "reward.keys" in tensors:
                self.scaler.load({name: tensors[f"reward.{name}"] for name in ("moments", "keys", "returns", "epochs")})
            self.updates = int(meta["updates"])
        except (KeyError, ValueError, TypeError, RuntimeError) as error:
            raise CheckpointError(f"the state of {self.name} is incomplete: {error!r}") from error

    def rewards(self, batch: TrainBatch) -> Tensor:
        """[B, T] as they are learned from: scaled when the spec says so, which updates that scale."""
        if not self.scaler:
            return batch.reward
        keys = list(zip(batch.shard.tolist(), batch.env.tolist(), strict=True))
        parts = (batch.reward, batch.terminated | batch.truncated, batch.valid)
        raw, over, valid = (tensor.cpu().numpy() for tensor in parts)
        scaled = self.scaler.scale(raw, over, valid, keys=keys, epochs=batch.epoch.tolist())
        return torch.from_numpy(scaled).to(batch.reward.device)

    def take_step(self, loss: Tensor, max_norm: float, numbers: Mapping[str, Tensor]) -> Tensor | None:
        """One gradient step down `loss`; the norm of the whole gradient, or None where the guard left the step out.

        Args:
            loss: one number. numbers: one number each, by name, for the guard.

        Raises:
            ExperimentFailed: see `guard.Guard`; and where no parameter has a part in the loss.
        """
        if not loss.requires_grad:
            what = "the policy's forward gave numbers without gradients (by detach, no_grad or numpy?)"
            raise ExperimentFailed(f"{what}: nothing can be learned from its loss")
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        norm = self.optimizer.norm()
        if not self.guard.lets_pass(norm, numbers, update=self.updates + 1, leap=self.optimizer.leap()):
            return None
        return self.optimizer.step(max_norm, norm)

    def refuse_nan(self, names: tuple[str, ...], sums: Tensor) -> None:
        """Raises ExperimentFailed where one of the sums, one a name in a row [names], is not finite."""
        if torch.isfinite(sums).all():
            return
        shown = ", ".join(f"{name} = {value:g}" for name, value in zip(names, sums.tolist(), strict=True))
        raise ExperimentFailed(
            f"update {self.updates + 1} gave numbers that are not finite ({shown});"
            " lower trainer.lr, or look for extreme observations and rewards"
        )

    def learn_statistics(self, batch: TrainBatch) -> None:
        """Take what was seen into the statistics of observations, for the next update."""
        if self.model.normaliser is None or not self.options.normalize_observations:
            return
        seen = {
            name: batch.observations[name][:, :-1][batch.valid].cpu().numpy() for name in self.model.normaliser.moments
        }
        self.model.normaliser.update(seen)


@dataclass(frozen=True, slots=True)
class Rows:
    """Some segments of a batch: its fields of the same names, less the others.

    Attributes:
        finals: [k] int64, which of the batch's final observations are theirs.
        final_index: [k, 2] int64, the segment counted among these.
    """

    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    valid: Tensor
    state: dict[str, Tensor]
    final_index: Tensor
    finals: Tensor


def select_rows(batch: TrainBatch, rows: Tensor) -> Rows:
    """The segments [b] int64 of a batch, in that order."""
    place = torch.full((len(batch.valid),), -1, dtype=torch.int64, device=batch.device)
    place[rows] = torch.arange(len(rows), device=batch.device)
    finals = (place[batch.final_index[:, 0]] >= 0).nonzero().squeeze(1)
    index = batch.final_index[finals]
    return Rows(
        reward=batch.reward[rows],
        terminated=batch.terminated[rows],
        truncated=batch.truncated[rows],
        valid=batch.valid[rows],
        state={name: values[rows] for name, values in batch.state.items()},
        final_index=torch.stack([place[index[:, 0]], index[:, 1]], dim=1),
        finals=finals,
    )


def bootstraps(values: Tensor, finals: Tensor, batch: TrainBatch | Rows) -> Tensor:
    """[B, T] value of what followed each step, from values [B, T+1] and those of the final observations [K]."""
    spread = scatter_finals(finals, batch.final_index, like=batch.reward)
    return next_values(values, terminated=batch.terminated, truncated=batch.truncated, final_values=spread)
