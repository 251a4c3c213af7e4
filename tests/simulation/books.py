"""The books: what must hold of the counters, the stream, the bytes and ctl at any moment, by looking at the server.

It never keeps anything.
"""

import hashlib
import math
from typing import Any

from tests.simulation.database import Database
from tests.simulation.truth import Truth, must
from tests.simulation.values import Stream

ENDS = ("trained", "evaluated", "stale", "dead", "dropped", "rolled_back")
NEVER_FALL = (b"policy", b"eval_policy", b"seat_epoch", b"leader_epoch", b"rev")


def numbers_of(db: Database, tag: bytes) -> dict[str, int]:
    """The flow hash."""
    found: Any = db.data.get(tag + b"flow", {})
    return {name.decode(): int(value) for name, value in found.items()}


def check_books(db: Database, tag: bytes, truth: Truth) -> None:
    """appended = what became of it + in flight, in batches and steps; the stream is as it must be, bytes are there."""
    flow = numbers_of(db, tag)
    stream = db.data.get(tag + b"experience")
    entries = stream.entries if isinstance(stream, Stream) else {}
    must(flow.get("entries", 0) == len(entries), "P2: entries in flight are miscounted", flow)
    settled = sum(flow.get(name, 0) for name in ENDS)
    must(flow.get("appended", 0) == settled + len(entries), "P2: batches do not add up", flow)
    steps = sum(flow.get(f"{name}_steps", 0) for name in ENDS)
    must(flow.get("appended_steps", 0) == steps + flow.get("steps", 0), "P2: steps do not add up", flow)
    must(flow.get("appended", 0) == len(truth.accepted), "P2: appended is miscounted", (flow, len(truth.accepted)))
    must(min(flow.values(), default=0) >= 0, "P2: a counter is below 0", flow)
    must(flow.get("discarded", 0) <= len(truth.refused), "P2: a batch was discarded twice", flow)
    _check_stream(db, flow, entries, truth)
    _check_room(db, tag, flow, len(entries))


def _check_stream(db: Database, flow: dict[str, int], entries: dict[Any, Any], truth: Truth) -> None:
    present = {b"%d-%d" % place for place in entries}
    missing = [batch for entry, batch in truth.by_entry.items() if entry not in present]
    must(not missing, "P2: an accepted batch left the stream unsettled", missing[:3])
    size = steps = 0
    for fields in entries.values():
        fact = dict(zip(fields[::2], fields[1::2], strict=True))
        blob = fact[b"blob"]
        value: Any = db.data.get(blob)
        must(value is not None and len(value) == int(fact[b"bytes"]), "P2: the bytes of a live entry are gone", blob)
        must(blob not in db.expires, "P2: the bytes of a live entry will expire", blob)
        size, steps = size + int(fact[b"bytes"]), steps + int(fact[b"steps"])
    must(flow.get("bytes", 0) == size and flow.get("steps", 0) == steps, "P2: bytes or steps are miscounted", flow)


def _check_room(db: Database, tag: bytes, flow: dict[str, int], entries: int) -> None:
    ctl: Any = db.data.get(tag + b"ctl")
    if not ctl:
        return
    must(entries <= int(ctl[b"max_entries"]), "P4: more entries in flight than the cap", entries)
    must(entries <= 1 or flow["bytes"] <= int(ctl[b"max_bytes"]), "P4: more bytes in flight than the cap", flow)
    parked = 0
    for index in range(int(ctl.get(b"shards", b"0"))):
        shard: Any = db.data.get(tag + b"shard:%d" % index, {})
        parked += int(shard.get(b"parked", b"0"))
    must(flow.get("parked", 0) == parked, "P4: parked bytes are miscounted", (flow, parked))


def check_ctl(db: Database, tag: bytes, before: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """What only rises has not fallen, what is final has not changed; ctl as it is now."""
    ctl: Any = db.data.get(tag + b"ctl")
    if not ctl:
        return {}
    if ctl == before:
        return before
    for name in NEVER_FALL:
        must(int(ctl.get(name, b"0")) >= int(before.get(name, b"0")), f"{name.decode()} fell", (before, ctl))
    must(before.get(b"command") != b"stop" or ctl[b"command"] == b"stop", "a stop was undone")
    outcome = before.get(b"outcome")
    must(not outcome or ctl[b"outcome"] == outcome, "an outcome was replaced", outcome)
    return dict(ctl)


def check_policies(db: Database, tag: bytes) -> None:
    """The latest version and the pinned one can be read whole, are what was published, and stay."""
    ctl: Any = db.data.get(tag + b"ctl", {})
    for name in (b"policy", b"eval_policy"):
        version = int(ctl.get(name, b"0"))
        if not version:
            continue
        key = tag + b"policy:%d" % version
        policy: Any = db.data.get(key)
        must(policy is not None, "the bytes of a policy are gone", (name, version))
        digest: bytes = policy[b"sha256"]
        chunks = [key + b":%s:%d" % (digest[:16], index) for index in range(int(policy[b"chunks"]))]
        parts: list[Any] = [db.data.get(chunk) for chunk in chunks] or [policy[b"weights"]]
        must(None not in parts, "a part of a policy is not there", (name, version))
        must(not any(chunk in db.expires for chunk in chunks), "a part of a policy will expire", (name, version))
        whole = hashlib.sha256(b"".join(parts)).hexdigest().encode()
        must(whole == digest, "a policy is not what was published", (name, version))


def check_readers(db: Database, key: bytes) -> None:
    """Every entry that a group was given is in somebody's hands, or deleted: the group gives it to nobody else."""
    stream = db.data.get(key)
    if not isinstance(stream, Stream):
        return
    for name, group in stream.groups.items():
        lost = [place for place in stream.entries if place <= group.last and place not in group.pending]
        must(not lost, "P2: an entry was read, and nobody holds it any more", (key, name, lost[:3]))


def check_turn(db: Database, tag: bytes, shard: int, waited: dict[bytes, float]) -> None:
    """A batch was let in: those that have waited longer, and were seen within 2 s, still fit after it.

    Args:
        waited: since when each shard waited, at the last append before.
    """
    waiting: Any = db.data.get(tag + b"waiting", {})
    mine = waited.get(b"%d" % shard, math.inf)
    ahead = []
    for other, since in waiting.items():
        state: Any = db.data.get(tag + b"shard:" + other, {})
        at, _, wants = state.get(b"refused", b"0:0").partition(b":")
        if since < mine and db.now_ms - int(at) <= 2000:
            ahead.append(int(wants))
    if ahead:
        ctl: Any = db.data.get(tag + b"ctl", {})
        flow = numbers_of(db, tag)
        room, room_bytes = int(ctl[b"max_entries"]) - flow["entries"], int(ctl[b"max_bytes"]) - flow["bytes"]
        fits = room >= len(ahead) and room_bytes >= sum(ahead)
        must(fits, "P4: room went to one that had waited less long than others", (shard, dict(waiting)))
