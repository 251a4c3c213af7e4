"""The replay buffer of a learner: steps drawn uniformly or by priority, with n-step returns, and kept in files.

It never decides which steps make room for new ones: the ring does.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from heddle.consumers.learners.replay_chunk import EMPTY, SEEN, Chunk, changes_in, changes_to_bytes, row_bytes
from heddle.consumers.learners.replay_files import Part, Record, ReplayFiles
from heddle.consumers.learners.replay_ring import Ring
from heddle.consumers.learners.replay_sample import Sample, walk
from heddle.consumers.learners.sum_tree import Float64, Index, SumTree
from heddle.errors import CheckpointError
from heddle.policies.base import Array, Arrays
from heddle.spec.learning import ReplayOptions

PRIORITY_FLOOR = 1e-6
"""Added to every temporal difference, so that no step is never drawn again."""
FILES_AIMED_AT = 16
"""A file that reached this part of the capacity is followed by a new one: disk stays within that much above it."""
LEAST_ROLL_BYTES = 2**20


class Replay:
    """Steps of the newest segments that `options.capacity` bytes hold.

    Attributes:
        inserted: steps that were ever put in.
        filled: those of them since it was empty.

    Args:
        gamma: discount per step.
        seed: of the drawing.
    """

    def __init__(self, options: ReplayOptions, *, gamma: float, seed: int) -> None:
        self.inserted = 0
        self._options, self._gamma = options, gamma
        self._rng = np.random.default_rng([seed, 0x5250])
        self._files: ReplayFiles | None = None
        self._highest = 1.0
        self._clear()

    @property
    def num_steps(self) -> int:
        """Steps in it."""
        return self._ring.num_steps

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
        first = self._ring.number
        self._ring.insert(chunk, skip=0, priority=self._highest)
        self.inserted += int(chunk.steps.sum())
        self.filled += int(chunk.steps.sum())
        if self._files is not None:
            self._files.add(Record(chunk.to_bytes(), first, len(chunk.rows)), oldest=self._ring.oldest.number)

    def sample(self, count: int, *, beta: float = 1.0) -> Sample:
        """Draw `count` steps with replacement; by priority when the spec says so.

        Args:
            beta: how much of the bias of drawing by priority the weights take away, 0 to 1.
        """
        ring = self._ring
        rows, weights = self._drawn(count, beta)
        returns, discount, after = walk(
            rows,
            reward=ring.reward,
            kind=ring.kind,
            after=ring.after,
            link=ring.link,
            n_step=self._options.n_step,
            gamma=self._gamma,
        )
        following = {name: array[after] for name, array in ring.leaves.items() if name.startswith("obs")}
        leaves = {name: array[rows] for name, array in ring.leaves.items()}
        return Sample(rows, leaves, returns, discount, following, weights)

    def set_priorities(self, rows: Index, errors: Array) -> None:
        """Say how wrong the values of drawn steps [M] were; nothing happens when drawing is uniform."""
        if self._ring.tree is None:
            return
        priorities = (np.abs(errors.astype(np.float64)) + PRIORITY_FLOOR) ** self._options.alpha
        self._ring.tree.set(rows, priorities)
        self._ring.dirty[rows] = True
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
        oldest, changed = self._ring.oldest, self._changes()
        parts = self._files.commit(oldest=oldest.number, anew=self._records, also=changed)
        self._ring.dirty[:] = False
        meta |= {
            "files": [part.to_json() for part in parts],
            "oldest": oldest.number,
            "start": oldest.start,
            "rows": len(self._ring.kind),
            "high": self._ring.high,
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
        ring = self._ring
        ring.number = parts[0].first if parts else oldest
        ring.head = int(meta["start"])
        priorities: Float64 | None = None
        for is_priorities, record in self._files.read(parts):
            if not is_priorities:
                ring.insert(Chunk.from_bytes(record), skip=oldest, priority=self._highest)
                continue
            if priorities is None:
                priorities = np.zeros(int(meta["rows"]))
            rows, values = changes_in(record)
            priorities[rows] = values
        self.filled = int(meta["filled"])
        self._highest, ring.high = float(meta["highest"]), int(meta["high"])
        if parts and len(ring.kind) != int(meta["rows"]):
            raise CheckpointError(f"the replay buffer has {len(ring.kind)} rows, the checkpoint's {meta['rows']}")
        ring.dirty[:] = priorities is None  # a checkpoint that held them all itself: no file has them yet
        if ring.tree is not None:
            rows = ring.step_rows()
            ring.tree.set(rows, priorities[rows] if priorities is not None else tensors["priorities"])

    # ---- inside

    def _records(self) -> Iterator[Record]:
        """All that is in it, each segment a record."""
        for number, chunk in self._ring.chunks():
            yield Record(chunk.to_bytes(), number, 1)
        if self._ring.tree is not None:
            yield self._priorities(self._ring.tree, self._ring.step_rows())

    def _changes(self) -> list[Record]:
        """The priorities that were set since the last state: those of new steps and of drawn ones."""
        tree, rows = self._ring.tree, self._ring.dirty_rows()
        return [self._priorities(tree, rows)] if tree is not None and len(rows) else []

    def _priorities(self, tree: SumTree, rows: Index) -> Record:
        return Record(changes_to_bytes(rows, tree.get(rows)), self._ring.number, 0, is_priorities=True)

    def _clear(self) -> None:
        self._ring = Ring(self._options)
        self.filled = 0
        self._highest = 1.0

    def _drawn(self, count: int, beta: float) -> tuple[Index, Array]:
        if self._ring.tree is None:
            return self._uniform(count), np.ones(count, np.float32)
        total = self._ring.tree.total
        mass = (np.arange(count) + self._rng.random(count)) * (total / count)  # one from each of equal parts
        rows = self._ring.tree.find(np.minimum(mass, math.nextafter(total, 0.0)))
        chance: Float64 = self._ring.tree.get(rows) / total
        weights = (self.num_steps * chance) ** -beta
        return rows, (weights / weights.max()).astype(np.float32)

    def _uniform(self, count: int) -> Index:
        found: list[Index] = []
        missing = count
        while missing:
            drawn = self._rng.integers(0, self._ring.high, 2 * missing)
            kind = self._ring.kind[drawn]
            found.append(drawn[(kind != EMPTY) & (kind != SEEN)][:missing])
            missing -= len(found[-1])
        return np.concatenate(found)
