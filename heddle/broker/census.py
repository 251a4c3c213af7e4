"""The census: every key of ours counted by whose it is, and what belongs to nobody any more.

It looks at every key in steps, for people and not for loops, and never deletes one.
"""

import re
from collections import Counter
from dataclasses import dataclass, field

from heddle.broker import counts, keys
from heddle.broker.connection import Connection
from heddle.broker.records import entries, text, texts

MOST_KEYS = 500_000
MOST_ENTRIES = 5_000
"""Entries of one stream that are looked at."""
YOUNG_MS = 60_000
"""What is younger may be on its way: a blob before its append, a ticket before its claim."""

_TAG = re.compile(r"heddle:\{(?P<experiment>.+)\.(?P<partition>\d+)\}:(?P<kind>[a-z]+)")


@dataclass(slots=True)
class Census:
    """What was found.

    Attributes:
        keys: of ours in all; complete: False when there were more than are looked at.
        owners: experiment -> number of its keys.
        listed: experiments in the list.
        homeless: experiments that have keys and are not in the list: a removal was cut short, or a submission.
        bare: entries of streams whose bytes are gone, by experiment.
        adrift: stored batches that no entry names, alive or dead, and no worker waits with, by experiment.
        tickets: of experiments or shards that are not there.
        ahead_ms: how far the highest epoch of all is ahead of the server's clock.
        wants_bytes: what all experiments that are not over may have in flight.
    """

    keys: int = 0
    complete: bool = True
    owners: Counter[str] = field(default_factory=Counter)
    listed: tuple[str, ...] = ()
    homeless: tuple[str, ...] = ()
    bare: Counter[str] = field(default_factory=Counter)
    adrift: Counter[str] = field(default_factory=Counter)
    tickets: int = 0
    ahead_ms: int = 0
    wants_bytes: int = 0


def count(conn: Connection) -> Census:
    """Look at everything once. Raises BrokerUnreachable; Denied when the user may not SCAN."""
    census, before = Census(), _listed(conn)
    now_ms, blobs, pools, shards = conn.now_ms(), dict[str, set[str]](), set[str](), list[str]()
    for key in conn.main.scan_iter(match="heddle:*", count=1_000):
        name = text(key)
        census.keys += 1
        if census.keys > MOST_KEYS:
            census.complete = False
            break
        match = _TAG.match(name)
        if match is None:
            pools |= {name.split(":")[2]} if name.startswith("heddle:pool:") and name.endswith(":tickets") else set()
            continue
        census.owners[match["experiment"]] += 1
        if match["kind"] == "blob":
            blobs.setdefault(match["experiment"], set()).add(name)
        elif match["kind"] == "shard":
            shards.append(name)
    census.listed = _listed(conn)
    census.homeless = tuple(sorted(set(census.owners) - {*before, *census.listed}))
    for experiment in census.listed:
        _look_at_stream(conn, experiment, blobs.get(experiment, set()), census)
        _look_at_ctl(conn, experiment, now_ms, census)
    _look_at_epochs(conn, shards, now_ms, census)
    census.tickets = sum(_lost_tickets(conn, pool, now_ms) for pool in pools)
    return census


def count_listed(conn: Connection) -> Census:
    """The same as far as it is told without looking at every key: what the experiments want, and their epochs."""
    now_ms, census = conn.now_ms(), Census()
    census.listed = _listed(conn)
    for experiment in census.listed:
        _look_at_ctl(conn, experiment, now_ms, census)
    return census


def submitted(conn: Connection) -> set[str]:
    """Experiments of which there is a spec, listed or not. Looks at every key."""
    found = (_TAG.match(text(key)) for key in conn.main.scan_iter(match="heddle:{*}:spec", count=1_000))
    return {match["experiment"] for match in found if match is not None}


def _listed(conn: Connection) -> tuple[str, ...]:
    return tuple(text(member) for member in conn.main.zrange(keys.EXPERIMENTS, 0, -1))


def _look_at_stream(conn: Connection, experiment: str, blobs: set[str], census: Census) -> None:
    page = entries(conn.main.xrange(keys.experience(experiment, 0), count=MOST_ENTRIES))
    named = {fields.get("blob", "") for _, fields in page}
    for blob in named - blobs:
        if blob and conn.main.exists(blob) == 0 and _still_named(conn, experiment, page, blob):
            census.bare[experiment] += 1
    if len(page) == MOST_ENTRIES:
        return  # the others may be named further on
    for blob in blobs - named - _kept(conn, experiment):
        # One without a TTL was accepted; settled meanwhile it would be gone.
        if conn.main.ttl(blob) == -1 and not _names(conn, experiment, blob):
            census.adrift[experiment] += 1


def _still_named(conn: Connection, experiment: str, page: list[tuple[str, dict[str, str]]], blob: str) -> bool:
    entry = next(entry for entry, fields in page if fields.get("blob") == blob)
    return bool(conn.main.xrange(keys.experience(experiment, 0), min=entry, max=entry))


def _kept(conn: Connection, experiment: str) -> set[str]:
    """Of batches that were set aside."""
    page = entries(conn.main.xrange(keys.dead(experiment, 0), count=MOST_ENTRIES))
    return {fields.get("kept", "") for _, fields in page}


def _names(conn: Connection, experiment: str, blob: str) -> bool:
    page = entries(conn.main.xrange(keys.experience(experiment, 0), count=MOST_ENTRIES))
    named = any(fields.get("blob") == blob for _, fields in page) or blob in _kept(conn, experiment)
    return named or not conn.main.exists(blob)


def _look_at_ctl(conn: Connection, experiment: str, now_ms: int, census: Census) -> None:
    fields = texts(conn.main.hgetall(keys.ctl(experiment)))
    for epoch in ("seat_epoch", "leader_epoch"):
        census.ahead_ms = max(census.ahead_ms, counts.count(fields.get(epoch)) - now_ms)
    if fields and fields.get("command") != "stop":
        census.wants_bytes += counts.count(fields.get("max_bytes"))


def _look_at_epochs(conn: Connection, shards: list[str], now_ms: int, census: Census) -> None:
    for start in range(0, len(shards), 500):
        pipe = conn.pipeline()
        for name in shards[start : start + 500]:
            pipe.hget(name, "epoch")
        for epoch in pipe.execute():
            census.ahead_ms = max(census.ahead_ms, counts.count(epoch) - now_ms)


def _lost_tickets(conn: Connection, pool: str, now_ms: int) -> int:
    lost = 0
    for entry, fields in entries(conn.main.xrange(keys.pool_tickets(pool), count=MOST_ENTRIES)):
        if now_ms - int(entry.partition("-")[0]) < YOUNG_MS:
            continue
        try:
            shard = keys.shard(fields["experiment"], int(fields["partition"]), int(fields["shard"]))
        except (KeyError, ValueError):
            lost += 1
            continue
        lost += conn.main.exists(shard) == 0
    return lost
