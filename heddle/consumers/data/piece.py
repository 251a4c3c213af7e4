"""Pieces of episodes: consecutive steps of one, and what there is of one that is under way.

Pure values.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Begin = Literal["reset", "joined", "continued"]
"""How an episode begins: at a reset; somewhere, for what was before is not recorded; where a cut one ended."""
End = Literal["terminated", "truncated", "cut", "more"]
"""How a piece ends: as the environment said; cut by a death, a missed batch or the end; or the next one follows."""
Arrays = dict[str, NDArray[Any]]


@dataclass(slots=True)
class Piece:
    """Consecutive steps of one episode, all of it unless it is very long.

    Attributes:
        episode: its number in the recording.
        step: number of the first step within the episode.
        shard, epoch, env, agent, kind: where and by whom it was played.
        begin: of the episode; "" in a later piece of it.
        end: of the piece; "" while it is open.
        steps: how many.
        arrays: by column, [steps, ...]; observation leaves without the last one.
        version: [steps] int64.
        last: the observation after the last step, by leaf; None where the environment's was not kept (terminated).
    """

    episode: int
    step: int
    shard: int
    epoch: int
    env: int
    agent: int
    kind: str
    begin: str
    end: str
    steps: int
    arrays: Arrays
    version: NDArray[np.int64]
    last: Arrays | None

    def since(self, step: int) -> "Piece | None":
        """What of it begins at `step` of the episode; None where it ends before."""
        skipped = max(0, step - self.step)
        if skipped >= self.steps:
            return None
        arrays = {name: array[skipped:] for name, array in self.arrays.items()}
        begin, left = "" if skipped else self.begin, self.steps - skipped
        return replace(
            self, step=self.step + skipped, begin=begin, steps=left, arrays=arrays, version=self.version[skipped:]
        )


def joined(parts: Sequence[Piece]) -> Piece:
    """Pieces that follow each other, as one."""
    arrays = {name: np.concatenate([part.arrays[name] for part in parts]) for name in parts[0].arrays}
    steps, version = sum(part.steps for part in parts), np.concatenate([part.version for part in parts])
    return replace(parts[0], end=parts[-1].end, steps=steps, arrays=arrays, version=version, last=parts[-1].last)


@dataclass(slots=True)
class Open:
    """An episode under way: the chunks of its piece so far, of which the first `told` were told.

    Attributes:
        head: who plays it, and how far it is.
        chunks, versions: as `Piece.arrays` and `Piece.version`, [steps, ...] each, one behind the other.
    """

    head: Piece
    chunks: list[Arrays]
    versions: list[NDArray[np.int64]]
    told: int = 0

    @property
    def size_bytes(self) -> int:
        """Of all chunks."""
        return sum(size_of(chunk) for chunk in self.chunks)

    def is_long(self, steps: int) -> bool:
        """Whether it is time to give out what there is of it."""
        return self.head.steps >= steps and len(self.chunks) > 1

    def piece(self, end: str, *, since: int = 0) -> Piece:
        """What there is of it from chunk number `since` on, in one."""
        head, chunks = self.head, self.chunks[since:]
        arrays = {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}
        last = None if end == "terminated" else head.last
        version = np.concatenate(self.versions[since:])
        begin, step = ("", head.step + head.steps - len(version)) if since else (head.begin, head.step)
        return Piece(
            *(head.episode, step, head.shard, head.epoch, head.env, head.agent, head.kind, begin, end),
            *(len(version), arrays, version, last),
        )


def size_of(chunk: Arrays) -> int:
    """Bytes of its arrays."""
    return sum(array.nbytes for array in chunk.values())
