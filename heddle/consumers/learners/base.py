"""What a learner is: tensors in, metrics out, and a state that can be saved.

It never reads a stream or a file: the trainer around it does. `make_learner` builds what a spec names.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from heddle.policies.base import Array, Arrays

State = tuple[Arrays, dict[str, Any]]
"""Arrays by name and values that JSON can hold: everything of a learner but the policy's weights."""

AGENT_BITS = 32
"""In `TrainBatch.env` an agent's number stands above these bits."""


@dataclass(slots=True)
class TrainBatch:
    """The segments of one update, on one device. B segments of up to T steps.

    The tensors may be buffers of the assembler: they are good until it assembles again.

    Attributes:
        observations: leaf -> [B, T+1, ...]; row t+1 is what followed step t, the first observation of the next
            episode where one ended. In a segment of length L, row L is the last one filled; beyond are zeros, in a
            Discrete leaf its `start`.
        actions: leaf -> [B, T, ...], as the policy emitted them.
        reward: [B, T] float32, raw.
        terminated, truncated: [B, T] bool.
        valid: [B, T] bool: step t of segment b was played (t < its length).
        outputs: name -> [B, T, ...], what the policy added when it acted, e.g. "log_prob", "value".
        info: key -> [B, T] float64, what `rollout.info_keys` names; NaN where the environment gave none.
        state: name -> [B, ...], recurrent state before step 0.
        version: [B] int64, policy version of each segment.
        final_index: [K, 2] int64, (segment, step) of steps where an episode was truncated and not terminated.
        final_observations: leaf -> [K, ...], what those steps led to.
        shard, env: [B] int64 numpy, where the segment was played; rows of one (shard, env) are in the order of play.
            With several agents in an environment env is its number + 2**32 times the agent's, one for each agent.
        epoch: [B] int64 numpy, of the shard's owner; where it changes along a (shard, env), the episode under way
            was left unfinished.
        num_steps: how many steps are valid.
    """

    observations: dict[str, Tensor]
    actions: dict[str, Tensor]
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    valid: Tensor
    outputs: dict[str, Tensor]
    info: dict[str, Tensor]
    state: dict[str, Tensor]
    version: Tensor
    final_index: Tensor
    final_observations: dict[str, Tensor]
    shard: Array
    env: Array
    epoch: Array
    num_steps: int

    @property
    def device(self) -> torch.device:
        """Where its tensors are."""
        return self.reward.device


@runtime_checkable
class Learner(Protocol):
    """What the trainer asks of an algorithm.

    A learner of your own is named "package.module:Name" and called as
    `Name(spec, policy, device=torch.device, seed=int, **spec.trainer.kwargs)`.

    Attributes:
        min_steps: fewest valid steps that `update` accepts.
    """

    min_steps: int

    def update(self, batch: TrainBatch, progress: float) -> dict[str, float]:
        """Learn from one batch.

        Args:
            batch: see TrainBatch; not kept after the call.
            progress: share of the budget used before this update, 0 to 1; for schedules.

        Returns:
            Metrics by name.

        Raises:
            ExperimentFailed: the loss is not finite; the message says at which update.
        """
        ...

    def get_weights(self) -> Arrays:
        """Copies of the policy's weights and "norm." statistics, as `Policy.set_weights` takes them."""
        ...

    def set_weights(self, weights: Mapping[str, Array]) -> None:
        """The opposite of `get_weights`."""
        ...

    def state(self) -> State:
        """Everything but the weights that an equal continuation needs: optimizer, counters, random state."""
        ...

    def load(self, tensors: Mapping[str, Array], meta: Mapping[str, Any]) -> None:
        """The opposite of `state`.

        Raises:
            CheckpointError: the state belongs to another learner or another policy.
        """
        ...


def resolve_device(name: str) -> torch.device:
    """The device for "auto", "cpu" or "cuda": auto takes CUDA when there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def device_bytes(device: torch.device) -> int | None:
    """Memory that this process holds on a GPU; None on others."""
    return int(torch.cuda.memory_reserved(device)) if device.type == "cuda" else None


def to_numpy(tensor: Tensor) -> Array:
    """A copy on the host, of the same shape and dtype."""
    return np.array(tensor.detach().cpu().numpy())
