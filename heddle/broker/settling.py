"""Settling: what the holder of the seat says became of batches, and what it is about to load. Part of
`broker.experience`.

This module never reads the stream; every rule about who may settle is in the scripts.
"""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace

from heddle.broker import keys
from heddle.broker.connection import Connection
from heddle.broker.experience_types import Pointer, Settled
from heddle.broker.leases import BLOB_TTL_MS
from heddle.broker.pointers import pointer_fields
from heddle.broker.records import integer, text, texts
from heddle.broker.refusals import check_seat

BATCH = 500
"""Entries per script call."""


class Settling:
    """The calls of `Experience` that a trainer makes for what it was given."""

    _conn: Connection
    _dead_caps: tuple[int, int]

    def ack(
        self,
        experiment: str,
        p: int,
        seat_epoch: int,
        settled: Sequence[tuple[Pointer, Settled]],
        *,
        free: Callable[[Pointer], object] = lambda _: None,
    ) -> int:
        """Settle entries: gone from group and stream, bytes deleted, counted by what became of them.

        Works when the memory is full. May be called again: an entry is counted once. Each 500 are atomic.

        Args:
            free: told each batch to whose bytes no entry refers any more.

        Returns:
            How many were still there.

        Raises:
            SeatLost: another trainer holds the seat; nothing of these was settled (or only the first 500s).
            Gone: the experiment was removed.
        """
        acked = 0
        for start in range(0, len(settled), BATCH):
            some = settled[start : start + BATCH]
            own = [keys.ctl(experiment, p), keys.experience(experiment, p), keys.flow(experiment, p)]
            own += [pointer.blob_key for pointer, _ in some]
            args: list[str | int] = [seat_epoch, keys.TRAINER_GROUP]
            for pointer, outcome in some:
                args += [pointer.entry_id, outcome, pointer.bytes, pointer.steps]
            reply = self._conn.script("ack", own, args)
            check_seat(experiment, seat_epoch, text(reply[0]))
            acked += integer(reply[1])
            kept = {integer(number) - 1 for number in reply[2:]}
            for place, (pointer, _) in enumerate(some):
                if place not in kept:
                    free(pointer)
        return acked

    def set_aside(
        self,
        experiment: str,
        p: int,
        seat_epoch: int,
        pointer: Pointer,
        reason: str,
        keep_blob: bool = True,
        data: memoryview | None = None,
    ) -> bool:
        """Settle one entry as dead: its pointer and the reason go to the dead stream, which is capped.

        Args:
            keep_blob: keep its bytes, to be looked at, as long as there is room for them.
            data: its bytes, where the server has not got them: it gets them now, unless its memory is full.

        Returns:
            False when it was not in the stream any more.

        Raises:
            SeatLost, Gone: as for `ack`.
        """
        own = [keys.ctl(experiment, p), keys.experience(experiment, p), keys.flow(experiment, p)]
        own += [keys.dead(experiment, p), pointer.blob_key, keys.dead_blob(experiment, p, pointer.entry_id)]
        args: list[str | int] = [seat_epoch, keys.TRAINER_GROUP, pointer.entry_id, pointer.bytes, pointer.steps]
        args += [int(keep_blob), *self._dead_caps, reason]
        if data is None:
            reply = self._conn.script("dead", own, [*args, *pointer_fields(pointer)])
        else:
            here = replace(pointer, location="redis", place="", crc32=zlib.crc32(data))
            pipe = self._conn.pipeline()
            pipe.set(pointer.blob_key, data, px=BLOB_TTL_MS)
            *_, reply = pipe.script("dead", own, [*args, *pointer_fields(here)]).execute(raise_on_error=False)
            if isinstance(reply, Exception):
                raise reply
        check_seat(experiment, seat_epoch, text(reply[0]))
        return integer(reply[1]) == 1

    def set_loading(
        self, experiment: str, p: int, seat_epoch: int, entry_ids: Sequence[str], *, alone: bool = False
    ) -> None:
        """Name what is about to be loaded or trained on, in place of what was named before; nothing clears it.

        Args:
            alone: each is loaded with nothing else.

        Raises:
            SeatLost, Gone: as for `ack`.
        """
        own = [keys.ctl(experiment, p), keys.loading(experiment, p)]
        answer = self._conn.script("loading", own, [seat_epoch, int(alone), *entry_ids])
        check_seat(experiment, seat_epoch, text(answer))

    def loading(self, experiment: str, p: int) -> dict[str, bool]:
        """What was named last and never cleared: entry id -> it was alone."""
        named = texts(self._conn.main.hgetall(keys.loading(experiment, p)))
        return {entry: alone == "1" for entry, alone in named.items() if entry != "seat_epoch"}

    def roll_back(self, experiment: str, p: int, seat_epoch: int, *, batches: int, steps: int, trained: int) -> bool:
        """Count so much as rolled back that was acked as trained and is in no checkpoint; once for each seat.

        Args:
            batches, steps: below 0 for what was rolled back and is in a checkpoint after all.
            trained: batches that counted as trained when that was decided.

        Returns:
            False when others do now: the broker went back, and it is to be decided anew.

        Raises:
            SeatLost, Gone: as for `ack`.
        """
        own = [keys.ctl(experiment, p), keys.flow(experiment, p)]
        answer = text(self._conn.script("roll_back", own, [seat_epoch, batches, steps, trained]))
        check_seat(experiment, seat_epoch, answer)
        return answer == "OK"
