"""Dead batches: what was set aside for good, with its reason and bytes; look at it, throw it away, or offer it again.

This module never decodes a batch: whoever offers one again has seen that it can be used now.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from redis.exceptions import ResponseError

from heddle.broker import keys
from heddle.broker.connection import Connection
from heddle.broker.experience_types import Pointer
from heddle.broker.pointers import identity_of, pointer_fields, read_pointer
from heddle.broker.records import integer, text, texts, time_of
from heddle.broker.refusals import gone
from heddle.errors import Conflict, NotFound

NOT_OURS = "no worker's append wrote this entry"
SHOWN_FIELDS = 32
SHOWN_CHARACTERS = 256
"""What is kept of an entry that somebody wrote by hand: so many fields, so long."""
_ID = re.compile(r"\d{1,20}(-\d{1,20})?")
_SIZE = re.compile(r"\d{1,15}")


@dataclass(frozen=True, slots=True)
class DeadBatch:
    """One batch, or one entry that is none, that was set aside for good.

    Attributes:
        id: by which it is known here; entry: its id in the stream of experience.
        time_ms: when it was set aside, server ms.
        reason: why.
        foreign: no worker's append wrote the entry.
        pointer: what the entry said of its batch; None when it makes no sense as a pointer.
        fields: the entry as it was, shortened where it is foreign.
        kept_bytes: bytes that are kept of it; 0 for none.
        kept: the key that holds them; "" for none.
    """

    id: str
    entry: str
    time_ms: int
    reason: str
    foreign: bool
    pointer: Pointer | None
    fields: dict[str, str] = field(default_factory=dict)
    kept_bytes: int = 0
    kept: str = ""


def dead_batches(conn: Connection, experiment: str, p: int, *, count: int) -> list[DeadBatch]:
    """The newest ones, newest first."""
    entries: Any = conn.main.xrevrange(keys.dead(experiment, p), count=count)
    return [_read(text(dead_id), texts(raw)) for dead_id, raw in entries]


def bury_foreign(
    conn: Connection, experiment: str, p: int, entry: tuple[str, Mapping[str, str]], *, caps: tuple[int, int]
) -> bool:
    """Take an entry that no append wrote out of the stream, with its bytes where they are nobody else's.

    Args:
        entry: its id and fields.
        caps: most entries and bytes that are kept.

    Returns:
        False when it was not there any more.
    """
    entry_id, fields = entry
    blobs, blob = keys.blobs(experiment, p), fields.get("blob", "")
    own = [keys.ctl(experiment, p), keys.experience(experiment, p), keys.flow(experiment, p), keys.dead(experiment, p)]
    own += [blob if blob.startswith(blobs) else blobs, keys.dead_blob(experiment, p, entry_id)]
    args: list[str | int] = ["", keys.TRAINER_GROUP, entry_id, 0, 0, 1, *caps, NOT_OURS, *_shortened(fields)]
    return text(conn.script("dead", own, args)[-1]) == "1"


def _shortened(fields: Mapping[str, str]) -> list[str]:
    """Field, value, ... of an entry that somebody wrote by hand, cut to a size that is worth keeping."""
    shown = [(name[:SHOWN_CHARACTERS], value[:SHOWN_CHARACTERS]) for name, value in fields.items() if name not in _OURS]
    return [item for pair in shown[:SHOWN_FIELDS] for item in pair]


_OURS = ("reason", "entry", "kept_bytes", "kept", "foreign")


class DeadBatches:
    """Every call about dead batches, on one connection."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn

    def ls(self, experiment: str, p: int = 0, *, count: int = 100) -> list[DeadBatch]:
        """The newest ones, newest first."""
        return dead_batches(self._conn, experiment, p, count=count)

    def find(self, experiment: str, dead_id: str, p: int = 0) -> DeadBatch:
        """One of them. Raises NotFound."""
        found: Any = None
        if _ID.fullmatch(dead_id):
            try:
                found = self._conn.main.xrange(keys.dead(experiment, p), dead_id, dead_id)
            except ResponseError:  # a number above 64 bits
                found = None
        if not found:
            raise NotFound(f"{experiment} has no dead batch {dead_id!r}; heddle batches ls {experiment} shows them")
        return _read(text(found[0][0]), texts(found[0][1]))

    def data(self, batch: DeadBatch) -> bytes | None:
        """The bytes that are kept of it; None when none are, or they are gone."""
        if not batch.kept:
            return None
        try:
            found: Any = self._conn.main.get(batch.kept)
        except ResponseError:
            return None
        return None if found is None else bytes(found)

    def drop(self, experiment: str, dead_ids: Sequence[str], p: int = 0) -> int:
        """Throw these and their bytes away; how many were there. What was counted stays counted."""
        if not dead_ids:
            return 0
        own = [keys.dead(experiment, p), keys.flow(experiment, p)]
        return integer(self._conn.script("dead_drop", own, list(dead_ids)))

    def replay(self, experiment: str, batch: DeadBatch, p: int = 0) -> str:
        """Offer a batch again: out of the dead, at the end of the stream of experience, under an identity of its own.

        It goes on as one of shard -1 - s, where s played it: a line of its own, so that the order and the marks of s
        are left alone. The counters move it from dead to in flight.

        Returns:
            Its new entry id.

        Raises:
            NotFound: it is not there any more, or its bytes are not.
            Conflict: the experiment is stopping or over, or its stream has no room now.
            Gone: the experiment was removed.
        """
        if batch.pointer is None or batch.foreign:
            raise Conflict(f"{batch.id} is no batch of a worker's")
        pointer = _reborn(batch.pointer)
        shard = keys.shard(experiment, p, pointer.played_shard)
        before = integer(self._conn.main.hget(shard, "replay_epoch"))
        pointer = replace(pointer, epoch=max(self._conn.now_ms(), before + 1))
        blob = keys.blob(experiment, p, pointer.shard, pointer.epoch, pointer.nonce, pointer.seq)
        own = [keys.ctl(experiment, p), keys.dead(experiment, p), keys.experience(experiment, p)]
        own += [keys.flow(experiment, p), shard, batch.kept or blob, blob]
        args: list[str | int] = [batch.id, identity_of(pointer), pointer.epoch, pointer.bytes, pointer.steps]
        reply = self._conn.script("replay", own, [*args, *pointer_fields(replace(pointer, blob_key=blob))])
        answer = text(reply[0])
        if answer == "OK":
            return text(reply[1])
        if answer == "GONE":
            raise gone(experiment)
        if answer == "NONE":
            raise NotFound(f"{experiment} has no dead batch {batch.id} any more, or its bytes are gone")
        raise Conflict(f"{experiment} {_WHY_NOT[answer]}")


