"""The replay buffer of a learner: steps in a ring of rows, drawn uniformly or by priority, with n-step returns.

Successive segments of one (shard, env, epoch) are joined where the first ends with the observation that the second
begins with, so that n-step returns reach across their border; across an episode's end they never do.
"""

import math
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from heddle.consumers.learners.replay_chunk import EMPTY, SEEN, Chunk, changes_in, changes_to_bytes, row_bytes
from heddle.consumers.learners.replay_files import Part, Record, ReplayFiles
from heddle.consumers.learners.replay_sample import Sample, walk
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
class _Segment:
    number: int
    start: int
    rows: int
    steps: int
    shard: int = 0
    env: int = 0
    epoch: int = 0


class Replay:
    """Steps of the newest segments that `options.capacity` bytes hold.

    Attributes:
        num_steps: steps in it.
        inserted: steps that were ever put in.
        filled: those of them since it was empty.

    Args:
        gamma: discount per step.
        seed: of the drawing.
    """

    def __init__(self, options: ReplayOptions, *, gamma: float, seed: int) -> None:
        self.num_steps = 0
        self.inserted = 0
        self.filled = 0
        self._options, self._gamma = options, gamma
        self._rng = np.random.default_rng([seed, 0x5250])
        self._files: ReplayFiles | None = None
        self._highest = 1.0
        self._clear()

    def open(self, directory: Path, seat_epoch: int = 0) -> None:
        """Keep the content in files of this folder from now on, as the holder of that seat."""
        roll = max(LEAST_ROLL_BYTES, self._options.capacity // FILES_AIMED_AT)
        self._files = ReplayFiles(directory, roll_bytes=roll, seat_epoch=seat_epoch)

    def keep(self, metas: Collection[Mapping[str, Any]]) -> None:
        """Delete files that none of these states names: those of all checkpoints on disk."""
        if self._files is not None:
            self._files.keep({part[0] for meta in metas for part in meta.get("files", ())})

    def insert(self, chunk: Chunk) -> None:
        """Put in the segments of one update, in place of the oldest ones where there is no room.

        Raises:
            ExperimentFailed: one segment alone needs more rows than there are.
        """
        first = self._number
        self._insert(chunk, skip=0)
        self.inserted += int(chunk.steps.sum())
        self.filled += int(chunk.steps.sum())
        if self._files is not None:
            self._files.add(Record(chunk.to_bytes(), first, len(chunk.rows)), oldest=self._oldest.number)

    def sample(self, count: int, *, beta: float = 1.0) -> Sample:
        """Draw `count` steps with replacement; by priority when the spec says so.

        Args:
            beta: how much of the bias of drawing by priority the weights take away, 0 to 1.
        """
        rows, weights = self._drawn(count, beta)
        returns, discount, after = walk(
            rows,
            reward=self._reward,
            kind=self._kind,
            after=self._after,
            link=self._link,
            n_step=self._options.n_step,
            gamma=self._gamma,
        )
        following = {name: array[after] for name, array in self._leaves.items() if name.startswith("obs")}
        leaves = {name: array[rows] for name, array in self._leaves.items()}
        return Sample(rows, leaves, returns, discount, following, weights)

    def set_priorities(self, rows: Index, errors: Array) -> None:
        """Say how wrong the values of drawn steps [M] were; nothing happens when drawing is uniform."""
        if self._tree is None:
            return
        priorities = (np.abs(errors.astype(np.float64)) + PRIORITY_FLOOR) ** self._options.alpha
        self._tree.set(rows, priorities)
        self._dirty[rows] = True
        self._highest = max(self._highest, float(priorities.max(initial=0.0)))

    def aside(self, chunk: Chunk) -> "Replay":
        """An empty buffer with room for these segments, which counts on from here and has no files."""
        room = {"capacity": int(chunk.rows.sum()) * row_bytes(chunk.leaves)}
        made = Replay(self._options.model_copy(update=room), gamma=self._gamma, seed=0)
        made.inserted, made.filled = self.inserted, self.filled
        return made

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        """Everything, the steps themselves in the files that are named; without a folder they are not kept.

        Raises:
            CheckpointError: the files cannot be written.
        """
        meta: dict[str, Any] = {"inserted": self.inserted, "rng": self._rng.bit_generator.state}
        if self._files is None:
            return {}, meta
        oldest, changed = self._oldest, self._changes()
        parts = self._files.commit(oldest=oldest.number, anew=self._records, also=changed)
        self._dirty[:] = False
        meta |= {
            "files": [part.to_json() for part in parts],
            "oldest": oldest.number,
            "start": oldest.start,
            "rows": len(self._kind),
            "high": self._high,
            "filled": self.filled,
            "highest": self._highest,
        }
        return {}, meta

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
        priorities: Float64 | None = None
        for is_priorities, record in self._files.read(parts):
            if not is_priorities:
                self._insert(Chunk.from_bytes(record), skip=oldest)
                continue
            if priorities is None:
                priorities = np.zeros(int(meta["rows"]))
            rows, values = changes_in(record)
            priorities[rows] = values
        self.filled = int(meta["filled"])
        self._highest, self._high = float(meta["highest"]), int(meta["high"])
        if parts and len(self._kind) != int(meta["rows"]):
            raise CheckpointError(f"the replay buffer has {len(self._kind)} rows, the checkpoint's {meta['rows']}")
        self._dirty[:] = priorities is None  # a checkpoint that held them all itself: no file has them yet
        if self._tree is not None:
            rows = self._step_rows()
            self._tree.set(rows, priorities[rows] if priorities is not None else tensors["priorities"])

    # ---- inside

    @property
    def _oldest(self) -> _Segment:
        return self._segments[0] if self._segments else _Segment(self._number, 0, 0, 0)

    def _records(self) -> Iterator[Record]:
        """All that is in it, each segment a record."""
        for segment in self._segments:
            rows = slice(segment.start, segment.start + segment.rows)
            chunk = Chunk(
                {name: array[rows] for name, array in self._leaves.items()},
                *(self._reward[rows], self._kind[rows], self._after[rows] - segment.start),
                *(np.array([value], np.int64) for value in (segment.rows, segment.steps)),
                *(np.array([value], np.int64) for value in (segment.shard, segment.env, segment.epoch)),
            )
            yield Record(chunk.to_bytes(), segment.number, 1)
        if self._tree is not None:
            yield self._priorities(self._step_rows())

    def _changes(self) -> list[Record]:
        """The priorities that were set since the last state: those of new steps and of drawn ones."""
        if self._tree is None:
            return []
        rows = np.flatnonzero(self._dirty & (self._kind != EMPTY) & (self._kind != SEEN))
        return [self._priorities(rows)] if len(rows) else []

    def _priorities(self, rows: Index) -> Record:
        assert self._tree is not None
        return Record(changes_to_bytes(rows, self._tree.get(rows)), self._number, 0, is_priorities=True)

    def _clear(self) -> None:
        self.num_steps, self.filled = 0, 0
        self._leaves: Arrays = {}
        self._reward = np.zeros(0, np.float32)
        self._kind = np.zeros(0, np.uint8)
        self._after = np.zeros(0, np.int64)
        self._link = np.zeros(0, np.int64)
        self._segments: deque[_Segment] = deque()
        self._tails: dict[tuple[int, int], _Segment] = {}
        self._number, self._head, self._high = 0, 0, 0
        self._tree: SumTree | None = None
        self._dirty = np.zeros(0, np.bool_)  # rows whose priorities no state holds yet
        self._highest = 1.0

    def _allocate(self, chunk: Chunk) -> None:
        rows = max(1, self._options.capacity // row_bytes(chunk.leaves))
        self._leaves = {
            name: np.zeros((rows, *array.shape[1:]), array.dtype) for name, array in sorted(chunk.leaves.items())
        }
        self._reward, self._kind = np.zeros(rows, np.float32), np.zeros(rows, np.uint8)
        self._after, self._link = np.zeros(rows, np.int64), np.full(rows, -1, np.int64)
        self._tree = SumTree(rows) if self._options.prioritised else None
        self._dirty = np.zeros(rows, np.bool_)

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
        shard, env, epoch = (int(array[index]) for array in (chunk.shard, chunk.env, chunk.epoch))
        start = self._place(int(chunk.rows[index]))
        segment = _Segment(self._number, start, int(chunk.rows[index]), int(chunk.steps[index]), shard, env, epoch)
        self._number += 1
        target = slice(start, start + segment.rows)
        for name, array in chunk.leaves.items():
            self._leaves[name][target] = array[source]
        self._reward[target], self._kind[target] = chunk.reward[source], chunk.kind[source]
        self._after[target] = chunk.after[source] + start
        self._link[target] = -1
        self._join(self._tails.get((shard, env)), epoch, start)
        self._tails[shard, env] = segment
        self._segments.append(segment)
        self.num_steps += segment.steps
        if self._tree is not None:
            self._tree.set(np.arange(start, start + segment.steps), self._highest)
            self._dirty[start : start + segment.steps] = True

    def _join(self, before: _Segment | None, epoch: int, start: int) -> None:
        """Let the segment at `start` follow the one that its environment played before, when it does."""
        if before is None or before.epoch != epoch or before.number < self._oldest.number:
            return  # another owner's, or overwritten
        tail = before.start + before.steps
        seen = [array for name, array in self._leaves.items() if name.startswith("obs")]
        if all(array[tail].tobytes() == array[start].tobytes() for array in seen):
            self._link[tail] = start

    def _place(self, rows: int) -> int:
        """Where there is room for a segment, the oldest ones overwritten; never across the ring's end."""
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
        self._head += rows
        self._high = max(self._high, self._head)
        return self._head - rows

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
