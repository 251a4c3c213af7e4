"""The learner that learns nothing: experience is read, counted and let go, for whoever only wants it played.

It never changes a weight; any policy will do.
"""

from collections.abc import Mapping
from typing import Any

import torch

from heddle.consumers.learners.base import State, TrainBatch
from heddle.errors import CheckpointError
from heddle.policies.base import Array, Arrays, Policy
from heddle.spec import ExperimentSpec


class NoLearner:
    """Keeps the policy as it is, for taps and recorders that read beside it, and for baselines.

    Args:
        policy: its weights are published unchanged.
    """

    min_steps = 1

    def __init__(self, spec: ExperimentSpec, policy: Policy, *, device: torch.device, seed: int) -> None:
        self._policy = policy
        self.updates = 0

    def update(self, batch: TrainBatch, progress: float) -> dict[str, float]:
        self.updates += 1
        return {"reward": float(batch.reward[batch.valid].mean())}

    def get_weights(self) -> Arrays:
        return self._policy.get_weights()

    def set_weights(self, weights: Mapping[str, Array]) -> None:
        self._policy.set_weights(weights)

    def state(self) -> State:
        return {}, {"learner": "none", "updates": self.updates}

    def load(self, tensors: Mapping[str, Array], meta: Mapping[str, Any]) -> None:
        if meta.get("learner") != "none":
            raise CheckpointError(f"the state is of learner {meta.get('learner')!r}, not of none")
        self.updates = int(meta["updates"])
