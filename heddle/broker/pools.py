"""Pools: which workers are here, how many there should be, and how many shards each should hold.

This module never starts or stops a worker; supervisors read `desired`, workers read their quota and the drain flag.
Heartbeats, quota and scaling work when the broker is out of memory.
"""

import contextlib
import logging
from collections.abc import Iterable, Sequence
from typing import Any

from heddle.broker import keys
from heddle.broker.connection import Connection
from heddle.broker.counts import count
from heddle.broker.presence import (
    BEAT_TTL_MS,
    POOL_FIELDS,
    BeatReply,
    HostReport,
    PoolInfo,
    Pulse,
    SupervisorShare,
    WorkerBeat,
    WorkerInfo,
    beat_fields,
    read_host,
    read_pool,
    read_worker,
    said_by,
)
from heddle.broker.queue import FORGET_CONSUMER_MS
from heddle.broker.records import moment, text, texts
from heddle.errors import BrokerBlocked, Conflict, Denied, LeaderLost, NotFound, UsageError

__all__ = ["BeatReply", "PoolInfo", "Pools", "SupervisorShare", "WorkerBeat", "WorkerInfo"]

log = logging.getLogger("heddle.broker")

PRUNE_MS = 300_000
"""A worker that was silent for this long is no longer listed, and what it said last is forgotten."""

SUPERVISOR_PRUNE_MS = 15_000
"""A supervisor that was silent for this long has no part in a pool any more: three beats of 5 s."""

AHEAD_MS = 86_400_000
"""Who was seen so far in the future was not: by more than a day no clock is set back, and until then nobody would miss
one that is not there."""

MOST_PASSED_OVER = 100
"""So many tickets, the oldest, are looked at for some that nobody would ever read: those that were read leave soon."""

WANTS = "wants:"
"""Start of the pool hash's fields that hold how many workers each supervisor was started with."""

HOST = "host:"
"""And of those that hold what its host has."""

DIED = "died:"
"""And of those that count workers which ended by themselves, by how."""


