"""What learners with a replay buffer have in common: the buffer, its pace, and their state.

It never says what is learned: subclasses do.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from heddle.consumers.learners.base import State, TrainBatch
from heddle.consumers.learners.guard import Guard
from heddle.consumers.learners.replay import Replay
from heddle.consumers.learners.replay_chunk import make_chunk
from heddle.consumers.learners.replay_sample import Sample
from heddle.errors import CheckpointError, EnvError
from heddle.policies.base import Array, Arrays, Policy
from heddle.policies.normalise import Normaliser
from heddle.policies.torch_module import Tensors, make_module
from heddle.spec import ExperimentSpec
from heddle.spec.learning import ReplayOptions


class OffPolicy(ABC):
    """A learner that goes back to old experience.

    An update puts its steps into the buffer and then takes as many gradient steps as they pay for: each step is drawn
    `samples_per_step` times on average. What does not make a whole gradient step is kept for the next update. The
    trainer reads no further meanwhile, so producers wait where the learner is the slower one.

    Attributes:
        replay: the buffer.
        updates: updates done.

    Raises:
        EnvError: the policy cannot be trained by it.
    """

    name: ClassVar[str]
    extra: ClassVar[str]  # a weight of the policy that is no parameter of its module
    min_steps = 1

    def __init__(self, spec: ExperimentSpec, policy: Policy, *, device: torch.device, seed: int) -> None:
        self.options = spec.trainer
        self.table = spec.trainer.replay or ReplayOptions()
        if self.extra not in policy.get_weights():
            raise EnvError(
                f"cannot be trained by {self.name}: {type(policy).__name__} has no {self.extra} among its weights",
                key="policy.id",
                value=spec.policy.id,
                hint="use policy.id = " + ("q" if self.name == "dqn" else "sac") + ", or leave it out",
            )
        self.model = make_module(policy, device=device, compiled=spec.trainer.compile)
        if self.options.normalize_observations:
            self.model.normaliser = Normaliser(self.model.observation)
        statistics = self.model.normaliser.weights() if self.model.normaliser else {}
        self.model.set_weights(self._of_module(statistics | policy.get_weights()))
        self.replay = Replay(self.table, gamma=self.options.gamma, seed=seed)
        self.guard = Guard(self.options)
        self.exploring = 1.0
        self.updates = 0
        self._owed = 0.0

    @abstractmethod
    def learn(self, sample: Sample, progress: float) -> tuple[dict[str, Tensor], Tensor] | None:
        """One gradient step: metrics, and the temporal differences [M]; None where the guard left it out."""

    @abstractmethod
    def explore(self, progress: float, *, random: bool) -> float:
        """What is published under `extra`; `random` until there are enough steps to learn from."""

    @abstractmethod
    def own_state(self) -> Arrays:
        """Optimizers and networks that are not published."""

    @abstractmethod
    def load_own(self, tensors: Mapping[str, Array]) -> None:
        """The opposite of `own_state`. Raises KeyError, ValueError or CheckpointError."""

    def open(self, directory: Path, seat_epoch: int = 0) -> None:
        """Keep the buffer in files of this folder, so that it survives the process. Before `load`."""
        self.replay.open(directory, seat_epoch)

    def keep(self, metas: Sequence[Mapping[str, Any]]) -> None:
        """Delete files of the buffer that none of these states names: those of all checkpoints on disk."""
        self.replay.keep([meta["replay"] for meta in metas if isinstance(meta.get("replay"), Mapping)])

    def probe(self, batch: TrainBatch, progress: float) -> None:
        """Learn from one batch alone and forget it again; the buffer and its files are not touched."""
        kept = self.replay, self.guard, self.updates, self._owed
        weights, own = self.get_weights(), {name: np.array(array) for name, array in self.own_state().items()}
        self.replay, self.guard = self.replay.aside(make_chunk(batch)), copy.deepcopy(self.guard)
        try:
            self.update(batch, progress)
        finally:
            self.replay, self.guard, self.updates, self._owed = kept
            self.set_weights(weights)
            self.load_own(own)

    def update(self, batch: TrainBatch, progress: float) -> dict[str, float]:
        self.replay.insert(make_chunk(batch))
        self._learn_statistics(batch)
        random = self.replay.inserted < self.table.learning_starts
        if (
            self.replay.filled >= self.table.learning_starts
        ):  # again after a run that it continues, whose buffer is not here
            self._owed += batch.num_steps * self.table.samples_per_step / self.options.minibatch
        sums: dict[str, Tensor] = {}
        steps, taken = int(self._owed), 0
        self._owed -= steps
        for _ in range(steps):
            sample = self.replay.sample(self.options.minibatch, beta=self.table.beta.at(progress))
            if (learned := self.learn(sample, progress)) is None:
                continue
            metrics, errors = learned
            self.replay.set_priorities(sample.rows, errors.cpu().numpy())
            sums = {name: value + sums.get(name, 0.0) for name, value in metrics.items()}
            taken += 1
        self.exploring = self.explore(progress, random=random)
        self.updates += 1
        told = {"gradient_steps": float(taken), "replay_steps": float(self.replay.num_steps)} | self.guard.metrics()
        return told | {self.extra: self.exploring} | {name: float(value) / taken for name, value in sums.items()}

    def complaint(self) -> str:
        """Why the experiment shall pause, told once; "" for nothing."""
        return self.guard.heard()

    def get_weights(self) -> Arrays:
        return self.model.get_weights() | {self.extra: np.array(self.exploring, np.float32)}

    def set_weights(self, weights: Mapping[str, Array]) -> None:
        self.exploring = float(weights[self.extra])
        self.model.set_weights(self._of_module(weights))

    def state(self) -> State:
        tensors, replay = self.replay.state()
        arrays = self.own_state() | {f"replay.{name}": array for name, array in tensors.items()}
        return arrays, {"learner": self.name, "updates": self.updates, "owed": self._owed, "replay": replay}

    def load(self, tensors: Mapping[str, Array], meta: Mapping[str, Any]) -> None:
        if meta.get("learner") != self.name:
            raise CheckpointError(f"the state is of learner {meta.get('learner')!r}, not of {self.name}")
        try:
            self.load_own(tensors)
            self.updates, self._owed = int(meta["updates"]), float(meta["owed"])
            found = {name.removeprefix("replay."): array for name, array in tensors.items()}
            self.replay.load(found, meta["replay"])
        except (KeyError, ValueError, TypeError, RuntimeError) as error:
            raise CheckpointError(f"the state of {self.name} is incomplete: {error!r}") from error

    # ---- for subclasses

    def tensors(self, arrays: Mapping[str, Array]) -> Tensors:
        """Arrays as tensors on the learner's device, of the same shapes and dtypes."""
        return {name: torch.from_numpy(array).to(self.model.device) for name, array in arrays.items()}

    def seen(self, arrays: Mapping[str, Array]) -> Tensors:
        """Observations by leaf, [N, ...], as the networks want them: float leaves normalised."""
        return self.model.normalise(
            self.tensors({name: array for name, array in arrays.items() if name.startswith("obs")})
        )

    def _of_module(self, weights: Mapping[str, Array]) -> Arrays:
        return {name: array for name, array in weights.items() if name != self.extra}

    def _learn_statistics(self, batch: TrainBatch) -> None:
        if self.model.normaliser is None or not self.options.normalize_observations:
            return
        named = self.model.normaliser.moments
        self.model.normaliser.update(
            {name: batch.observations[name][:, :-1][batch.valid].cpu().numpy() for name in named}
        )
