"""Where in a train batch a number lies that a learner may have stumbled over: for the message when it did.

It never changes a batch.
"""

import torch
from torch import Tensor

from heddle.consumers.learners.base import AGENT_BITS, TrainBatch
from heddle.spec.objects import describe_error

EXTREME = 1e6
"""A finite number this large is worth naming."""


def suspect(batch: TrainBatch) -> str:
    """In words and with its place, the first number of `batch` that is not finite, else its largest extreme one.

    Returns:
        For example "; the batch holds reward = inf (shard 3, environment 1, step 17)"; "" when all is ordinary. A batch
        that cannot be looked at is said to be so: after a failed assertion a device answers nothing any more, and that
        shall not hide what the learner raised.
    """
    try:
        return _find(batch)
    except Exception as error:  # noqa: BLE001  the message that this is a part of matters more
        return f"; its batch cannot be looked at: {describe_error(error)}"


def _find(batch: TrainBatch) -> str:
    columns = {"reward": batch.reward} | {f"output {name}": values for name, values in batch.outputs.items()}
    columns |= {name: values[:, :-1] for name, values in batch.observations.items()} | batch.actions
    floats = {name: values for name, values in columns.items() if values.is_floating_point()}
    for name, values in floats.items():
        if found := _place(name, values, ~torch.isfinite(values), batch):
            return found
    for name, values in floats.items():
        if found := _place(name, values, values.abs() >= EXTREME, batch):
            return found
    return ""


def _place(name: str, values: Tensor, odd: Tensor, batch: TrainBatch) -> str:
    odd = odd & batch.valid.view(*batch.valid.shape, *[1] * (values.dim() - 2))
    if not odd.any():
        return ""
    where = odd.nonzero()[0]
    row, step = int(where[0]), int(where[1])
    number = float(values[tuple(where)])
    agent, env = divmod(int(batch.env[row]), 1 << AGENT_BITS)
    where_played = f"shard {int(batch.shard[row])}, environment {env}{f', agent {agent}' if agent else ''}"
    return f"; the batch holds {name} = {number:g} ({where_played}, step {step} of its segment)"
