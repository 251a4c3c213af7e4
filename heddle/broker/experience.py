"""Experience: the stream of pointers, the bytes behind them, what became of them, and the counters.

This module never decodes a batch or decides what becomes of it; only the trainer's group deletes, taps only read.
It hands out no entry that the append script did not write: the trainer's group sets such a one aside, a tap passes by.
"""

import logging
from collections.abc import Iterable, Sequence
from typing import Any

from redis.exceptions import ResponseError

from heddle.broker import keys
from heddle.broker.bulk import Bulk
from heddle.broker.connection import MAX_BLOCK_MS, Connection
from heddle.broker.dead import bury_foreign, dead_batches
from heddle.broker.experience_types import Flow, Pointer
from heddle.broker.pointers import by_bytes, identity_of, pointer_of, read_flow
from heddle.broker.records import integer, text, texts
from heddle.broker.refusals import check_leader, gone
from heddle.broker.settling import Settling
from heddle.broker.streams import LAST_ID
from heddle.broker.tickets import is_groupless

log = logging.getLogger("heddle.broker")

FORGET_CONSUMER_MS = 600_000
"""A trainer's consumer that holds nothing and was silent for this long is deleted; a living one comes back by reading.
"""
DEAD_ENTRIES = 1_000
DEAD_BYTES = 64 << 20
"""Caps of what is set aside; the oldest make room."""


