"""Packing: the bytes of a batch on their way, in shared memory where the readers see it, else in this process.

It never sends anything. What cannot be shared now goes through the broker, batch by batch; nothing fails for it.
"""

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heddle.batch import checksum, encode, encode_folded, encode_into, encode_like, finish_in, places, spot_check
from heddle.blocks import Blocks
from heddle.errors import BrokerError, Denied, PlaneError
from heddle.folding import Folded
from heddle.layout import Layout, Segments
from heddle.plane import Home, Ring, Slot
from heddle.plane.ring import REUSED_FROM
from heddle.producers.folds import Folds
from heddle.producers.pieces import Piece, Pieces
from heddle.producers.play import Play
from heddle.producers.reel import Reel
from heddle.spec import ExperimentSpec
from heddle.spec.sharing import least_shared

log = logging.getLogger("heddle.worker")

FINALS = 16
"""Of a buffer in which a batch is played so much more is made, for the final observations of truncated episodes."""
IN_PLACE_FROM = REUSED_FROM
"""Smaller batches are played in this process's own memory and copied: their buffers are used once."""
MOST_SIZES = 16
"""Numbers of segments of which is found out what surrounds their arrays: that takes as long as five batches do."""


@dataclass(frozen=True, slots=True)
class Packed:
    """An encoded batch.

    Attributes:
        blob: its bytes.
        crc32: `checksum` of them, or `spot_check` where they lie in shared memory.
        slot: where they lie then; None for this process's own memory.
    """

    blob: memoryview
    crc32: int
    slot: Slot | None = None

    def drop(self) -> None:
        """Nobody shall ever read it."""
        if self.slot is not None:
            self.slot.discard()


