"""Lines of the log: events, which roles write down, and what user code prints, each in a stream of its own.

They are read as one. It never adds a line, see `events.py`; a flood of prints never pushes out an event.
"""

import heapq
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from heddle.broker import counts, keys
from heddle.broker.connection import Connection
from heddle.broker.records import entries, moment
from heddle.broker.streams import LAST_ID, after

LOG_ENTRIES = 10_000
"""Each of the two streams keeps about this many lines."""

LINE_CHARS = 2_000
"""Longest message; a traceback's end says more than its start, so the start is cut."""

LOG_STEP = 500
"""Lines looked at in one step where most may be others than those wanted."""

PRINTED = "user"
"""Role of lines that user code printed; its worker is the one where it did."""

_NAMED = {"shard": re.compile(r"\bshard=(?:[^\s,;]+/)?(\d+)\b"), "epoch": re.compile(r"\bepoch=(\d+)\b")}

STREAMS = (keys.LOG, keys.PRINTS)
"""Those of events come first. There is a print here and there among them, of a version that knew one stream."""


@dataclass(frozen=True, slots=True)
class Event:
    """One line of the log.

    Attributes:
        entry_id, time_ms: its place in its stream; server ms at which it happened.
        experiment: which it is about, None for none.
        role, worker: who says it, e.g. "worker", and its id, "" for none.
        level: debug, info, warning or error; message: the line.
        shard, epoch: which shard it is about, and that shard's epoch then; None for none, and where nobody knows.
    """

    entry_id: str
    time_ms: int
    experiment: str | None
    role: str
    worker: str
    level: str
    message: str
    shard: int | None = None
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """One line for the log.

    Attributes:
        experiment: which it is about, None for none.
        role, worker: who says it, e.g. "worker", and its id, "" for none.
        level: debug, info, warning or error; message: the line.
        ago_ms: how long before it is sent it happened.
        shard, epoch: which shard was played, and its epoch, where user code printed it; of others the message tells.
    """

    experiment: str | None
    role: str
    worker: str
    level: str
    message: str
    ago_ms: int = 0
    shard: int | None = None
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """How far somebody has read: in each stream the entry after which it goes on.

    Attributes:
        after: entry ids by stream; from the start where there is none.
    """

    after: Mapping[str, str] = field(default_factory=dict)

    def of(self, stream: str) -> str:
        """The entry of a stream after which it goes on."""
        return self.after.get(stream, "0")

    def past(self, told: Sequence[tuple[str, str]]) -> "Place":
        """After these entries, too: stream and id, in order."""
        return Place({**self.after, **dict(told)}) if told else self

    @classmethod
    def at_ms(cls, time_ms: int) -> "Place":
        """Before whatever was added from this server ms on."""
        return cls({stream: f"{time_ms}-0" for stream in STREAMS})


def stream_of(line: Line) -> str:
    """Where a line belongs."""
    return keys.PRINTS if line.role == PRINTED else keys.LOG


def newest_first(conn: Connection, *, step: int, prints: bool = True) -> Iterator[Event]:
    """All lines, as they are asked for, the last that was added first.

    Args:
        step: how many to fetch from a stream at a time.
        prints: also those that user code printed, but for those among the events.
    """
    pages = [_back(conn, stream, step) for stream in (STREAMS[::-1] if prints else STREAMS[:1])]
    for entry_id, fields in heapq.merge(*pages, key=_added_ms, reverse=True):
        yield read_event(entry_id, fields)


def ask_newest(pipe: Any, count: int) -> None:
    """Put into a pipeline what `read_newest` reads."""
    for stream in STREAMS:
        pipe.xrevrange(stream, count=count)


def read_newest(replies: Sequence[Any]) -> tuple[list[Event], Place]:
    """The newest lines of both streams in order of time, and where to go on."""
    pages = [list(reversed(entries(reply))) for reply in replies]
    ends = [(stream, page[-1][0]) for stream, page in zip(STREAMS, pages, strict=True) if page]
    return in_time([read_event(*entry) for entry in heapq.merge(*pages, key=_added_ms)]), Place().past(ends)


def ask_after(pipe: Any, place: Place, count: int) -> None:
    """Put into a pipeline what `read_after` reads: `count` lines of each stream."""
    for stream in STREAMS:
        pipe.xrange(stream, min=after(place.of(stream)), count=count)


def read_after(replies: Sequence[Any], place: Place, count: int) -> tuple[list[Event], Place]:
    """The next lines of both streams together in order of time, `count` at most, and where to go on.

    What a stream has beyond that stays for the next time, so that no line is told before older ones of the other.
    """
    pages = [[(*entry, stream) for entry in entries(reply)] for stream, reply in zip(STREAMS, replies, strict=True)]
    next_ones = list(islice(heapq.merge(*pages, key=_added_ms), count))
    told = [(stream, entry_id) for entry_id, _, stream in next_ones]
    ended = zip(STREAMS, pages, strict=True)  # what had the highest id is gone: it was made anew, under lower ids
    anew = [(stream, "0") for stream, page in ended if not page and place.of(stream) == LAST_ID]
    new = [read_event(entry_id, fields) for entry_id, fields, stream in next_ones if entry_id != place.of(stream)]
    return in_time(new), place.past([*anew, *told])


def in_time(events: Sequence[Event]) -> list[Event]:
    """By when they happened, which may be some seconds before they were added; of one ms as they were added."""
    return sorted(events, key=lambda event: event.time_ms)


def line_fields(line: Line) -> dict[str, str]:
    """A line as an entry of its stream."""
    said = line.message
    fields = {"experiment": line.experiment or "", "role": line.role, "worker": line.worker, "level": line.level}
    fields["message"] = said if len(said) <= LINE_CHARS else f"...{said[-LINE_CHARS:]}"
    numbers = {"ago": line.ago_ms or None, "shard": line.shard, "epoch": line.epoch}
    return fields | {name: str(value) for name, value in numbers.items() if value is not None}


def read_event(entry_id: str, fields: Mapping[str, str]) -> Event:
    """An entry of either stream as a value; an event is about the shard that its message names as `shard=`."""
    named = fields if fields.get("role") == PRINTED else _named(fields.get("message", ""))
    return Event(
        entry_id=entry_id,
        time_ms=moment(_added_ms((entry_id,)) - counts.count(fields.get("ago"))),
        experiment=fields.get("experiment") or None,
        role=fields.get("role", ""),
        worker=fields.get("worker", ""),
        level=fields.get("level", "info"),
        message=fields.get("message", ""),
        shard=counts.whole(named.get("shard")),
        epoch=counts.whole(named.get("epoch")) if named.get("shard") else None,
    )


def _named(message: str) -> dict[str, str]:
    """The first shard that a message names, and the first epoch."""
    found = ((name, one.search(message)) for name, one in _NAMED.items())
    return {name: match[1] for name, match in found if match is not None}


def _back(conn: Connection, stream: str, step: int) -> Iterator[tuple[str, dict[str, str]]]:
    place = "+"
    while page := entries(conn.main.xrevrange(stream, max=place, count=step)):
        yield from page
        place = f"({page[-1][0]}"


def _added_ms(entry: Sequence[Any]) -> int:
    """The server's ms of an entry, by one clock for both streams; of one ms events come before prints."""
    return int(str(entry[0]).partition("-")[0])
