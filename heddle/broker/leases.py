"""Leases: claim a shard, renew it, append to it, give it back. Part of `broker.shards`.

This module never plays or retries; every rule about who may write a shard is in the scripts.
"""

import logging
from collections.abc import Sequence
from typing import Any

from redis.exceptions import ResponseError

from heddle.broker import keys
from heddle.broker.calls import Pipe
from heddle.broker.claiming import HEALTHY_BATCHES, Claimed, ask_claim, read_claim
from heddle.broker.records import integer, text
from heddle.broker.streams import NO_MORE_IDS
from heddle.broker.tickets import Tickets
from heddle.broker.types import AppendMeta, AppendReply, Claim, Lease, Renewal, Ticket
from heddle.errors import BatchesForgotten, BrokerFull

log = logging.getLogger("heddle.broker")

BLOB_TTL_MS = 60_000
"""How long a batch waits, stored but not accepted, for its append; every FULL answer starts it again."""


class Leases(Tickets):
    """The calls of `Shards` that a worker makes."""

    def claim(self, ticket: Ticket, *, worker: str, nonce: str, ttl_ms: int) -> Claimed:
        """Claim the shard of a ticket; a call whose answer was lost may be made again with the same nonce.

        Args:
            nonce: random text of this claim, letters and digits.
            ttl_ms: how long the lease lasts without a renewal or append.

        Returns:
            The claim; HELD when another worker was first; GONE when there is nothing to claim (removed, stopped).

        Raises:
            BrokerFull: no new work while the memory is full.
            ValueError: the nonce is none.
        """
        return read_claim(ticket, worker, nonce, self._conn.script("claim", *ask_claim(ticket, worker, nonce, ttl_ms)))

    def claim_all(self, wanted: Sequence[tuple[Ticket, str, int]], *, worker: str) -> list[Claimed | Exception]:
        """`claim` for several tickets in one round trip, each by itself.

        Args:
            wanted: each ticket with a nonce of its own and the ms that its lease lasts.

        Returns:
            What `claim` answers to each, or would raise, in order: what went well counts whatever became of the others.

        Raises:
            BrokerUnreachable: any of them may or may not have been claimed.
        """
        pipe = self._conn.pipeline()
        for ticket, nonce, ttl_ms in wanted:
            pipe.script("claim", *ask_claim(ticket, worker, nonce, ttl_ms))
        replies = pipe.execute(raise_on_error=False) if wanted else []
        return [
            reply if isinstance(reply, Exception) else read_claim(ticket, worker, nonce, reply)
            for (ticket, nonce, _), reply in zip(wanted, replies, strict=True)
        ]

    def renew(
        self, experiment: str, p: int, leases: Sequence[tuple[Lease, bool]], *, ttl_ms: int, mark: int = 0
    ) -> list[Renewal]:
        """Keep leases of one partition; works when the memory is full, and revives one that ran out untaken.

        Args:
            leases: each with whether a death now is its shard's: it is being stepped and, where environments run in
                children, no other one's live in that worker.
            mark: number of the worker's last mark when that was so; of what arrives out of order the newest stays.

        Returns:
            One answer for each lease, in order.
        """
        if not leases:
            return []
        own = [keys.ctl(experiment, p), keys.due(experiment, p)]
        args: list[str | int] = [ttl_ms]
        for lease, stepping in leases:
            own += [keys.shard(experiment, p, lease.shard), keys.lease(experiment, p, lease.shard)]
            args += [lease.shard, lease.worker, lease.epoch, lease.nonce, int(stepping)]
        reply = [text(item) for item in self._conn.script("renew", own, [*args, mark])]
        if reply[0] == "GONE":
            return [Renewal(lease.shard, "GONE", 0, "stop", 0, 0) for lease, _ in leases]
        command, policy, eval_policy = reply[1], integer(reply[2]), integer(reply[3])
        return [
            Renewal(lease.shard, reply[4 + 2 * i], integer(reply[5 + 2 * i]), command, policy, eval_policy)  # type: ignore[arg-type]
            for i, (lease, _) in enumerate(leases)
        ]

    def append(
        self,
        lease: Lease,
        *,
        seq: int,
        blob: memoryview | bytes | None,
        meta: AppendMeta,
        ttl_ms: int,
        snapshot: memoryview | bytes | None = None,
        stepping_next: bool | None = False,
        resend_snapshot: bool = False,
        no_snapshot: str = "",
        place: str = "",
    ) -> AppendReply:
        """Deliver a shard's next batch in one round trip; renews its lease.

        May be called again with the same arguments however it ended: an accepted batch answers DUP, and after FULL
        the script alone is enough. At most one batch of a shard may be unanswered.

        Args:
            seq: one above the last accepted batch.
            blob: the encoded batch, meta.bytes long; None when the broker has it already (after FULL).
            ttl_ms: how long the lease then lasts.
            snapshot: the environments' state after this batch; it counts only if the batch is accepted.
            stepping_next: the shard is being stepped now; None leaves what was said of that.
            resend_snapshot: with blob None: the batch carries a snapshot that the broker has already.
            no_snapshot: why it carries none though it should, to be shown; "" when there is nothing to say.
            place: token of the shared memory where the bytes lie, in a file of this batch's identity; blob is None.

        Raises:
            BrokerFull: the bytes could not be stored; nothing changed.
            BrokerUnreachable: it may or may not have been accepted.
        """
        experiment, p, shard = lease.experiment, lease.partition, lease.shard
        blob_key = keys.blob(experiment, p, shard, lease.epoch, lease.nonce, seq)
        own = [keys.ctl(experiment, p), keys.shard(experiment, p, shard), keys.lease(experiment, p, shard)]
        own += [keys.due(experiment, p), keys.experience(experiment, p), keys.flow(experiment, p)]
        own += [keys.waiting(experiment, p), blob_key]
        pipe = self._conn.pipeline()
        if blob is not None:
            pipe.set(blob_key, _sized(blob, meta), px=BLOB_TTL_MS, nx=True)
        if snapshot is not None or resend_snapshot:
            snapshot_key = keys.snapshot(experiment, p, shard, lease.epoch, lease.nonce, seq)
            own.append(snapshot_key)
            if snapshot is not None:
                pipe.set(snapshot_key, memoryview(snapshot).cast("B"), px=BLOB_TTL_MS, nx=True)
        stepping: str | int = "" if stepping_next is None else int(stepping_next)
        args: list[str | int] = [shard, lease.worker, lease.epoch, lease.nonce, seq, ttl_ms, stepping]
        args += [BLOB_TTL_MS, meta.kind, meta.version_min, meta.version_max, meta.segments, meta.steps]
        args += [meta.bytes, meta.crc32, meta.given, meta.waited_ms, no_snapshot]
        args += [place, meta.played_ms, meta.held_ms]
        pipe.script("append", own, args)
        try:
            return self._append_reply(pipe)
        except ResponseError as error:
            if NO_MORE_IDS not in str(error):
                raise
        self._mend(experiment, p)
        return self._append_reply(self._conn.pipeline().script("append", own, args))

    def release(
        self,
        lease: Lease,
        *,
        error: str | None = None,
        barren: bool = False,
        forgotten_batches: int = 0,
        forgotten_steps: int = 0,
        accepted: int | None = None,
        stuck_env: int | None = None,
        early: bool = False,
    ) -> bool:
        """Give a shard back: queued with a new ticket; stopped when the experiment was; works when memory is full.

        Args:
            error: why, when something is wrong with it; kept as its last error.
            barren: it failed without one batch, which counts towards its quarantine.
            forgotten_batches, forgotten_steps: accepted, and then lost by the broker (after GAP): to be counted.
            accepted: the last seq that the broker should know; None for whatever it does.
            stuck_env: the environment that failed and gave nothing, though others did: owners in a row that failed with
                the same one count towards its quarantine, too.
            early: what failed had not finished an episode since the shard was claimed: it then follows the failure
                before, however many batches lie between, and so does one after fewer than `HEALTHY_BATCHES`. As many
                in a row as `faults.env_failures` says quarantine the shard.

        Returns:
            False when it was not the caller's any more (nothing is counted then; see `report_forgotten`).

        Raises:
            BatchesForgotten: the broker knows fewer than `accepted`, or knows more than that and some are said to be
                forgotten; the shard is still the caller's.
        """
        experiment, p, shard = lease.experiment, lease.partition, lease.shard
        args: list[str | int] = [shard, lease.worker, lease.epoch, lease.nonce, error or "", int(barren)]
        args += [forgotten_batches, forgotten_steps, "" if accepted is None else accepted]
        args += ["" if stuck_env is None else stuck_env, "" if early else HEALTHY_BATCHES]
        reply = self._conn.script("release", shard_keys(experiment, p, shard), args)
        if text(reply[0]) == "GAP":
            raise BatchesForgotten(f"{experiment}: the broker forgot batches of shard {shard}", seq=integer(reply[1]))
        if text(reply[0]) != "OK":
            return False
        if text(reply[1]) == "queued":
            self._issue(experiment, p, [shard], urgent=False)
        return True

    def report_forgotten(self, claim: Claim, *, accepted: int, known: int, steps: int) -> bool:
        """Have counted what the broker accepted under a claim that is over and does not know any more; once a claim.

        Works when the memory is full. No mistake when nothing is lost, or the experiment is removed.

        Args:
            accepted: seq of the last batch that was accepted under the claim.
            known, steps: the seq up to which the broker still knows them, and the steps of those beyond.

        Returns:
            False when the broker, which went back, takes the claim for the shard's owner: nothing was counted,
            `release` does it.

        Raises:
            BatchesForgotten: `known` is not what the broker knows; nothing was counted.
        """
        lease = claim.lease
        experiment, p, shard = lease.experiment, lease.partition, lease.shard
        own = [keys.ctl(experiment, p), keys.shard(experiment, p, shard), keys.flow(experiment, p)]
        args: list[str | int] = [lease.epoch, lease.nonce, claim.seq, accepted, known, steps]
        reply = self._conn.script("forgotten", own, args)
        if text(reply[0]) == "KNOWN":
            raise BatchesForgotten(f"{experiment}: the broker forgot batches of shard {shard}", seq=integer(reply[1]))
        return text(reply[0]) != "HELD"

    def snapshot(self, key: str) -> bytes | None:
        """The environments' state at `Claim.snapshot`; None when the broker lost it, or it is no string any more."""
        try:
            found: Any = self._conn.main.get(key)
        except ResponseError as error:
            if "WRONGTYPE" not in str(error):
                raise
            return None  # somebody put something else in its place
        return None if found is None else bytes(found)

    def forget_blob(self, lease: Lease, seq: int) -> None:
        """After GONE: remove the blob and snapshot of a batch that nobody will ever accept."""
        identity = (lease.experiment, lease.partition, lease.shard, lease.epoch, lease.nonce, seq)
        self._conn.main.unlink(keys.blob(*identity), keys.snapshot(*identity))

    # ---- inside

    def _mend(self, experiment: str, p: int) -> None:
        """Somebody wrote the highest id there is into the stream, which ends it; make it anew without that one."""
        own = [keys.ctl(experiment, p), keys.experience(experiment, p), keys.flow(experiment, p)]
        reply = self._conn.script("mend", own, [keys.TRAINER_GROUP])
        log.warning("made the stream anew, its ids had run out experiment=%s answer=%s", experiment, text(reply[0]))

    def _append_reply(self, pipe: Pipe) -> AppendReply:
        replies = pipe.execute(raise_on_error=False)
        refused = next((reply for reply in replies[:-1] if isinstance(reply, BrokerFull)), None)
        answer = replies[-1]
        if isinstance(answer, Exception):
            raise answer
        status = text(answer[0])
        if status == "NOBLOB" and refused is not None:
            raise refused
        for reply in replies[:-1]:
            if isinstance(reply, Exception) and reply is not refused:
                raise reply
        return AppendReply(
            status=status,  # type: ignore[arg-type]
            command=text(answer[1]),  # type: ignore[arg-type]
            policy=integer(answer[2]),
            eval_policy=integer(answer[3]),
            seq=integer(answer[4]),
            room_entries=integer(answer[5]),
            room_bytes=integer(answer[6]),
            accepted_before=integer(answer[7]) == 1,
            plane=text(answer[8]),
        )


def shard_keys(experiment: str, p: int, shard: int) -> list[str]:
    """The keys of the scripts that end an ownership."""
    own = [keys.ctl(experiment, p), keys.shard(experiment, p, shard), keys.lease(experiment, p, shard)]
    own += [keys.due(experiment, p), keys.queued(experiment, p), keys.flow(experiment, p)]
    return [*own, keys.waiting(experiment, p)]


def _sized(blob: memoryview | bytes, meta: AppendMeta) -> memoryview:
    """The bytes as the client must send them; a view of another shape would be cut short without a word."""
    view = memoryview(blob).cast("B")
    if len(view) != meta.bytes:
        raise ValueError(f"the batch is {len(view)} bytes, and its meta says {meta.bytes}")
    return view
