"""What an update brings into a replay buffer: segments as rows one after another, priorities, both as bytes.

Pure. A segment of L steps with K truncations takes L + 1 + K rows: its steps, the observation that followed the last
one, and the final observation of each truncated step. Rows have a kind:

    STEP        goes on with the next row's observation
    TERMINATED  ended its episode; what follows does not count
    TRUNCATED   ended its episode; its final observation is in a row of its own
    SEEN        no step: only an observation
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from safetensors.numpy import save

from heddle.consumers.learners.base import TrainBatch
from heddle.errors import CheckpointError
from heddle.policies.base import Array, Arrays
from heddle.policies.weights import WeightsError, load_arrays

EMPTY, STEP, TERMINATED, TRUNCATED, SEEN = 0, 1, 2, 3, 4
_ROWS = ("reward", "kind", "after")
_SEGMENTS = ("rows", "steps", "shard", "env", "epoch")


@dataclass(frozen=True, slots=True)
class Chunk:
    """The segments of one update.

    Attributes:
        leaves: "obs..." and "action..." leaf -> [R, ...] over all rows of all segments; zeros where a row has none.
        reward: [R] float32, raw.
        kind: [R] uint8, see the module.
        after: [R] int64, of a step: the row of its segment, counted from 0, that holds the observation it led to.
        rows, steps: [S] int64, of each segment: all its rows, and those that are steps.
        shard, env, epoch: [S] int64, where each was played and by which owner; of one (shard, env) in order of play.
    """

    leaves: Arrays
    reward: Array
    kind: Array
    after: Array
    rows: Array
    steps: Array
    shard: Array
    env: Array
    epoch: Array

    def to_bytes(self) -> bytes:
        """As safetensors."""
        arrays = {f"leaf/{name}": np.ascontiguousarray(array) for name, array in self.leaves.items()}
        arrays |= {name: np.ascontiguousarray(getattr(self, name)) for name in (*_ROWS, *_SEGMENTS)}
        return bytes(save(arrays))

    @classmethod
    def from_bytes(cls, data: bytes) -> "Chunk":
        """The opposite of `to_bytes`. Raises CheckpointError."""
        try:
            arrays = load_arrays(data)
            found = {name.removeprefix("leaf/"): arrays[name] for name in arrays if name.startswith("leaf/")}
            return cls(leaves=found, **{name: arrays[name] for name in (*_ROWS, *_SEGMENTS)})
        except (WeightsError, KeyError) as error:
            raise CheckpointError(f"a record of replayed experience cannot be read: {error}") from error


def make_chunk(batch: TrainBatch) -> Chunk:
    """The valid steps of a train batch, copied; segments without any are left out."""
    host = {name: tensor.cpu().numpy() for name, tensor in (batch.observations | batch.actions).items()}
    finals = {name: tensor.cpu().numpy() for name, tensor in batch.final_observations.items()}
    length = batch.valid.sum(dim=1).cpu().numpy().astype(np.int64)
    index = batch.final_index.cpu().numpy()
    kept = np.flatnonzero(length)
    mine = [np.flatnonzero(index[:, 0] == row) for row in kept]
    rows = length[kept] + 1 + np.array([len(found) for found in mine], np.int64)
    starts = np.concatenate([[0], np.cumsum(rows)])
    leaves = {name: np.zeros((starts[-1], *array.shape[2:]), array.dtype) for name, array in host.items()}
    reward = np.zeros(starts[-1], np.float32)
    kind = np.full(starts[-1], SEEN, np.uint8)
    after = np.zeros(starts[-1], np.int64)
    raw, terminated, truncated = (part.cpu().numpy() for part in (batch.reward, batch.terminated, batch.truncated))
    for place, row, found in zip(starts, kept, mine, strict=False):
        steps = int(length[row])
        end = place + steps
        for name, array in host.items():
            count = steps + 1 if name in finals else steps
            leaves[name][place : place + count] = array[row, :count]
        reward[place:end] = raw[row, :steps]
        ended = np.where(terminated[row, :steps], TERMINATED, np.where(truncated[row, :steps], TRUNCATED, STEP))
        kind[place:end] = ended
        after[place:end] = np.arange(1, steps + 1)
        for extra, final in enumerate(found, start=steps + 1):
            after[place + index[final, 1]] = extra
            for name, array in finals.items():
                leaves[name][place + extra] = array[final]
    return Chunk(
        leaves=leaves,
        reward=reward,
        kind=kind,
        after=after,
        rows=rows,
        steps=length[kept],
        shard=np.asarray(batch.shard, np.int64)[kept],
        env=np.asarray(batch.env, np.int64)[kept],
        epoch=np.asarray(batch.epoch, np.int64)[kept],
    )


def row_bytes(leaves: Mapping[str, Array]) -> int:
    """Bytes that one row takes in a buffer of these leaves, [rows, ...] each: leaves, reward, kind, and two places."""
    return sum(array[:1].nbytes for array in leaves.values()) + 4 + 1 + 2 * 8


def changes_to_bytes(rows: Array, priorities: Array) -> bytes:
    """Priorities [M] float64 that rows [M] of a buffer were given, as safetensors."""
    return bytes(save({"row": rows.astype(np.int64), "priority": priorities.astype(np.float64)}))


def changes_in(data: bytes) -> tuple[Array, Array]:
    """Rows and priorities: the opposite of `changes_to_bytes`. Raises CheckpointError."""
    try:
        arrays = load_arrays(data)
        return arrays["row"], arrays["priority"]
    except (WeightsError, KeyError) as error:
        raise CheckpointError(f"a record of replayed priorities cannot be read: {error}") from error
