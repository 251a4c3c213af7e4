"""The replay buffer of a learner: steps in a ring of rows, drawn uniformly or by priority, with n-step returns.

Successive segments of one (shard, env, epoch) are joined where the first ends with the observation that the second
begins with, so that n-step returns reach across their border; across an episode's end they never do.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from heddle.consumers.learners.replay_chunk import EMPTY, SEEN, STEP, TERMINATED, Chunk, row_bytes
from heddle.consumers.learners.replay_files import Part, ReplayFiles
from heddle.consumers.learners.sum_tree import Float64, Index, SumTree
from heddle.errors import CheckpointError, ExperimentFailed
from heddle.policies.base import Array, Arrays
from heddle.spec.learning import ReplayOptions

PRIORITY_FLOOR = 1e-6
"""Added to every temporal difference, so that no step is never drawn again."""
FILES_AIMED_AT = 16
"""A file that reached this part of the capacity is followed by a new one: disk stays within that much above it."""
LEAST_ROLL_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Sample:
    """Steps drawn from the buffer.

    Attributes:
        rows: [M] int64, where they are, for `set_priorities`.
        leaves: "obs..." and "action..." leaf -> [M, ...], what was seen and done.
        returns: [M] float32, discounted rewards of up to n steps from there on.
        discount: [M] float32, of the value of what followed them: gamma to the number of steps, 0 after a termination.
        following: "obs..." leaf -> [M, ...], what followed them.
        weights: [M] float32, importance weights, the largest 1.
    """

    rows: Index
    leaves: Arrays
    returns: Array
    discount: Array
    following: Arrays
    weights: Array


@dataclass(frozen=True, slots=True)
class _Segment:
    number: int
    start: int
    rows: int
    steps: int


class Replay:
    """Steps of the newest segments that `options.capacity` bytes hold.

    Attributes:
        num_steps: steps in it.
        inserted: steps that were ever put in.
        filled: those of them since it was empty.

    Args:
        gamma: discount per step.
        seed: of the drawing.
        kept: checkpoints whose files stay.
    """

    def __init__(self, options: ReplayOptions, *, gamma: float, seed: int, kept: int = 1) -> None:
        self.num_steps = 0
        self.inserted = 0
        self.filled = 0
        self._options, self._gamma, self._kept = options, gamma, kept
        self._rng = np.random.default_rng([seed, 0x5250])
        self._files: ReplayFiles | None = None
        self._highest = 1.0
        self._clear()

    def open(self, directory: Path) -> None:
        """Keep the content in files of this folder from now on."""
        roll = max(LEAST_ROLL_BYTES, self._options.capacity // FILES_AIMED_AT)
        self._files = ReplayFiles(directory, roll_bytes=roll)

    def insert(self, chunk: Chunk) -> None:
        """Put in the segments of one update, in place of the oldest ones where there is no room.

        Raises:
            ExperimentFailed: one segment alone needs more rows than there are.
        """
        self._insert(chunk, skip=0)
        self.inserted += int(chunk.steps.sum())
        self.filled += int(chunk.steps.sum())
        if self._files is not None:
            self._files.add(chunk.to_bytes(), len(chunk.rows))

    def sample(self, count: int, *, beta: float = 1.0) -> Sample:
        """Draw `count` steps with replacement; by priority when the spec says so.

        Args:
            beta: how much of the bias of drawing by priority the weights take away, 0 to 1.
        """
        rows, weights = self._drawn(count, beta)
        returns, discount, after = self._walk(rows)
        following = {name: array[after] for name, array in self._leaves.items() if name.startswith("obs")}
        leaves = {name: array[rows] for name, array in self._leaves.items()}
        return Sample(rows, leaves, returns, discount, following, weights)

    def set_priorities(self, rows: Index, errors: Array) -> None:
        """Say how wrong the values of drawn steps [M] were; nothing happens when drawing is uniform."""
        if self._tree is None:
            return
        priorities = (np.abs(errors.astype(np.float64)) + PRIORITY_FLOOR) ** self._options.alpha
        self._tree.set(rows, priorities)
        self._highest = max(self._highest, float(priorities.max(initial=0.0)))

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        """Everything, the steps themselves in the files that are named; without a folder they are not kept.

        Raises:
            CheckpointError: the files cannot be written.
        """
        meta: dict[str, Any] = {"inserted": self.inserted, "rng": self._rng.bit_generator.state}
        if self._files is None:
            return {}, meta
        oldest = self._segments[0] if self._segments else _Segment(self._number, 0, 0, 0)
        parts = self._files.commit(oldest=oldest.number, kept=self._kept)
        meta |= {
            "files": [part.to_json() for part in parts],
            "oldest": oldest.number,
            "start": oldest.start,
            "rows": len(self._kind),
            "high": self._high,
            "filled": self.filled,
            "highest": self._highest,
        }
        if self._tree is None:
            return {}, meta
        return {"priorities": self._tree.get(self._step_rows())}, meta

    def load(self, tensors: Mapping[str, Array], meta: Mapping[str, Any]) -> None:
        """The opposite of `state`: the same steps in the same rows.

        Raises:
            CheckpointError: a file that it names is missing, torn or damaged.
            KeyError, ValueError, TypeError: it is something else.
        """
        self._clear()
        self.inserted = int(meta["inserted"])
        self._rng.bit_generator.state = meta["rng"]
        if self._files is None or "files" not in meta:
            return
        parts = [Part.from_json(value) for value in meta["files"]]
        oldest = int(meta["oldest"])
        self._number = parts[0].first if parts else oldest
        self._head = int(meta["start"])
        for record in self._files.read(parts):
            self._insert(Chunk.from_bytes(record), skip=oldest)
        self.filled = int(meta["filled"])
        self._highest, self._high = float(meta["highest"]), int(meta["high"])
        if parts and len(self._kind) != int(meta["rows"]):
            raise CheckpointError(f"the replay buffer has {len(self._kind)} rows, the checkpoint's {meta['rows']}")
        if self._tree is not None:
            self._tree.set(self._step_rows(), np.asarray(tensors["priorities"], np.float64))

    # ---- inside

    def _clear(self) -> None:
        self.num_steps, self.filled = 0, 0
        self._leaves: Arrays = {}
        self._reward = np.zeros(0, np.float32)
        self._kind = np.zeros(0, np.uint8)
        self._after = np.zeros(0, np.int64)
        self._link = np.zeros(0, np.int64)
        self._segments: deque[_Segment] = deque()
        self._tails: dict[tuple[int, int], tuple[int, _Segment]] = {}
        self._number, self._head, self._high = 0, 0, 0
        self._tree: SumTree | None = None
        self._highest = 1.0

    def _allocate(self, chunk: Chunk) -> None:
        rows = max(1, self._options.capacity // row_bytes(chunk.leaves))
        self._leaves = {
            name: np.zeros((rows, *array.shape[1:]), array.dtype) for name, array in sorted(chunk.leaves.items())
        }
        self._reward, self._kind = np.zeros(rows, np.float32), np.zeros(rows, np.uint8)
        self._after, self._link = np.zeros(rows, np.int64), np.full(rows, -1, np.int64)
        self._tree = SumTree(rows) if self._options.prioritised else None

    def _insert(self, chunk: Chunk, *, skip: int) -> None:
        """Put in the segments from number `skip` on."""
        if not len(self._kind):
            self._allocate(chunk)
        begin = 0
        for index, rows in enumerate(chunk.rows.tolist()):
            if self._number >= skip:
                self._put(chunk, index, slice(begin, begin + rows))
            else:
                self._number += 1
            begin += rows

    def _put(self, chunk: Chunk, index: int, source: slice) -> None:
        segment = self._place(int(chunk.rows[index]), int(chunk.steps[index]))
        start = segment.start
        target = slice(start, start + segment.rows)
        for name, array in chunk.leaves.items():
            self._leaves[name][target] = array[source]
        self._reward[target], self._kind[target] = chunk.reward[source], chunk.kind[source]
        self._after[target] = chunk.after[source] + start
        self._link[target] = -1
        key = (int(chunk.shard[index]), int(chunk.env[index]))
        self._join(self._tails.get(key), int(chunk.epoch[index]), start)
        self._tails[key] = (int(chunk.epoch[index]), segment)
        self._segments.append(segment)
        self.num_steps += segment.steps
        if self._tree is not None:
            self._tree.set(np.arange(start, start + segment.steps), self._highest)

    def _join(self, before: tuple[int, _Segment] | None, epoch: int, start: int) -> None:
        """Let the segment at `start` follow the one that its environment played before, when it does."""
        if before is None or before[0] != epoch:
            return
        segment = before[1]
        if not self._segments or segment.number < self._segments[0].number:
            return  # overwritten
        tail = segment.start + segment.steps
        seen = [array for name, array in self._leaves.items() if name.startswith("obs")]
        if all(array[tail].tobytes() == array[start].tobytes() for array in seen):
            self._link[tail] = start

    def _place(self, rows: int, steps: int) -> _Segment:
        """Room for a segment, the oldest ones overwritten; never across the ring's end."""
        capacity = len(self._kind)
        if rows > capacity:
            raise ExperimentFailed(
                f"trainer.replay.capacity = {self._options.capacity} holds {capacity} rows, one segment needs {rows}:"
                " raise it, or lower rollout.steps"
            )
        if self._head + rows > capacity:
            self._overwrite(self._head, capacity)
            self._head = 0
        self._overwrite(self._head, self._head + rows)
        segment = _Segment(self._number, self._head, rows, steps)
        self._number += 1
        self._head += rows
        self._high = max(self._high, self._head)
        return segment

    def _overwrite(self, start: int, stop: int) -> None:
        """Take out every segment that lies in these rows. They are the oldest."""
        while self._segments and start <= self._segments[0].start < stop:
            old = self._segments.popleft()
            self._kind[old.start : old.start + old.rows] = EMPTY
            self.num_steps -= old.steps
            if self._tree is not None:
                self._tree.set(np.arange(old.start, old.start + old.steps), 0.0)

    def _step_rows(self) -> Index:
        return np.flatnonzero((self._kind != EMPTY) & (self._kind != SEEN))

    def _drawn(self, count: int, beta: float) -> tuple[Index, Array]:
        if self._tree is None:
            return self._uniform(count), np.ones(count, np.float32)
        total = self._tree.total
        mass = (np.arange(count) + self._rng.random(count)) * (total / count)  # one from each of equal parts
        rows = self._tree.find(np.minimum(mass, math.nextafter(total, 0.0)))
        chance: Float64 = self._tree.get(rows) / total
        weights = (self.num_steps * chance) ** -beta
        return rows, (weights / weights.max()).astype(np.float32)

    def _uniform(self, count: int) -> Index:
        found: list[Index] = []
        missing = count
        while missing:
            drawn = self._rng.integers(0, self._high, 2 * missing)
            kind = self._kind[drawn]
            found.append(drawn[(kind != EMPTY) & (kind != SEEN)][:missing])
            missing -= len(found[-1])
        return np.concatenate(found)

    def _walk(self, rows: Index) -> tuple[Array, Array, Index]:
        """Rewards of up to n steps, the discount of what followed them, and the row of that observation."""
        returns, discount = np.zeros(len(rows)), np.ones(len(rows))
        after, now = rows, rows
        going = np.ones(len(rows), bool)
        ended = np.zeros(len(rows), bool)
        for _ in range(self._options.n_step):
            returns += np.where(going, discount * self._reward[now], 0.0)
            discount = np.where(going, discount * self._gamma, discount)
            after = np.where(going, self._after[now], after)
            ended |= going & (self._kind[now] == TERMINATED)
            going = going & (self._kind[now] == STEP)
            beside = np.where(going, now + 1, now)
            beside = np.where(going & (self._kind[beside] == SEEN), self._link[beside], beside)
            going &= beside >= 0
            now = np.where(going, beside, now)
        return returns.astype(np.float32), np.where(ended, 0.0, discount).astype(np.float32), after
