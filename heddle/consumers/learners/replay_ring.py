"""The ring of a replay buffer: the steps of the newest segments in rows, the oldest overwritten, and what joins them.

It never draws and never writes a file. Successive segments of one (shard, env, epoch) are joined where the first ends
with the observation that the second begins with, so that n-step returns reach across their border; across an episode's
end they never do.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from heddle.consumers.learners.replay_chunk import EMPTY, SEEN, Chunk, row_bytes
from heddle.consumers.learners.sum_tree import Index, SumTree
from heddle.errors import ExperimentFailed
from heddle.policies.base import Arrays
from heddle.spec.learning import ReplayOptions


@dataclass(frozen=True, slots=True)
class Segment:
    """Where one segment lies.

    Attributes:
        number: counted from the beginning of the run.
        start, rows: where in the ring; `steps` of the rows can be drawn.
        shard, env, epoch: who played it.
    """

    number: int
    start: int
    rows: int
    steps: int
    shard: int = 0
    env: int = 0
    epoch: int = 0


class Ring:
    """Rows of the newest segments that `options.capacity` bytes hold; the first segment tells how wide a row is.

    Attributes:
        num_steps: steps in it.
        leaves: name -> [rows, ...], of each step what was observed and done.
        reward: [rows] float32; kind: [rows] uint8, see `replay_chunk`.
        after: [rows] int64, the row of the observation after the step; link: [rows] int64, the row at which the next
            segment goes on, -1 for none.
        tree: the priorities; None where drawing is uniform.
        dirty: [rows] bool, whose priorities were set since somebody cleared it.
        number: of the segment that comes next.
        head, high: row that it goes to, where there is room before the ring's end, and the highest one ever used.
    """

    def __init__(self, options: ReplayOptions) -> None:
        self._options = options
        self.num_steps = 0
        self.leaves: Arrays = {}
        self.reward = np.zeros(0, np.float32)
        self.kind = np.zeros(0, np.uint8)
        self.after = np.zeros(0, np.int64)
        self.link = np.zeros(0, np.int64)
        self.tree: SumTree | None = None
        self.dirty = np.zeros(0, np.bool_)
        self.number, self.head, self.high = 0, 0, 0
        self._segments: deque[Segment] = deque()
        self._tails: dict[tuple[int, int], Segment] = {}

    @property
    def oldest(self) -> Segment:
        """The oldest segment in it; an empty one that comes next where there is none."""
        return self._segments[0] if self._segments else Segment(self.number, 0, 0, 0)

    def insert(self, chunk: Chunk, *, skip: int, priority: float) -> None:
        """Put in the segments from number `skip` on, each step with that priority.

        Raises:
            ExperimentFailed: one segment alone needs more rows than there are.
        """
        if not len(self.kind):
            self._allocate(chunk)
        begin = 0
        for index, rows in enumerate(chunk.rows.tolist()):
            if self.number >= skip:
                self._put(chunk, index, slice(begin, begin + rows), priority)
            else:
                self.number += 1
            begin += rows

    def step_rows(self) -> Index:
        """The rows of all steps that can be drawn."""
        return np.flatnonzero((self.kind != EMPTY) & (self.kind != SEEN))

    def dirty_rows(self) -> Index:
        """Those of them whose priority was set since `dirty` was cleared."""
        return np.flatnonzero(self.dirty & (self.kind != EMPTY) & (self.kind != SEEN))

    def chunks(self) -> Iterator[tuple[int, Chunk]]:
        """Each segment by itself, with its number, oldest first."""
        for segment in self._segments:
            rows = slice(segment.start, segment.start + segment.rows)
            yield (
                segment.number,
                Chunk(
                    {name: array[rows] for name, array in self.leaves.items()},
                    *(self.reward[rows], self.kind[rows], self.after[rows] - segment.start),
                    *(np.array([value], np.int64) for value in (segment.rows, segment.steps)),
                    *(np.array([value], np.int64) for value in (segment.shard, segment.env, segment.epoch)),
                ),
            )

    def _allocate(self, chunk: Chunk) -> None:
        rows = max(1, self._options.capacity // row_bytes(chunk.leaves))
        self.leaves = {
            name: np.zeros((rows, *array.shape[1:]), array.dtype) for name, array in sorted(chunk.leaves.items())
        }
        self.reward, self.kind = np.zeros(rows, np.float32), np.zeros(rows, np.uint8)
        self.after, self.link = np.zeros(rows, np.int64), np.full(rows, -1, np.int64)
        self.tree = SumTree(rows) if self._options.prioritised else None
        self.dirty = np.zeros(rows, np.bool_)

    def _put(self, chunk: Chunk, index: int, source: slice, priority: float) -> None:
        shard, env, epoch = (int(array[index]) for array in (chunk.shard, chunk.env, chunk.epoch))
        start = self._place(int(chunk.rows[index]))
        segment = Segment(self.number, start, int(chunk.rows[index]), int(chunk.steps[index]), shard, env, epoch)
        self.number += 1
        target = slice(start, start + segment.rows)
        for name, array in chunk.leaves.items():
            self.leaves[name][target] = array[source]
        self.reward[target], self.kind[target] = chunk.reward[source], chunk.kind[source]
        self.after[target] = chunk.after[source] + start
        self.link[target] = -1
        self._join(self._tails.get((shard, env)), epoch, start)
        self._tails[shard, env] = segment
        self._segments.append(segment)
        self.num_steps += segment.steps
        if self.tree is not None:
            self.tree.set(np.arange(start, start + segment.steps), priority)
            self.dirty[start : start + segment.steps] = True

    def _join(self, before: Segment | None, epoch: int, start: int) -> None:
        """Let the segment at `start` follow the one that its environment played before, when it does."""
        if before is None or before.epoch != epoch or before.number < self.oldest.number:
            return  # another owner's, or overwritten
        tail = before.start + before.steps
        seen = [array for name, array in self.leaves.items() if name.startswith("obs")]
        if all(array[tail].tobytes() == array[start].tobytes() for array in seen):
            self.link[tail] = start

    def _place(self, rows: int) -> int:
        """Where there is room for a segment, the oldest ones overwritten; never across the ring's end."""
        capacity = len(self.kind)
        if rows > capacity:
            raise ExperimentFailed(
                f"trainer.replay.capacity = {self._options.capacity} holds {capacity} rows, one segment needs {rows}:"
                " raise it, or lower rollout.steps"
            )
        if self.head + rows > capacity:
            self._overwrite(self.head, capacity)
            self.head = 0
        self._overwrite(self.head, self.head + rows)
        self.head += rows
        self.high = max(self.high, self.head)
        return self.head - rows

    def _overwrite(self, start: int, stop: int) -> None:
        """Take out every segment that lies in these rows. They are the oldest."""
        while self._segments and start <= self._segments[0].start < stop:
            old = self._segments.popleft()
            self.kind[old.start : old.start + old.rows] = EMPTY
            self.num_steps -= old.steps
            if self.tree is not None:
                self.tree.set(np.arange(old.start, old.start + old.steps), 0.0)
