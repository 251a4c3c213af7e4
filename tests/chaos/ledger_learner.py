"""The ledger learner: learns nothing and remembers every step it was ever trained on, in its saved state.

It never asks the broker: what it knows came through the trainer, so its state is what "the model" contains.

Its one tensor "intervals" has a row for each run of consecutive steps: env, nonce, first count, last count, life of the
first. What it finds wrong in a batch (a step twice, a torn row, a reward that is another step's) stands in its meta.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from heddle.clock import SystemClock
from heddle.consumers.learners import TrainBatch
from heddle.errors import CheckpointError
from heddle.policies.base import Array, Arrays, Policy
from heddle.spec import ExperimentSpec
from tests.chaos.ledger_env import WIDTH
from tests.chaos.rows import Row, rows_of

NAME = "tests.chaos.ledger_learner:LedgerLearner"
MOST_PROBLEMS = 50


class Intervals:
    """Which steps were seen: runs of consecutive counts for each (env, nonce)."""

    def __init__(self) -> None:
        self.runs: dict[tuple[int, int], list[list[int]]] = {}
        self.repeats = 0

    def add(self, row: Row) -> bool:
        """Take `row` in; False when some of its steps had been seen."""
        runs = self.runs.setdefault((row.env, row.nonce), [])
        last = row.first + row.length - 1
        if any(row.first <= end and last >= begin for begin, end, _ in runs):
            self.repeats += row.length
            return False
        if runs and runs[-1][1] + 1 == row.first:
            runs[-1][1] = last
        else:
            runs.append([row.first, last, row.life])
        return True

    def table(self) -> Array:
        """[K, 5] int64."""
        rows = [(env, nonce, *run) for (env, nonce), runs in self.runs.items() for run in runs]
        return np.array(rows, np.int64).reshape(len(rows), 5)

    @classmethod
    def of(cls, table: Array) -> "Intervals":
        """The opposite of `table`."""
        made = cls()
        for env, nonce, first, last, life in table.tolist():
            made.runs.setdefault((env, nonce), []).append([first, last, life])
        return made


class LedgerLearner:
    """See the module.

    Args:
        update_s: how long an update takes.
    """

    min_steps = 1

    def __init__(
        self, spec: ExperimentSpec, policy: Policy, *, device: torch.device, seed: int, update_s: float = 0.0
    ) -> None:
        self._weights = policy.get_weights()
        self._intervals = Intervals()
        self._problems: list[str] = []
        self._updates = 0
        self._update_s = update_s
        self._clock = SystemClock()

    def update(self, batch: TrainBatch, progress: float) -> dict[str, float]:
        self._clock.sleep(self._update_s)
        lengths = batch.valid.sum(dim=1).numpy()
        rows, problems = rows_of(batch.observations["obs"].numpy(), batch.reward.numpy(), lengths)
        for row in rows:
            if not self._intervals.add(row):
                problems.append(f"trained twice: {row}")
        problems += self._final_problems(batch)
        self._problems = (self._problems + problems)[:MOST_PROBLEMS]
        self._updates += 1
        return {"policy_loss": 0.0, "progress": progress}

    def _final_problems(self, batch: TrainBatch) -> list[str]:
        """The true last observation of a truncated episode is that of its last step."""
        obs, finals = batch.observations["obs"].numpy(), batch.final_observations["obs"].numpy()
        found = []
        for (segment, step), final in zip(batch.final_index.tolist(), finals, strict=True):
            before, last = obs[segment, step, :WIDTH], final[:WIDTH]
            if not (last[[0, 3, 4, 6]] == before[[0, 3, 4, 6]] + np.array([0, 0, 1, 1], np.float32)).all():
                found.append(f"final observation {last.tolist()} does not follow {before.tolist()}")
        return found

    def get_weights(self) -> Arrays:
        return {name: array + np.float32(1e-3 * self._updates) for name, array in self._weights.items()}

    def set_weights(self, weights: Mapping[str, Array]) -> None:
        """The weights follow from the number of updates."""

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        meta = {"repeats": self._intervals.repeats, "problems": self._problems, "updates": self._updates}
        return {"intervals": self._intervals.table()}, meta

    def load(self, tensors: Mapping[str, Array], meta: Mapping[str, Any]) -> None:
        if "intervals" not in tensors:
            raise CheckpointError("the state is not a ledger")
        self._intervals = Intervals.of(tensors["intervals"])
        self._intervals.repeats = int(meta["repeats"])
        self._problems = [str(problem) for problem in meta["problems"]]
        self._updates = int(meta["updates"])