class Experience(Settling):
    """Every call about experience, on one connection."""

    def __init__(self, conn: Connection, *, dead_entries: int = DEAD_ENTRIES, dead_bytes: int = DEAD_BYTES) -> None:
        self._conn = conn
        self._dead_caps = (dead_entries, dead_bytes)
        self._bulk = Bulk(conn)

    # ---- read

    def ensure_group(self, experiment: str, p: int, group: str = keys.TRAINER_GROUP, *, start: str = "0") -> None:
        """Make a consumer group unless it is there.

        Args:
            start: "0" for all that is in the stream, "$" for what comes from now on.

        Raises:
            Gone: the experiment was removed.
        """
        own = [keys.ctl(experiment, p), keys.experience(experiment, p)]
        if text(self._conn.script("group_make", own, [group, start])) == "GONE":
            raise gone(experiment)

    def read(self, experiment: str, p: int, group: str, consumer: str, *, count: int, block_ms: int) -> list[Pointer]:
        """The next entries of a group, `count` at most; waits for the first for `block_ms`, never above 2 s.

        After any error entries may have been handed to `consumer` unseen: `take_over` finds them.
        A group that the server lost is made anew (then nothing comes this time).

        Raises:
            Gone: the experiment was removed.
        """
        stream = keys.experience(experiment, p)
        block_ms = min(block_ms, MAX_BLOCK_MS)
        client, block = (self._conn.blocking(), block_ms) if block_ms > 0 else (self._conn.main, None)
        try:
            reply: Any = client.xreadgroup(group, consumer, {stream: ">"}, count=count, block=block)
        except ResponseError as error:
            self._recreate(experiment, p, group, error)
            return []
        return self._pointers(experiment, p, group, reply[0][1]) if reply else []

    def take_over(self, experiment: str, p: int, group: str, consumer: str) -> list[Pointer]:
        """Every entry that was delivered to anyone of the group and not acked, now `consumer`'s, in order.

        Entries that are gone from the stream are acked away. Does not raise the delivery counts.

        Raises:
            Gone: the experiment was removed.
        """
        own = [keys.ctl(experiment, p), keys.experience(experiment, p)]
        try:
            reply = self._conn.script("take_over", own, [group, consumer])
        except ResponseError as error:
            self._recreate(experiment, p, group, error)
            return []
        if text(reply[0]) == "GONE":
            raise gone(experiment)
        entries = [(entry, dict(zip(flat[::2], flat[1::2], strict=True))) for entry, flat in reply[1:]]
        return self._pointers(experiment, p, group, entries)

    def fetch(self, pointers: Sequence[Pointer]) -> list[bytes | None]:
        """The bytes behind pointers, in order; None where they are gone, or are no string any more.

        At most one byte more than a pointer announces: what somebody put in their place may be of any size.
        """
        found: list[bytes | None] = []
        for some in by_bytes(pointers):
            pipe = self._conn.pipeline()
            for pointer in some:
                pipe.getrange(pointer.blob_key, 0, pointer.bytes)
            try:
                replies = pipe.execute()
            except ResponseError as error:
                if "WRONGTYPE" not in str(error):
                    raise
                replies = [self._fetch_one(pointer) for pointer in some]
            found += [reply or None for reply in replies]
        return found

    def fetch_views(self, pointers: Sequence[Pointer]) -> list[bytes | memoryview | None]:
        """As `fetch`; large ones lie in memory that is used again once nobody looks at it, and were copied once."""
        return self._bulk.fetch(pointers, otherwise=self.fetch)

    def are_there(self, experiment: str, p: int, pointers: Sequence[Pointer]) -> list[bool]:
        """Whether each is in the stream still, and not forgotten by a broker that lost its tail."""
        now = self.find(experiment, p, [pointer.entry_id for pointer in pointers])
        pairs = zip(now, pointers, strict=True)
        return [one is not None and identity_of(one) == identity_of(pointer) for one, pointer in pairs]

    def peek(self, experiment: str, p: int, after: str, *, count: int) -> list[Pointer]:
        """Entries behind `after` that are in the stream now, `count` at most, read by nobody for it."""
        if after == LAST_ID:
            return []
        entries: Any = self._conn.main.xrange(keys.experience(experiment, p), f"({after}", "+", count=count)
        found = (pointer_of(experiment, p, text(entry), texts(fields)) for entry, fields in entries)
        return [pointer for pointer in found if pointer is not None]

    def find(self, experiment: str, p: int, entry_ids: Sequence[str]) -> list[Pointer | None]:
        """The batches of these entries; None where there is none (any more)."""
        found: list[Pointer | None] = []
        for entry_id in entry_ids:
            entries: Any = self._conn.main.xrange(keys.experience(experiment, p), entry_id, entry_id)
            found.append(pointer_of(experiment, p, entry_id, texts(entries[0][1])) if entries else None)
        return found

    # ---- as the leader

    def tidy(self, experiment: str, p: int, *, idle_ms: int = FORGET_CONSUMER_MS) -> int:
        """Delete consumers of the trainer's group that belong to ended seats and hold nothing; how many."""
        return int(self._conn.script("group_tidy", [keys.experience(experiment, p)], [keys.TRAINER_GROUP, idle_ms]))

    def recount(self, experiment: str, p: int, *, leader_epoch: int) -> int:
        """Give back the room of batches that somebody took out of the stream by hand, and count them as dropped; how
        many. Nothing while a trainer has one of them in hand: it settles that itself.

        Raises:
            LeaderLost, Gone: nothing was changed.
        """
        own = [keys.ctl(experiment, p), keys.experience(experiment, p), keys.flow(experiment, p)]
        reply = self._conn.script("recount", own, [leader_epoch, keys.TRAINER_GROUP])
        check_leader(experiment, text(reply[0]))
        return integer(reply[1])

    # ---- taps

    def ack_tap(self, experiment: str, p: int, group: str, entry_ids: Sequence[str]) -> None:
        """A tap is done with entries; they stay in the stream."""
        if entry_ids:
            self._conn.main.xack(keys.experience(experiment, p), group, *entry_ids)

    def remove_tap(self, experiment: str, p: int, group: str) -> None:
        """Remove a tap's group for good; again is no mistake. Raises ValueError for the trainer's."""
        if group == keys.TRAINER_GROUP:
            raise ValueError("the trainer's group is not a tap")
        try:
            self._conn.main.xgroup_destroy(keys.experience(experiment, p), group)
        except ResponseError as error:
            if "requires the key to exist" not in str(error):
                raise

    # ---- look

    def flow(self, experiment: str, p: int) -> Flow:
        """What is in flight, and every counter; zeros for an experiment without experience."""
        pipe = self._conn.pipeline()
        pipe.hgetall(keys.flow(experiment, p))
        pipe.zcard(keys.waiting(experiment, p))
        counters, waiting = pipe.execute()
        return read_flow(texts(counters), int(waiting))

    def dead(self, experiment: str, p: int, *, count: int = 100) -> list[tuple[Pointer, str]]:
        """The newest batches of workers that were set aside, each with the reason; `dead_batches` tells of all."""
        found = dead_batches(self._conn, experiment, p, count=count)
        return [(batch.pointer, batch.reason) for batch in found if batch.pointer is not None and not batch.foreign]

    # ---- inside

    def _fetch_one(self, pointer: Pointer) -> bytes | None:
        try:
            found: Any = self._conn.main.getrange(pointer.blob_key, 0, pointer.bytes)
        except ResponseError as error:
            if "WRONGTYPE" not in str(error):
                raise
            return None  # somebody put something else in its place
        return bytes(found)

    def _recreate(self, experiment: str, p: int, group: str, error: ResponseError) -> None:
        """After a read without its group: make it again, from the start: what was settled is no longer there."""
        if not is_groupless(error):
            raise error
        self.ensure_group(experiment, p, group)
        log.warning("made a group again that the server had lost experiment=%s group=%s", experiment, group)

    def _pointers(self, experiment: str, p: int, group: str, entries: Iterable[Any]) -> list[Pointer]:
        """Entries as pointers, but for those that no append wrote."""
        read = [(text(raw_id), texts(raw)) for raw_id, raw in entries]
        pointers = [pointer_of(experiment, p, entry, fields) for entry, fields in read]
        asked = [identity_of(pointer) for pointer in pointers if pointer is not None]
        known: Any = self._conn.main.hmget(keys.accepted(experiment, p), asked) if asked else []
        owners = iter(known)
        found, strangers = [], 0
        for (entry, fields), pointer in zip(read, pointers, strict=True):
            if pointer is not None and text(next(owners)) == entry:
                found.append(pointer)
            elif group == keys.TRAINER_GROUP:
                strangers += bury_foreign(self._conn, experiment, p, (entry, fields), caps=self._dead_caps)
            elif pointer is not None and not self._conn.main.xrange(keys.experience(experiment, p), entry, entry):
                found.append(pointer)  # settled since it was read: to a tap, one that it missed
            else:
                strangers += 1
                self._conn.main.xack(keys.experience(experiment, p), group, entry)
        if strangers:
            log.warning(
                "passed over entries that no worker wrote experiment=%s group=%s count=%d", experiment, group, strangers
            )
        return found
