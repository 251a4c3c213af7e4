"""Tickets: hints in a pool's stream that a shard wants a worker. Part of `broker.shards`.

This module never decides who owns a shard: the shard's own hash does, and a ticket may be stale, double or lost.
"""

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from redis.exceptions import ResponseError

from heddle.broker import keys
from heddle.broker.connection import MAX_BLOCK_MS, Connection
from heddle.broker.records import integer, text, texts
from heddle.broker.streams import LAST_ID, add, after, is_id
from heddle.broker.types import QueuedTicket, Ticket
from heddle.errors import BrokerAmiss, BrokerFull, BrokerUnreachable

log = logging.getLogger("heddle.broker")

BATCH = 500
"""Entries per round trip."""
_SHARD = re.compile(r"[0-9]{1,9}")
_NOTED = re.compile(r"(-|[0-9]+-[0-9]+) ([0-9]{1,15})")
"""What `queued` says of a shard: its ticket, "-" for none, and since when."""


class Tickets:
    """The calls of `Shards` that only touch tickets."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn

    def read_ticket(self, pool: str, worker: str, *, block_ms: int) -> Ticket | None:
        """Take the next ticket of a pool; all else as in `read_tickets`."""
        return next(iter(self.read_tickets(pool, worker, count=1, block_ms=block_ms)), None)

    def read_tickets(self, pool: str, worker: str, *, count: int, block_ms: int) -> list[Ticket]:
        """Take the next tickets of a pool, `count` at most; nobody else gets them. Waits for the first, for at most
        `block_ms` (and never above 2 s).

        Whoever took them must drop each, claimed or not.

        Raises:
            BrokerFull: the group is missing and cannot be made for now.
            BrokerUnreachable: it went again as soon as it was made.
        """
        stream = keys.pool_tickets(pool)
        found, now_ms = self._read(stream, worker, count, min(block_ms, MAX_BLOCK_MS))
        if isinstance(found, Exception) and is_groupless(found):
            self._make_group(stream)
            found, now_ms = self._read(stream, worker, count, 0)
        if isinstance(found, Exception) and is_groupless(found):
            raise BrokerUnreachable(f"{self._conn.url_redacted} lost the tickets' group twice in a row: {found}")
        if isinstance(found, Exception):
            raise found
        page = found[0][1] if found else []
        return [_ticket(pool, text(entry_id), texts(fields), now_ms) for entry_id, fields in page]

    def peek_ticket(self, pool: str) -> Ticket | None:
        """The oldest ticket that nobody has taken, without taking it.

        It counts as urgent where one close behind is: nobody gets that before this one is out of the way.
        """
        reply = self._conn.script("ticket_peek", [keys.pool_tickets(pool)], [keys.TICKET_GROUP])
        if len(reply) == 1:
            return None
        now, entry_id, flat, waiting, urgent = reply
        fields = {text(flat[i]): text(flat[i + 1]) for i in range(0, len(flat), 2)}
        return replace(_ticket(pool, text(entry_id), fields, integer(now)), waiting=int(waiting), urgent=urgent == 1)

    def drop_ticket(self, ticket: Ticket) -> None:
        """Remove a ticket that was read; again is no mistake."""
        self._drop(ticket.pool, [ticket.entry_id])

    def drop_tickets_read(self, tickets: Sequence[Ticket]) -> None:
        """The same of several of one pool."""
        if tickets:
            self._drop(tickets[0].pool, [ticket.entry_id for ticket in tickets])

    def queue_ticket(self, experiment: str, p: int, shard: int, pool: str, *, urgent: bool = False) -> bool:
        """Issue a ticket for a queued shard in place of the one it may have had.

        Args:
            urgent: its last owner died: it may be taken above quota.

        Returns:
            False when the shard does not wait for a worker (any more); no ticket stays then.

        Raises:
            BrokerFull: not issued; to be tried again.
        """
        return self.queue_tickets(experiment, p, [shard], pool, urgent=urgent) == 1

    def queue_tickets(self, experiment: str, p: int, shards: Iterable[int], pool: str, *, urgent: bool = False) -> int:
        """`queue_ticket` for several shards in three round trips; how many got one."""
        wanted = list(shards)
        if not wanted:
            return 0
        stream = keys.pool_tickets(pool)
        urgency = "1" if urgent else "0"
        tickets = [{"experiment": experiment, "partition": p, "shard": shard, "urgent": urgency} for shard in wanted]
        issued = add(self._conn, stream, tickets)
        pipe = self._conn.pipeline()
        for shard, entry in zip(wanted, issued, strict=True):
            own = [keys.ctl(experiment, p), keys.shard(experiment, p, shard), keys.queued(experiment, p)]
            pipe.script("ticket_note", own, [shard, entry])
        replies = [(text(status), text(old)) for status, old in pipe.execute()]
        superfluous = [entry for entry, (status, _) in zip(issued, replies, strict=True) if status != "OK"]
        self._drop(pool, superfluous + [old for _, old in replies if is_id(old)])
        return len(wanted) - len(superfluous)

    def tickets_of(self, experiment: str, p: int) -> list[QueuedTicket]:
        """Every shard that waits for a worker, and whether its ticket is still there."""
        queued = texts(self._conn.main.hgetall(keys.queued(experiment, p)))
        found = {shard: _NOTED.fullmatch(noted) for shard, noted in queued.items()}
        # Nobody looks for a ticket that somebody noted by hand: that shard's is issued anew.
        known = {int(shard): one for shard, one in found.items() if _SHARD.fullmatch(shard)}
        noted = {shard: (one[1], one[2]) if one and _may_be(one[1]) else ("-", "0") for shard, one in known.items()}
        stream = keys.pool_tickets(self._pool_of(experiment))
        issued = [(shard, entry) for shard, (entry, _) in noted.items() if entry != "-"]
        entries = [entry for _, entry in issued]
        replies = (self._seen_each if len(entries) <= BATCH else self._seen_in_pages)(stream, entries)
        seen = {shard: pair for (shard, _), pair in zip(issued, replies, strict=True)}
        return [
            _queued(shard, "" if entry == "-" else entry, integer(since), seen.get(shard, ([], [])))
            for shard, (entry, since) in sorted(noted.items())
        ]

    def drop_tickets(self, experiment: str, p: int, pool: str) -> int:
        """Remove every ticket of an experiment from a pool; how many there were.

        None are left where somebody put something else in the place of them all.
        """
        try:
            return self._drop_tickets(experiment, p, pool)
        except BrokerAmiss as error:
            log.warning("dropped no tickets experiment=%s error=%s", experiment, error)
            return 0

    def _drop_tickets(self, experiment: str, p: int, pool: str) -> int:
        stream, last, dropped = keys.pool_tickets(pool), "-", 0
        while entries := self._conn.main.xrange(stream, min=last, max="+", count=BATCH):
            mine = []
            for entry_id, raw in entries:
                ticket = _ticket(pool, text(entry_id), texts(raw), 0)
                if (ticket.experiment, ticket.partition) == (experiment, p):
                    mine.append(ticket.entry_id)
            dropped += self._drop(pool, mine)
            if (newest := text(entries[-1][0])) == LAST_ID:
                break
            last = after(newest)
        return dropped

    # ---- inside

    def _read(self, stream: str, worker: str, count: int, block_ms: int) -> tuple[Any, int]:
        """What XREADGROUP answered, or its error, and the server's time then."""
        pipe = (self._conn.blocking() if block_ms > 0 else self._conn.main).pipeline(transaction=False)
        block = block_ms if block_ms > 0 else None
        pipe.xreadgroup(keys.TICKET_GROUP, worker, {stream: ">"}, count=count, block=block)
        pipe.time()
        found, now = pipe.execute(raise_on_error=False)
        if isinstance(now, Exception):
            raise now
        seconds, micros = now
        return found, int(seconds) * 1000 + int(micros) // 1000

    def _seen_each(self, stream: str, entries: Sequence[str]) -> list[tuple[Any, Any]]:
        """What XRANGE and XPENDING say of each of some tickets, asked one by one."""
        pipe = self._conn.pipeline()
        for entry in entries:
            pipe.xrange(stream, entry, entry)
            pipe.xpending_range(stream, keys.TICKET_GROUP, entry, entry, 1)
        replies = pipe.execute(raise_on_error=False) if entries else []
        return list(zip(replies[::2], replies[1::2], strict=True))

    def _seen_in_pages(self, stream: str, entries: Sequence[str]) -> list[tuple[Any, Any]]:
        """The same of many: whole pages of what lies between the first and the last of them."""
        first, last = min(entries, key=_order), max(entries, key=_order)
        there = {text(entry) for entry, _ in self._pages(partial(self._conn.main.xrange, stream), first, last)}
        read = partial(self._conn.main.xpending_range, stream, keys.TICKET_GROUP)
        try:
            pending = {text(found["message_id"]): found for found in self._pages(read, first, last)}
        except ResponseError as error:
            if "NOGROUP" not in str(error):
                raise
            pending = {}
        return [([entry] if entry in there else [], [pending[entry]] if entry in pending else []) for entry in entries]

    def _pages(self, read: Callable[..., Any], first: str, last: str) -> Iterator[Any]:
        while page := read(min=first, max=last, count=BATCH):
            yield from page
            newest = text(page[-1]["message_id"] if isinstance(page[-1], dict) else page[-1][0])
            if newest == LAST_ID:
                return
            first = after(newest)

    def _make_group(self, stream: str) -> None:
        try:
            self._conn.main.xgroup_create(stream, keys.TICKET_GROUP, id="0", mkstream=True)
        except ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise

    def _pool_of(self, experiment: str) -> str:
        return text(self._conn.main.hget(keys.spec(experiment), "pool")) or "default"

    def _issue(self, experiment: str, p: int, shards: Sequence[int], *, urgent: bool) -> None:
        """Issue tickets as far as there is room; the leader issues the others anew."""
        if not shards:
            return
        try:
            self.queue_tickets(experiment, p, shards, self._pool_of(experiment), urgent=urgent)
        except (BrokerFull, BrokerAmiss) as error:
            log.warning(
                "tickets wait for the coordinator experiment=%s shards=%d error=%s", experiment, len(shards), error
            )

    def _drop(self, pool: str, entries: Sequence[str]) -> int:
        if not entries:
            return 0
        stream = keys.pool_tickets(pool)
        pipe = self._conn.pipeline()  # no MULTI, which is refused when the memory is full; XDEL first, as in the queue
        pipe.xdel(stream, *entries)
        pipe.xack(stream, keys.TICKET_GROUP, *entries)
        return int(pipe.execute()[0])


