"""Beats: the last heartbeats of many workers, read a part at a time.

It never writes, and no look holds the broker up for longer than one part takes.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from heddle.broker import keys
from heddle.broker.connection import Connection
from heddle.broker.presence import WorkerInfo, read_worker, said_by
from heddle.broker.records import text

AT_ONCE = 500
"""Heartbeats in one round trip: the broker serves others between two of them."""
NUMBERS = (
    *("state", "drain", "died", "beat_ttl_ms", "pid", "steps", "ms_per_step", "play_s", "wait_s"),
    *("late_s", "late_speed", "late_waits", "cpu_s", "rss_bytes", "profile"),
)
"""What of a heartbeat is added up over a pool."""


def read_beats(
    conn: Connection, pool: str, seen: Mapping[str, int], now_ms: int, *, numbers: bool = False
) -> dict[str, WorkerInfo]:
    """What workers of a pool said last, by id. One round trip for every `AT_ONCE` of them.

    Args:
        seen: whose, and when each was heard of (server ms), from its pool.
        numbers: ask for `NUMBERS` alone, which costs less; the rest is as if it had not been said.
    """
    found, ids = {}, list(seen)
    for start in range(0, len(ids), AT_ONCE):
        some, pipe = ids[start : start + AT_ONCE], conn.pipeline()
        for worker in some:
            if numbers:
                pipe.hmget(keys.worker(worker), NUMBERS)
            else:
                pipe.hgetall(keys.worker(worker))
        for worker, raw in zip(some, pipe.execute(raise_on_error=False), strict=True):
            said = _by_name(raw) if numbers and isinstance(raw, list) else said_by(raw)
            found[worker] = read_worker(pool, worker, said, seen[worker], now_ms)
    return found


def _by_name(raw: Sequence[Any]) -> dict[str, str]:
    """The answer to `NUMBERS`, without what is not there."""
    return {name: text(value) for name, value in zip(NUMBERS, raw, strict=True) if value is not None}
