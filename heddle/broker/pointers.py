"""Pointers and counters as the scripts write them, read as values.

This module never talks to a server.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from heddle.broker import keys
from heddle.broker.counts import count
from heddle.broker.experience_types import Amount, Flow, Pointer
from heddle.broker.records import integer, moment

FETCH_BYTES = 64 << 20
"""Bytes asked for in one round trip: more would pile up in the server's output buffer."""


def pointer_of(experiment: str, p: int, entry_id: str, fields: Mapping[str, str]) -> Pointer | None:
    """An entry as `read_pointer` reads it; None for one that says what no append of this experiment ever says."""
    try:
        pointer = read_pointer(entry_id, fields)
    except (KeyError, ValueError):
        return None
    blob = keys.blob(experiment, p, pointer.shard, pointer.epoch, pointer.nonce, pointer.seq)
    is_known = pointer.location == "redis" or (pointer.location == "shm" and pointer.place != "")
    return pointer if is_known and pointer.blob_key == blob else None


def identity_of(pointer: Pointer) -> str:
    """The field of `keys.accepted` that stands for a batch."""
    return batch_name(pointer.shard, pointer.epoch, pointer.nonce, pointer.seq)


def batch_name(shard: int, epoch: int, nonce: str, seq: int) -> str:
    """A batch's identity in one word."""
    return f"{shard}:{epoch}:{nonce}:{seq}"


def read_pointer(entry_id: str, fields: Mapping[str, str]) -> Pointer:
    """An entry of the experience stream. Raises KeyError or ValueError when no append wrote it."""
    return Pointer(
        entry_id=entry_id,
        shard=int(fields["shard"]),
        epoch=int(fields["epoch"]),
        nonce=fields["nonce"],
        seq=int(fields["seq"]),
        kind="eval" if fields["kind"] == "eval" else "train",
        version_min=int(fields["version_min"]),
        version_max=int(fields["version_max"]),
        segments=int(fields["segments"]),
        steps=int(fields["steps"]),
        bytes=int(fields["bytes"]),
        crc32=int(fields["crc32"]),
        blob_key=fields["blob"],
        given=int(fields["given"]),
        waited_ms=integer(fields.get("waited_ms")),
        played_ms=integer(fields.get("played_ms")),
        held_ms=integer(fields.get("held_ms")),
        location=fields["location"],
        place=fields.get("place", ""),
    )


def by_bytes(pointers: Sequence[Pointer]) -> Iterator[list[Pointer]]:
    """In runs whose bytes stay below the limit of one round trip; at least one in each."""
    run: list[Pointer] = []
    size = 0
    for pointer in pointers:
        if run and size + pointer.bytes > FETCH_BYTES:
            yield run
            run, size = [], 0
        run.append(pointer)
        size += pointer.bytes
    if run:
        yield run


def pointer_fields(pointer: Pointer) -> list[str | int]:
    """The opposite of `read_pointer`: field, value, field, value ..."""
    fields: dict[str, str | int] = {
        "shard": pointer.shard,
        "epoch": pointer.epoch,
        "nonce": pointer.nonce,
        "seq": pointer.seq,
        "kind": pointer.kind,
        "version_min": pointer.version_min,
        "version_max": pointer.version_max,
        "segments": pointer.segments,
        "steps": pointer.steps,
        "bytes": pointer.bytes,
        "crc32": pointer.crc32,
        "given": pointer.given,
        "waited_ms": pointer.waited_ms,
        "played_ms": pointer.played_ms,
        "held_ms": pointer.held_ms,
        "location": pointer.location,
        "blob": pointer.blob_key,
    }
    if pointer.place:
        fields["place"] = pointer.place
    return [item for pair in fields.items() for item in pair]


_INDEX = re.compile(rb"\d{1,9}")


def is_index(member: Any) -> bool:
    """Whether a member of a sorted set is a shard; the others are by somebody's hand."""
    return _INDEX.fullmatch(member) is not None


def indices(members: Iterable[Any]) -> list[int]:
    """Those that are shards."""
    return [int(member) for member in members if is_index(member)]


def waiting_since(pairs: Iterable[tuple[Any, float]]) -> dict[int, int]:
    """Shards that wait for room, with their scores in us, as server ms since when."""
    return {int(shard): moment(since_us / 1000) for shard, since_us in pairs if is_index(shard)}


def read_flow(counters: Mapping[str, str], waiting: int) -> Flow:
    """The flow hash; a counter that was never raised is 0."""

    def amount(name: str) -> Amount:
        return Amount(integer(counters.get(name)), integer(counters.get(f"{name}_steps")))

    return Flow(
        entries=integer(counters.get("entries")),
        bytes=integer(counters.get("bytes")),
        steps=integer(counters.get("steps")),
        parked=integer(counters.get("parked")),
        waiting=waiting,
        appended=amount("appended"),
        trained=amount("trained"),
        evaluated=amount("evaluated"),
        stale=amount("stale"),
        dead=amount("dead"),
        dropped=amount("dropped"),
        rolled_back=amount("rolled_back"),
        discarded=amount("discarded"),
        forgotten=amount("forgotten"),
        foreign=count(counters.get("foreign")),
        mapped=count(counters.get("mapped")),
        rolled_back_by=integer(counters.get("rolled_back_by")),
        appended_bytes=count(counters.get("appended_bytes")),
    )