class Pools:
    """Every call about pools and workers, on one connection."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn

    # ---- workers

    def heartbeat(self, beat: WorkerBeat, *, ttl_ms: int = BEAT_TTL_MS) -> BeatReply:
        """Say that a worker is here; learn what the pool asks of it. One round trip.

        What it said stays for those who look where it ran; after `ttl_ms` it counts as alive no longer.
        """
        fields = beat_fields(beat, ttl_ms)
        pipe = self._conn.pipeline()
        pipe.script("worker_beat", [keys.worker(beat.worker)], [PRUNE_MS, *fields])
        pipe.script("presence_beat", [keys.pool_workers(beat.pool)], [beat.worker, PRUNE_MS, ""])
        pipe.hmget(keys.pool(beat.pool), POOL_FIELDS)
        drain, _, pool = pipe.execute()
        info = read_pool(beat.pool, dict(zip(POOL_FIELDS, map(text, pool), strict=True)))
        return BeatReply(text(drain) == "1", info.desired, info.live, info.floor, info.ceil, info.below > 0)

    def bye(self, worker: str, pool: str = "default") -> None:
        """Say that a worker ends; again is no mistake."""
        pipe = self._conn.pipeline()
        pipe.unlink(keys.worker(worker))
        pipe.zrem(keys.pool_workers(pool), worker)
        pipe.execute()

    def bury(self, worker: str, how: str, *, pool: str = "", kind: str = "") -> None:
        """Say how a worker ended, so that nobody takes it for alive; only the parent of the process may.

        Kept as long as the list of the pool shows it. Writes nothing when the broker is out of memory and forgot it.

        Args:
            pool, kind: count it there as one that ended by itself, under one of a few words; "" for not at all.
        """
        pipe = self._conn.pipeline()
        pipe.script("worker_bury", [keys.worker(worker)], [PRUNE_MS, how])
        if kind:
            pipe.script("pool_death", [keys.pool(pool)], [f"{DIED}{kind}"])
        pipe.execute()

    def worker(self, worker: str) -> WorkerInfo | None:
        """One worker by id; None when nothing is known of it."""
        fields = texts(self._conn.main.hgetall(keys.worker(worker)))
        pools = [fields["pool"]] if "pool" in fields else self.pools()
        now_ms = self._conn.now_ms()
        for pool in pools:
            seen = self._conn.main.zscore(keys.pool_workers(pool), worker)
            if seen is not None:
                return read_worker(pool, worker, fields, moment(seen), now_ms)
        return None

    def wanted(self, pool: str = "default") -> int | None:
        """How many workers a pool shall have: as somebody said, else as its living supervisors were started with."""
        fields = texts(self._conn.main.hgetall(keys.pool(pool)))
        info = read_pool(pool, fields)
        if info.desired is not None:
            return info.desired
        wants = [count(fields.get(f"{WANTS}{name}")) for name in self.supervisors(pool)]
        return sum(wants) if wants else None

    def workers(self, pool: str = "default") -> list[WorkerInfo]:
        """The workers of a pool by id; one that was silent for `PRUNE_MS` is dropped from the list for good."""
        now_ms, seen = self._present(keys.pool_workers(pool))
        pipe = self._conn.pipeline()
        ids = sorted(seen)
        for worker in ids:
            pipe.hgetall(keys.worker(worker))
        found = zip(ids, pipe.execute(raise_on_error=False) if ids else [], strict=True)
        return [read_worker(pool, worker, said_by(fields), seen[worker], now_ms) for worker, fields in found]

    def pulses(self, pool: str, workers: Sequence[str]) -> dict[str, Pulse]:
        """The last heartbeats of some workers, without those that never beat. One round trip."""
        pipe = self._conn.pipeline()
        for worker in workers:
            pipe.zscore(keys.pool_workers(pool), worker)
            pipe.hmget(keys.worker(worker), "ttl_ms", "limit_ms", "experiments")
        replies = pipe.execute() if workers else []
        found = zip(workers, replies[::2], replies[1::2], strict=True)
        return {
            worker: Pulse(moment(seen), count(ttl), count(limit), tuple(text(held or b"").split()))
            for worker, seen, (ttl, limit, held) in found
            if seen is not None
        }

    def drain(self, worker: str) -> None:
        """Ask a worker to finish its batches, release its shards and end. Raises NotFound when it is not here."""
        if not self._conn.script("worker_drain", [keys.worker(worker)], [PRUNE_MS]):
            raise NotFound(f"no worker {worker!r} is alive; heddle workers ls shows those that are")

    # ---- sizes

    def pool(self, pool: str = "default") -> PoolInfo:
        """A pool's numbers; zeros for one that nobody has written to."""
        return read_pool(pool, texts(self._conn.main.hgetall(keys.pool(pool))))

    def set_desired(self, pool: str, desired: int | None, *, rev: int | None = None) -> PoolInfo:
        """Say how many workers a pool shall have; None: as many as its supervisors were started with.

        Args:
            rev: the rev the caller decided on; None for whatever it is.

        Raises:
            Conflict: rev has moved on.
            UsageError: a negative number.
        """
        if desired is not None and desired < 0:
            raise UsageError(f"a pool cannot have {desired} workers; give 0 or more")
        args = ["" if desired is None else desired, "" if rev is None else rev]
        reply = self._conn.script("pool_scale", [keys.pool(pool)], args)
        if text(reply[0]) == "CONFLICT":
            raise Conflict(
                f"pool {pool} changed meanwhile: {text(reply[2])} desired at rev {text(reply[1])}; try again"
            )
        return self.pool(pool)

    def set_quota(self, pool: str, *, leader_epoch: int, floor: int, ceil: int, below: int, live: int) -> None:
        """Write how many shards a worker should hold, as the leader.

        Args:
            floor, ceil: of active shards / live workers; below: workers that hold fewer than floor.
            live: workers that are here and not draining.

        Raises:
            LeaderLost: another coordinator leads.
        """
        args = [leader_epoch, floor, ceil, below, live]
        if text(self._conn.script("pool_quota", [keys.pool(pool)], args)) == "FENCED":
            told = f"another coordinator leads; it has written the quota of pool {pool} already"
            raise LeaderLost(told, key=keys.pool(pool))

    # ---- supervisors

    def supervisor_beat(
        self,
        pool: str,
        supervisor: str,
        wants: int,
        *,
        host: HostReport | None = None,
        prune_ms: int = SUPERVISOR_PRUNE_MS,
    ) -> SupervisorShare:
        """Say that a supervisor is here and how many workers it was started with; learn what to share. One round trip.

        One that was silent for `prune_ms` no longer counts, so the others take its part.
        """
        pipe = self._conn.pipeline()
        pipe.script("presence_beat", [keys.pool_supervisors(pool)], [supervisor, prune_ms, "list"])
        there = [f"{HOST}{supervisor}", "" if host is None else host.as_field()]
        pipe.script("supervisor_wants", [keys.pool(pool)], [f"{WANTS}{supervisor}", wants, *there])
        present, pool_hash = pipe.execute()
        seen = zip(present[1::2], present[2::2], strict=True)
        here = sorted(self._sane(keys.pool_supervisors(pool), seen, int(present[0])))
        fields = {text(pool_hash[i]): text(pool_hash[i + 1]) for i in range(0, len(pool_hash), 2)}
        all_wants = {name.removeprefix(WANTS): count(value) for name, value in fields.items() if name.startswith(WANTS)}
        if left := sorted(set(all_wants) - set(here)):
            self._conn.main.hdel(keys.pool(pool), *(f"{kind}{name}" for name in left for kind in (WANTS, HOST)))
        info = read_pool(pool, fields)
        return SupervisorShare(info.desired, info.rev, tuple(here), {name: all_wants.get(name, 0) for name in here})

    def supervisors(self, pool: str = "default") -> list[str]:
        """Ids of the supervisors that are here, sorted."""
        return sorted(self._present(keys.pool_supervisors(pool), prune_ms=SUPERVISOR_PRUNE_MS)[1])

    def hosts(self, pool: str = "default") -> dict[str, HostReport | None]:
        """What each supervisor that is here says of its host; None for one that says nothing."""
        here = self.supervisors(pool)
        fields = texts(self._conn.main.hgetall(keys.pool(pool)))
        return {name: read_host(fields.get(f"{HOST}{name}", "")) for name in here}

    def supervisor_bye(self, pool: str, supervisor: str) -> None:
        """Say that a supervisor ends; again is no mistake."""
        pipe = self._conn.pipeline()
        pipe.zrem(keys.pool_supervisors(pool), supervisor)
        pipe.hdel(keys.pool(pool), f"{WANTS}{supervisor}", f"{HOST}{supervisor}")
        pipe.execute()

    # ---- tidying

    def pools(self) -> list[str]:
        """Names of the pools that anybody has written to, sorted. Looks at every key: for people, not for loops."""
        found = self._conn.main.scan_iter(match="heddle:pool:*", count=500)
        return sorted({text(key).split(":")[2] for key in found})

    def tidy_tickets(self, pool: str, *, idle_ms: int = FORGET_CONSUMER_MS) -> tuple[int, bool]:
        """Delete consumers of workers that are gone and hold no ticket, and have tickets read that were passed over.

        Returns:
            How many consumers were deleted, and whether somebody had set the group behind tickets that nobody has read.
        """
        args: list[str | int] = [keys.TICKET_GROUP, idle_ms, MOST_PASSED_OVER]
        deleted, passed = self._conn.script("group_tidy", [keys.pool_tickets(pool)], args)
        return int(deleted), bool(passed)

    # ---- inside

    def _present(self, key: str, *, prune_ms: int = PRUNE_MS) -> tuple[int, dict[str, int]]:
        """Server ms and who is in a sorted set, by last seen; who was silent for `prune_ms` is dropped."""
        now_ms = self._conn.now_ms()
        with contextlib.suppress(BrokerBlocked, Denied):  # who only looks may do so all the same
            self._conn.main.zremrangebyscore(key, "-inf", now_ms - prune_ms)
        pairs: Any = self._conn.main.zrangebyscore(key, f"({now_ms - prune_ms}", "+inf", withscores=True)
        return now_ms, self._sane(key, pairs, now_ms)

    def _sane(self, key: str, pairs: Iterable[tuple[Any, Any]], now_ms: int) -> dict[str, int]:
        """Members by when they were seen last; who was so far in the future is dropped: nobody of ours says such."""
        latest, found = now_ms + AHEAD_MS, {text(member): float(seen) for member, seen in pairs}
        if absurd := [member for member, seen in found.items() if seen > latest]:
            log.warning("drops what Heddle did not write key=%s members=%s", key, ", ".join(absurd[:5]))
            with contextlib.suppress(BrokerBlocked, Denied):
                self._conn.main.zrem(key, *absurd)
        return {member: moment(seen) for member, seen in found.items() if seen <= latest}