_WHY_NOT = {
    "STOPPED": "takes no more experience: it is stopping or over",
    "FULL": "has no room for it now; try again when its trainer has caught up",
    "AGAIN": "takes another batch of that shard at this moment; try again",
}


def _reborn(pointer: Pointer) -> Pointer:
    """The same batch on its shard's line of replays; its nonce says what it was."""
    if pointer.shard < 0:
        return pointer
    nonce = f"{pointer.epoch}.{pointer.nonce}.{pointer.seq}"
    return replace(pointer, shard=-1 - pointer.shard, nonce=nonce, seq=1, given=0)


def _read(dead_id: str, fields: dict[str, str]) -> DeadBatch:
    ours = {name: fields.get(name, "") for name in _OURS}
    rest = {name: value for name, value in fields.items() if name not in _OURS}
    pointer: Pointer | None
    try:
        pointer = read_pointer(ours["entry"], rest)
    except (KeyError, ValueError):
        pointer = None
    kept_bytes = int(ours["kept_bytes"]) if _SIZE.fullmatch(ours["kept_bytes"]) else 0
    return DeadBatch(
        id=dead_id,
        entry=ours["entry"],
        time_ms=time_of(dead_id),
        reason=ours["reason"] or "written into this stream by hand",
        foreign=ours["foreign"] == "1" or not ours["reason"],
        pointer=pointer,
        fields=rest,
        kept_bytes=kept_bytes,
        kept=ours["kept"] if kept_bytes else "",
    )
