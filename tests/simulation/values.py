"""What a key of the simulated server may hold, and errors as the server words them.

A string is `bytes`, a hash a dict of bytes. It never looks at time: ids and times are given.
"""

from dataclasses import dataclass, field
from typing import Any

Id = tuple[int, int]
"""A stream id."""


class ServerError(Exception):
    """An error reply, worded as the server words it."""


class Status(bytes):
    """A status reply, such as OK."""


OK = Status(b"OK")
WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"


class ZSet(dict[bytes, float]):
    """A sorted set: score by member."""

    def ordered(self) -> list[tuple[bytes, float]]:
        return sorted(self.items(), key=lambda item: (item[1], item[0]))


@dataclass(slots=True)
class Pending:
    """An entry that was delivered and not acked."""

    consumer: bytes
    delivered_ms: int
    count: int


@dataclass(slots=True)
class Group:
    """A consumer group; `consumers` by name, with when each was seen."""

    last: Id
    pending: dict[Id, Pending] = field(default_factory=dict)
    consumers: dict[bytes, int] = field(default_factory=dict)

    def copy(self) -> "Group":
        pending = {place: Pending(one.consumer, one.delivered_ms, one.count) for place, one in self.pending.items()}
        return Group(self.last, pending, dict(self.consumers))


@dataclass(slots=True)
class Stream:
    """A stream: entries by id, rising; each a flat tuple of fields and values."""

    entries: dict[Id, tuple[bytes, ...]] = field(default_factory=dict)
    last: Id = (0, 0)
    groups: dict[bytes, Group] = field(default_factory=dict)

    def copy(self) -> "Stream":
        return Stream(dict(self.entries), self.last, {name: group.copy() for name, group in self.groups.items()})


Value = bytes | dict[bytes, bytes] | ZSet | Stream


def copied(value: Any) -> Any:
    """A copy that shares nothing that changes."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, ZSet):
        return ZSet(value)
    return value.copy()


def parse_id(text: bytes, *, missing: int) -> Id:
    """A stream id as numbers; `missing` where it has no second part."""
    first, dash, second = text.partition(b"-")
    try:
        return (int(first), int(second) if dash else missing)
    except ValueError:
        raise ServerError("ERR Invalid stream ID specified as stream command argument") from None


def show_id(place: Id) -> bytes:
    """A stream id as text."""
    return b"%d-%d" % place


def show_score(score: float) -> bytes:
    """A score as the server writes it in RESP2."""
    return b"%d" % score if score == int(score) and abs(score) < 1e17 else b"%.17g" % score
