"""Parcels: batches on their way to the broker, and what can become of one.

It never sends anything; the appender does.
"""

from dataclasses import dataclass, replace
from enum import Enum
from typing import Protocol

from heddle.batch import checksum
from heddle.broker.types import AppendMeta, AppendReply, Lease
from heddle.plane import Slot, file_of


class Outcome(Enum):
    """What became of a batch."""

    ACCEPTED = "accepted"  # OK, or DUP: it had been accepted and the answer was lost
    GIVEN = "given"  # a batch of this policy version was given already; the shard goes on
    FENCED = "fenced"  # the shard has another owner, or none
    GAP = "gap"  # the broker forgot batches that it had accepted
    GONE = "gone"  # the experiment was removed
    UNSENT = "unsent"  # its lease was over before it was sent


ENDS_THE_LEASE = frozenset({Outcome.FENCED, Outcome.GAP, Outcome.GONE})


@dataclass(slots=True, eq=False)
class Parcel:
    """One batch on its way.

    Attributes:
        lease: whose it is.
        seq: its number, given when it is first sent: one above the last that was accepted.
        blob: the encoded batch; kept until the answer.
        slot: the shared memory in which `blob` lies, and is read; None where it goes to the broker.
        meta: what the pointer says of it.
        snapshot: where the shard stands after it; None without one.
        no_snapshot: why there is none though there should be, to be shown; "" when there is nothing to say.
        ttl_ms: lease time that an accepted append grants.
        send_blob: False once the broker is known to have the bytes, and those of the snapshot.
        refusals: FULL answers or out-of-memory errors in a row.
        due: monotonic seconds before which it is not sent (again).
        since: monotonic seconds at which it was handed over.
    """

    lease: Lease
    blob: memoryview
    meta: AppendMeta
    ttl_ms: int
    snapshot: bytes | None = None
    no_snapshot: str = ""
    seq: int | None = None
    send_blob: bool = True
    refusals: int = 0
    due: float = 0.0
    since: float = 0.0
    slot: Slot | None = None

    def offer(self) -> str:
        """Have readers find a batch in shared memory by its number; the token of that memory, "" for none.

        Raises:
            PlaneError: the memory is not there any more.
        """
        if self.slot is None:
            return ""
        assert self.seq is not None, "a batch is numbered when it is sent"
        self.slot.offer(file_of(self.lease.shard, self.lease.epoch, self.lease.nonce, self.seq))
        return self.slot.token

    def leave_slot(self) -> None:
        """Its bytes go to the broker after all."""
        if self.slot is not None:
            self.blob = memoryview(bytes(self.blob))
            self.meta = replace(self.meta, crc32=checksum(self.blob))
            self.slot.discard()
            self.slot, self.send_blob = None, True

    def let_go(self, outcome: Outcome) -> None:
        """Its fate is known: what lies in shared memory is its reader's, or nobody's.

        One that was sent and not answered, or fenced, may have been accepted: its file stays, for a sweep to judge.
        """
        if self.slot is None:
            return
        if outcome in _NEVER_READ or self.seq is None:
            self.slot.discard()
        else:
            self.slot.close()
        self.slot = None


_NEVER_READ = frozenset({Outcome.GIVEN, Outcome.GAP, Outcome.GONE})

FINAL = {
    "OK": Outcome.ACCEPTED,
    "DUP": Outcome.ACCEPTED,
    "GIVEN": Outcome.GIVEN,
    "FENCED": Outcome.FENCED,
    "GAP": Outcome.GAP,
    "GONE": Outcome.GONE,
}


class Append(Protocol):
    """The broker's append: at most one round trip, never retried by itself."""

    def __call__(
        self,
        lease: Lease,
        *,
        seq: int,
        blob: memoryview | None,
        meta: AppendMeta,
        ttl_ms: int,
        snapshot: bytes | None,
        stepping_next: bool | None,
        resend_snapshot: bool,
        no_snapshot: str,
        place: str = "",
    ) -> AppendReply: ...
