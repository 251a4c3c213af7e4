"""Adding to streams of hints and messages, so that one entry with an absurd id does not end them.

It knows no stream by name. The stream of experience has a mending of its own, for its entries must keep their ids.
"""

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

from redis.exceptions import ResponseError

from heddle.broker.connection import Connection
from heddle.broker.records import text

log = logging.getLogger("heddle.broker")

NO_MORE_IDS = "exhausted the last possible ID"
"""What a server answers when an entry has the highest id there is: only somebody's hand can have written it."""
LAST_ID = "18446744073709551615-18446744073709551615"
"""That id."""
_ID = re.compile(r"([0-9]{1,20})-([0-9]{1,20})")


def add(conn: Connection, stream: str, entries: Sequence[Mapping[str, Any]], *, most: int | None = None) -> list[str]:
    """Add entries in one round trip; their ids.

    Args:
        most: about so many are kept, the newest; None for all.
    """
    try:
        return _add(conn, stream, entries, most)
    except ResponseError as error:
        if NO_MORE_IDS not in str(error):
            raise
    restart(conn, stream)
    return _add(conn, stream, entries, most)


def restart(conn: Connection, stream: str) -> None:
    """Have it take entries again, once its ids have run out."""
    conn.script("restart_stream", [stream], [])
    log.warning("made a stream anew, its ids had run out stream=%s", stream)


def is_id(said: str) -> bool:
    """Whether an entry may have that id; a server refuses to look for another."""
    found = _ID.fullmatch(said)
    return found is not None and all(int(part) < 1 << 64 for part in found.groups())


def after(entry_id: str) -> str:
    """Where a range begins that holds what comes after an entry; of the highest there is it holds that one itself."""
    return "+" if entry_id == LAST_ID else f"({entry_id}"


def onward(entry_id: str, seen: Sequence[str]) -> str:
    """The entry to go on after next.

    Args:
        entry_id: the one gone on after.
        seen: those of the range that begins at `after` it, whoever wrote them.
    """
    if seen:
        return seen[-1]
    return "0" if entry_id == LAST_ID else entry_id  # it is gone: the stream was made anew, under lower ids


def _add(conn: Connection, stream: str, entries: Sequence[Mapping[str, Any]], most: int | None) -> list[str]:
    pipe: Any = conn.pipeline()
    for entry in entries:
        pipe.xadd(stream, dict(entry), maxlen=most, approximate=True)
    return [text(added) for added in pipe.execute()]