def _order(entry: str) -> tuple[int, int]:
    """Where an entry stands in its stream."""
    ms, _, number = entry.partition("-")
    return int(ms), int(number or 0)


def _may_be(noted: str) -> bool:
    """What `queued` says of a shard's ticket may be one."""
    return noted == "-" or is_id(noted)


def is_groupless(error: Exception) -> bool:
    """True for a read that failed because its group or stream is not there (any more)."""
    return isinstance(error, ResponseError) and any(word in str(error) for word in ("NOGROUP", "UNBLOCKED"))


def _ticket(pool: str, entry_id: str, fields: dict[str, str], now_ms: int) -> Ticket:
    """An entry as a ticket; one that somebody wrote by hand, and that makes no sense, is for no experiment."""
    experiment, numbers = fields.get("experiment", ""), [fields.get(name) or "0" for name in ("partition", "shard")]
    if not all(number.isascii() and number.isdigit() and len(number) < 10 for number in numbers):
        experiment, numbers = "", ["0", "0"]
    return Ticket(
        experiment=experiment,
        partition=int(numbers[0]),
        shard=int(numbers[1]),
        pool=pool,
        entry_id=entry_id,
        age_ms=max(0, now_ms - int(entry_id.partition("-")[0])),
        urgent=fields.get("urgent") == "1",
    )


def _queued(shard: int, entry: str, since_ms: int, seen: tuple[Any, Any]) -> QueuedTicket:
    there, pending = seen
    for reply in seen:
        if isinstance(reply, Exception) and "NOGROUP" not in str(reply):
            raise reply
    read_ms_ago = None
    if isinstance(pending, list) and pending:
        read_ms_ago = int(pending[0]["time_since_delivered"])
    return QueuedTicket(shard, entry, isinstance(there, list) and bool(there), read_ms_ago, since_ms)
