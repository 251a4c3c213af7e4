"""Foreign entries: what somebody wrote by hand into a stream that only people read: left out, and named once.

It never removes one: who looks for what happened still finds it there.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from heddle.broker.records import entries

log = logging.getLogger("heddle.broker")

T = TypeVar("T")

NO_SENSE = (ValueError, TypeError, AttributeError, KeyError, OverflowError, RecursionError)
"""What reading bytes raises that none of ours wrote."""
MOST_STREAMS = 1_000
_named: set[tuple[str, str]] = set()


def ours(stream: str, page: Any, read: Callable[[str, Mapping[str, str]], T]) -> list[T]:
    """The entries of a page, as the server answered it, that `read` makes sense of.

    Each stream's first one that it does not is named in this process's log.
    """
    found = []
    for entry_id, fields in entries(page):
        try:
            found.append(read(entry_id, fields))
        except NO_SENSE as error:
            name(stream, entry_id, f"{type(error).__name__}: {error}")
    return found


def name(stream: str, entry_id: str, why: str, *, what: str = "an entry") -> None:
    """Say of a stream, once, that something was left out of it; a file's path may stand for a stream."""
    place = stream, what
    level = logging.DEBUG if place in _named else logging.WARNING
    if len(_named) >= MOST_STREAMS:
        _named.clear()
    _named.add(place)
    short = " ".join(why.split())[:200]
    log.log(level, "left out %s that Heddle did not write stream=%s entry=%s because %s", what, stream, entry_id, short)
