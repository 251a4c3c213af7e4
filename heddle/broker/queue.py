"""The queue of submitted experiments, as the leading coordinator reads it.

This module never decides whether an experiment is admitted.
"""

from collections.abc import Callable
from typing import Any

from redis.exceptions import ResponseError

from heddle.broker import keys
from heddle.broker.connection import MAX_BLOCK_MS, Connection
from heddle.broker.records import QueueEntry, entries, text
from heddle.errors import BrokerUnreachable

TAKE_OVER_MS = 3_000
"""An entry that was read and not acked for this long is read anew: one leader's lease."""

FORGET_CONSUMER_MS = 600_000
"""A coordinator's consumer that holds nothing and was silent for this long is deleted."""


def read(conn: Connection, consumer: str, *, block_ms: int, count: int) -> list[QueueEntry]:
    """The next submitted experiments: those that a vanished coordinator had read first, then new ones.

    From here on an experiment's keys outlast its unfinished submit; entries of removed experiments are acked away.
    """
    entries = _stranded(conn, consumer, count) or _new(conn, consumer, block_ms, count)
    return [entry for entry in entries if _keep(conn, entry)]


def ack(conn: Connection, entry_id: str) -> None:
    """Take an entry that was admitted (or refused for good) out of the queue; again is no mistake.

    No MULTI, which is refused when the memory is full. XDEL goes first: an entry deleted and still pending is dropped
    by the next take-over, one acked and not deleted would stay for ever.
    """
    pipe = conn.pipeline()
    pipe.xdel(keys.QUEUE, entry_id)
    pipe.xack(keys.QUEUE, keys.QUEUE_GROUP, entry_id)
    pipe.execute()


def tidy(conn: Connection, idle_ms: int = FORGET_CONSUMER_MS) -> int:
    """Delete consumers of coordinators that are gone and hold nothing; how many."""
    return int(conn.script("group_tidy", [keys.QUEUE], [keys.QUEUE_GROUP, idle_ms]))


def waiting(conn: Connection) -> list[QueueEntry]:
    """Every entry in the queue, read or not, oldest first."""
    return _entries(conn.main.xrange(keys.QUEUE))


def ensure_group(conn: Connection) -> None:
    """Make the queue and its group where they are missing; again is no mistake."""
    try:
        conn.main.xgroup_create(keys.QUEUE, keys.QUEUE_GROUP, id="0", mkstream=True)
    except ResponseError as error:
        if "BUSYGROUP" not in str(error):
            raise


def _stranded(conn: Connection, consumer: str, count: int) -> list[QueueEntry]:
    def claim() -> Any:
        return conn.main.xautoclaim(keys.QUEUE, keys.QUEUE_GROUP, consumer, min_idle_time=TAKE_OVER_MS, count=count)

    return _entries(_with_group(conn, claim)[1])


def _new(conn: Connection, consumer: str, block_ms: int, count: int) -> list[QueueEntry]:
    client = conn.blocking() if block_ms > 0 else conn.main
    block = min(block_ms, MAX_BLOCK_MS) if block_ms > 0 else None

    def fetch() -> Any:
        return client.xreadgroup(keys.QUEUE_GROUP, consumer, {keys.QUEUE: ">"}, count=count, block=block)

    reply = _with_group(conn, fetch)
    return _entries(reply[0][1]) if reply else []


def _with_group(conn: Connection, call: Callable[[], Any]) -> Any:
    """Call; where the queue or its group is gone (a server that lost its data), make it and call again.

    Raises:
        BrokerUnreachable: it went again meanwhile.
    """
    try:
        return call()
    except ResponseError as error:
        _check_missing(error)
    ensure_group(conn)
    try:
        return call()
    except ResponseError as error:
        _check_missing(error)
        raise BrokerUnreachable(f"{conn.url_redacted} lost the queue's group twice in a row: {error}") from error


def _check_missing(error: ResponseError) -> None:
    """Raise it again unless it says that the queue or its group is not there."""
    if "NOGROUP" not in str(error) and "UNBLOCKED" not in str(error):
        raise error


def _entries(page: Any) -> list[QueueEntry]:
    return [QueueEntry(entry_id, fields.get("experiment", "")) for entry_id, fields in entries(page)]


def _keep(conn: Connection, entry: QueueEntry) -> bool:
    """True when the experiment still exists; its keys have no TTL any more then."""
    experiment = entry.experiment
    own = [keys.ctl(experiment), keys.spec(experiment), keys.status(experiment), keys.experience(experiment, 0)]
    if text(conn.script("submit_confirm", own, [""])) == "OK":
        return True
    ack(conn, entry.entry_id)
    return False
