"""The joiner: segments of many shards in, whole episodes out, each step once.

Pure: it reads no stream and writes no file; what it must remember over a restart is plain values (`State`) and the
pieces that are open.

Episodes are joined by (shard, epoch, env). A new epoch is a new owner: what the old one left unfinished is cut. Where
the new one goes on exactly there, from a snapshot, its first episode begins as "continued": its first observation is
the one at which the cut one ended, bit for bit.

Who an owner is, and what is a repeat, is told as the trainer's marks tell it: where the broker forgot a new owner, the
old one goes on under its lower epoch, and what it gives then is new.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heddle.consumers.data.joiner_state import State
from heddle.consumers.data.piece import Arrays, Open, Piece, size_of
from heddle.consumers.marks import Mark, mark_of
from heddle.consumers.tap import TapBatch
from heddle.layout import Layout, Segments

PIECE_STEPS = 10_000
"""A longer episode is given out in pieces: so much is held of each environment at most."""
OPEN_BYTES = 256 * 2**20
"""So much is held of all episodes under way; above it the largest are given out in pieces."""


class Joiner:
    """Joins the segments of one experiment.

    Attributes:
        state: what must be remembered with `open_pieces`.

    Args:
        layout: of the batches.
        state, pieces: what an earlier joiner left; nothing for a new one.
        piece_steps: an episode is given out in pieces of about so many.
        open_bytes: of all episodes under way no more is held, but for the newest chunk of each.
    """

    def __init__(
        self,
        layout: Layout,
        state: State | None = None,
        pieces: Sequence[Piece] = (),
        *,
        piece_steps: int = PIECE_STEPS,
        open_bytes: int = OPEN_BYTES,
    ) -> None:
        self.state = state or State()
        self._leaves = [column.name for column in layout.columns if column.per == "step+1"]
        self._steps = [column.name for column in layout.columns if column.per == "step"]
        self._piece_steps, self._open_bytes = piece_steps, open_bytes
        self._open = {
            _key(piece.shard, piece.env, piece.agent): Open(piece, [piece.arrays], [piece.version], told=1)
            for piece in pieces
        }
        self._held_bytes = sum(one.size_bytes for one in self._open.values())

    def add(self, batch: TapBatch) -> list[Piece]:
        """The pieces that are whole with this batch; one that was added before adds nothing."""
        state, shard, mark = self.state, str(batch.shard), self.state.mark(batch.shard)
        if mark is not None and not mark.nonce and mark.epoch == batch.epoch:
            mark = replace(mark, nonce=batch.nonce)  # an older recording does not say it
        if mark is not None and mark.covers(batch):
            state.repeated += 1
            return []
        whole: list[Piece] = []
        if batch.shard < 0:
            if state.has(batch):
                state.repeated += 1
                return []
            state.replays.setdefault(shard, []).append(batch.nonce)
        missing = _missing(mark, batch)
        if missing is not None:
            state.missed += missing
            if missing:
                state.note_unseen(batch, missing)
            whole += self._lose(batch.shard)
        state.unknown.setdefault(shard, "reset")
        state.marks[shard] = mark_of(batch).after(mark).to_json()
        for row in range(batch.segments.rows):
            whole += self._add_row(batch, row)
        return whole + self._make_room()

    def open_pieces(self) -> list[Piece]:
        """What is under way; a joiner that is given these goes on from here."""
        return [one.piece("") for one in self._open.values()]

    def news(self) -> list[Piece]:
        """What came of the episodes under way since this was asked last; never the same steps twice."""
        found = [one.piece("", since=one.told) for one in self._open.values() if one.told < len(one.chunks)]
        for one in self._open.values():
            one.told = len(one.chunks)
        return found

    def under_way(self) -> dict[int, int]:
        """Episode -> the first step of it that was not given out."""
        return {one.head.episode: one.head.step for one in self._open.values()}

    def close(self) -> list[Piece]:
        """Cut everything that is under way: nothing more comes."""
        return [self._cut(key) for key in list(self._open)]

    # ---- inside

    def _lose(self, shard: int) -> list[Piece]:
        """Batches of a shard are missing: what is under way there is cut, and goes on somewhere."""
        state, prefix = self.state, f"{shard}/"
        cut = [self._cut(key) for key in list(self._open) if key.startswith(prefix)]
        for key in [key for key in state.begins if key.startswith(prefix)]:
            del state.begins[key]
        state.unknown[str(shard)] = "joined"
        return cut

    def _cut(self, key: str) -> Piece:
        self.state.cut += 1
        self.state.begins[key] = "joined"
        return self._taken(key).piece("cut")

    def _taken(self, key: str) -> Open:
        one = self._open.pop(key)
        self._held_bytes -= one.size_bytes
        return one

    def _make_room(self) -> list[Piece]:
        """Pieces of the largest episodes under way, while there is more than shall be held."""
        given: list[Piece] = []
        while self._held_bytes > self._open_bytes:
            key = max((key for key, one in self._open.items() if len(one.chunks) > 1), key=self._size, default=None)
            if key is None:
                break
            given.append(self._split(key))
        return given

    def _size(self, key: str) -> int:
        return self._open[key].size_bytes

    def _add_row(self, batch: TapBatch, row: int) -> Iterator[Piece]:
        arrays = batch.segments.arrays
        length = int(arrays["length"][row])
        if not length:
            return
        env, agent = int(arrays["env"][row]), int(arrays["agent"][row])
        key = _key(batch.shard, env, agent)
        yield from self._meet_owner(key, batch, row)
        over = arrays["terminated"][row, :length] | arrays["truncated"][row, :length]
        start = 0
        for stop in [*(np.flatnonzero(over) + 1).tolist(), length]:
            if stop > start:
                self._extend(key, batch, row, slice(start, stop), (env, agent))
            if stop and over[stop - 1] and stop > start:
                yield self._end(key, batch.segments, row, stop - 1)
            start = stop
        if key in self._open and self._open[key].is_long(self._piece_steps):
            yield self._split(key)

    def _meet_owner(self, key: str, batch: TapBatch, row: int) -> Iterator[Piece]:
        """Cut what another owner left unfinished, and see whether this one goes on there."""
        one = self._open.get(key)
        if one is None or one.head.epoch == batch.epoch:
            return
        last, arrays = one.head.last or {}, batch.segments.arrays
        goes_on = all(_equal(last[name], arrays[name][row, 0]) for name in self._leaves)
        yield self._cut(key)
        self.state.begins[key] = "continued" if goes_on else "reset"

    def _extend(self, key: str, batch: TapBatch, row: int, span: slice, who: tuple[int, int]) -> None:
        arrays = batch.segments.arrays
        chunk = {name: np.array(arrays[name][row, span]) for name in (*self._leaves, *self._steps)}
        steps = span.stop - span.start
        version = np.full(steps, int(arrays["version"][row]), np.int64)
        last = {name: np.array(arrays[name][row, span.stop]) for name in self._leaves}
        self._held_bytes += size_of(chunk)
        one = self._open.get(key)
        if one is None:
            self._open[key] = Open(self._begin(key, batch, who, steps, last), [chunk], [version])
            return
        one.chunks.append(chunk)
        one.versions.append(version)
        one.head.steps += steps
        one.head.last = last

    def _begin(self, key: str, batch: TapBatch, who: tuple[int, int], steps: int, last: Arrays) -> Piece:
        state = self.state
        begin = state.begins.pop(key, state.unknown[str(batch.shard)])
        episode = state.episode
        state.episode += 1
        nothing = np.zeros(0, np.int64)
        return Piece(episode, 0, batch.shard, batch.epoch, *who, batch.kind, begin, "", steps, {}, nothing, last)

    def _end(self, key: str, segments: Segments, row: int, step: int) -> Piece:
        one = self._taken(key)
        self.state.begins[key] = "reset"
        if segments.arrays["terminated"][row, step]:
            return one.piece("terminated")
        one.head.last = _final(segments, row, step, self._leaves)
        return one.piece("truncated")

    def _split(self, key: str) -> Piece:
        """Give out what there is of a long episode but its newest chunk, with which the next piece begins."""
        one = self._open[key]
        newest, versions, head = one.chunks.pop(), one.versions.pop(), one.head
        steps = len(versions)
        given = replace(head, steps=head.steps - steps, last={name: newest[name][0] for name in self._leaves})
        self._held_bytes -= one.size_bytes
        rest = replace(head, step=head.step + given.steps, steps=steps, begin="")
        self._open[key] = Open(rest, [newest], [versions], told=max(0, one.told - len(one.chunks)))
        return Open(given, one.chunks, one.versions).piece("more")


def _missing(mark: Mark | None, batch: TapBatch) -> int | None:
    """How many batches of its shard were never seen before this one; None where it may go on from the last one.

    Where the broker lost its tail it goes on from an earlier one, and none is missing. An owner whose successor the
    broker forgot goes on from its own last one. A replay follows nothing.
    """
    if batch.shard < 0:
        return 0
    own = None if mark is None else mark.earlier_seq(batch)
    if own is not None:
        return batch.seq - own - 1
    gap = batch.seq - (mark.seq if mark is not None else 0) - 1
    return max(gap, 0) if gap else None


def _key(shard: int, env: int, agent: int) -> str:
    return f"{shard}/{env}/{agent}"


def _equal(one: NDArray[Any], other: NDArray[Any]) -> bool:
    return one.tobytes() == np.ascontiguousarray(other).tobytes()


def _final(segments: Segments, row: int, step: int, leaf_names: Sequence[str]) -> Arrays:
    """The true last observation of an episode that was truncated there."""
    arrays: Mapping[str, NDArray[Any]] = segments.arrays
    at = np.flatnonzero((arrays["final_row"] == row) & (arrays["final_step"] == step))[0]
    return {name: np.array(arrays[f"final.{name}"][at]) for name in leaf_names}