class Packer:
    """Packs the batches of one experiment.

    Args:
        home: opens the experiment's shared memory on this host; called once, when somebody wants batches there.
    """

    def __init__(self, spec: ExperimentSpec, home: Callable[[], Home]) -> None:
        self._compression = spec.rollout.compression
        self._least = least_shared(spec)
        self._home = home
        self._ring: Ring | None = None
        self._pieces, self._scratch = Pieces(), Blocks()
        self._folds = Folds(spec)
        self._reels: dict[Slot | Piece, Reel] = {}
        self._sizes = set[int]()  # numbers of segments of batches that came before
        self._broken = False
        self._said = ""

    def pack(self, layout: Layout, segments: Segments, plane: str, shard: int = 0) -> Packed:
        """The bytes of `segments`.

        Args:
            plane: token of the shared memory that every reader can map; "" for none.
            shard: that played them.
        """
        reel = segments.owner if isinstance(segments.owner, Reel) else None
        slot = None if reel is None else reel.slot
        if reel is not None:
            reel.slot = None
        if self._least is None or isinstance(slot, Piece):
            return self._own(layout, segments, slot, shard)
        is_large = plane != "" and layout.segment_bytes * segments.rows >= self._least
        ring = self._ring_of(plane) if is_large else None
        if ring is not None:
            try:
                return self._share(layout, segments, ring, slot, shard)
            except PlaneError as error:
                self._say(str(error))
                if not ring.folder.exists():  # somebody emptied it
                    self.close()
        return self._own(layout, segments, slot, shard)

    def _own(self, layout: Layout, segments: Segments, slot: Slot | Piece | None, shard: int) -> Packed:
        """In memory of our own: where it was played, if it lies there as it is sent."""
        try:
            folded = self._folds.fold(layout, segments, shard=shard, is_shared=False)
            done = finish_in(layout, segments, slot.view()) if isinstance(slot, Piece) and folded is None else None
            if isinstance(slot, Piece) and done is not None:
                crc32 = checksum(done)
                return Packed(slot.sent(len(done)), crc32)
            packed = self._elsewhere(layout, segments, folded)
        except BaseException:
            if slot is not None:
                slot.discard()
            raise
        if slot is not None:
            slot.discard()
        return packed

    def _elsewhere(self, layout: Layout, segments: Segments, folded: Folded | None) -> Packed:
        if folded is not None and self._compression is None:
            return self._own_folded(layout, folded)
        sent = segments if folded is None else folded.gathered(self._scratch.take)
        like = encode_like(layout, sent) if self._compression is None and self._is_usual(layout, sent) else None
        blob = like or encode(layout, sent, compression=self._compression)
        return Packed(blob, checksum(blob))

    def _is_usual(self, layout: Layout, segments: Segments) -> bool:
        """It is small, which is where Arrow's work shows, and another one had as many segments."""
        rows = segments.rows
        if layout.segment_bytes * rows >= IN_PLACE_FROM:
            return False
        is_usual = rows in self._sizes
        if len(self._sizes) < MOST_SIZES:
            self._sizes.add(rows)
        return is_usual

    def _own_folded(self, layout: Layout, folded: Folded) -> Packed:
        """Each frame once, in memory that is used again."""
        used: list[Piece] = []

        def take(size: int) -> memoryview:
            used.append(self._pieces.take(size))
            return used[0].view()

        try:
            blob = encode_folded(layout, folded, take, self._scratch.take)
        except BaseException:
            for piece in used:
                piece.discard()
            raise
        crc32 = checksum(blob)
        return Packed(used[0].sent(len(blob)), crc32)

    def lend(self, player: Play, layout: Layout, plane: str) -> None:
        """Have the player play its next batch where it will lie or be sent from, if it is large.

        Args:
            plane: as of `pack`.
        """
        size = layout.segment_bytes * player.plan.lanes
        if self._folds.is_folding(player.plan.index):  # it is copied anyway
            player.shared = _none
        elif self._least is not None and plane != "" and size >= max(self._least, IN_PLACE_FROM):
            player.shared = partial(self._reel, player, layout, plane)
        elif self._compression is None and size >= IN_PLACE_FROM:
            player.shared = partial(self._own_reel, player, layout)
        else:
            player.shared = _none

    def _reel(self, player: Play, layout: Layout, plane: str) -> Reel | None:
        lanes = player.plan.lanes
        ring = self._ring_of(plane)
        if ring is None:
            return None
        where = places(layout, lanes)
        try:
            slot = ring.take(where.size + where.size // FINALS)
        except PlaneError as error:
            self._say(str(error))
            return None
        self._reels = {slot: reel for slot, reel in self._reels.items() if isinstance(slot, Slot) and not slot.is_gone}
        return self._reel_in(slot, player, layout)

    def _own_reel(self, player: Play, layout: Layout) -> Reel | None:
        where = places(layout, player.plan.lanes)
        if where.stencil is None:
            return None
        piece = self._pieces.take(where.size)
        self._reels = {slot: reel for slot, reel in self._reels.items() if slot in self._pieces}
        return self._reel_in(piece, player, layout)

    def _reel_in(self, slot: Slot | Piece, player: Play, layout: Layout) -> Reel:
        lanes, reel = player.plan.lanes, self._reels.get(slot)
        if reel is None or reel.layout is not layout or len(reel.lengths) != lanes:
            lying = _arrays(layout, lanes, slot, places(layout, lanes).offsets)
            reel = self._reels[slot] = Reel(layout, lanes, player.plan.agents, shared=lying)
        reel.slot = slot
        return reel

    def close(self) -> None:
        """No batch of the experiment is played here any more."""
        self._reels.clear()
        self._pieces, self._scratch = Pieces(), Blocks()
        if self._ring is not None:
            self._ring.close()
            self._ring = None

    def _share(self, layout: Layout, segments: Segments, ring: Ring, own: Slot | None, shard: int) -> Packed:
        """Into `own`, where its arrays lie already, if there is room for its final observations; else into another."""
        folded = self._folds.fold(layout, segments, shard=shard, is_shared=True)
        if folded is None and own is not None and (done := finish_in(layout, segments, own.view())) is not None:
            return Packed(done, spot_check(done), own)
        used: list[Slot] = []

        def take(size: int) -> memoryview:
            is_room = own is not None and folded is None and size <= own.size
            used.append(own if own is not None and is_room else ring.take(size))
            return used[0].view()

        try:
            if folded is None:
                is_usual = own is None and self._is_usual(layout, segments)
                like = encode_like(layout, segments, take) if is_usual else None
                blob = like or encode_into(layout, segments, take)
            else:
                blob = encode_folded(layout, folded, take, self._scratch.take)
        except PlaneError:  # its caller goes on with `own`
            raise
        except BaseException:
            for slot in [*used, own]:
                if slot is not None:
                    slot.discard()
            raise
        if own is not None and used[0] is not own:
            own.discard()
        return Packed(blob, spot_check(blob), used[0])

    def _ring_of(self, plane: str) -> Ring | None:
        """This host's buffers, where that is what the readers see."""
        if self._ring is None and self._broken:
            return None
        if self._ring is None:
            try:
                home = self._home()
                self._ring = Ring(home)
            except (PlaneError, BrokerError, Denied) as error:
                self._broken = not isinstance(error, BrokerError)
                self._say(str(error))
                return None
        if self._ring.token != plane:
            self._say(f"the trainer's shared memory is not this host's: {plane}")
            return None
        return self._ring

    def _say(self, why: str) -> None:
        """Once for each reason in a row."""
        if why != self._said:
            self._said = why
            log.info("batches go through the broker because %s", why)


def _none() -> None:
    """The player's own memory."""


def _arrays(layout: Layout, rows: int, slot: Slot | Piece, offsets: Mapping[str, int]) -> dict[str, NDArray[Any]]:
    """The arrays of a batch where they lie once it is encoded there."""
    found: dict[str, NDArray[Any]] = {}
    for name, offset in offsets.items():
        column = layout.column(name)
        shape = (rows, *column.row_shape(layout.steps))
        flat = np.frombuffer(slot.view(), np.dtype(column.dtype), math.prod(shape), offset)
        found[name] = flat.reshape(shape)
    return found
