"""Experience as the broker tells of it: pointers, and what became of them in numbers. Plain values.

This module never talks to a server. Epochs and versions are ints, times are server milliseconds.
"""

from dataclasses import dataclass
from typing import Literal

from heddle.broker.types import Kind

Settled = Literal["trained", "evaluated", "stale", "dropped", "rolled_back"]
"""What became of an entry that is acked; `dead` is the outcome of `experience.set_aside`."""


@dataclass(frozen=True, slots=True)
class Pointer:
    """An entry of the experience stream: where a batch lies and what it is.

    Attributes:
        entry_id: in the stream.
        shard, epoch, nonce, seq: the batch's identity. A shard below 0 is the line of replays of shard -1 - it.
        kind, version_min, version_max, segments, steps, bytes, crc32, given, waited_ms, played_ms, held_ms: as in
            `AppendMeta`.
        location: "redis": the bytes are the string at blob_key; "shm": they are a file of that batch's identity in the
            shared memory of a host.
        place: token of that shared memory; "" for "redis".
    """

    entry_id: str
    shard: int
    epoch: int
    nonce: str
    seq: int
    kind: Kind
    version_min: int
    version_max: int
    segments: int
    steps: int
    bytes: int
    crc32: int
    blob_key: str
    given: int = 0
    waited_ms: int = 0
    location: str = "redis"
    place: str = ""
    played_ms: int = 0
    held_ms: int = 0

    @property
    def named(self) -> str:
        """For log lines, behind "shard=": "3 epoch=17 seq=5"."""
        return f"{self.shard} epoch={self.epoch} seq={self.seq}"

    @property
    def appended_ms(self) -> int:
        """Server ms at which it was accepted."""
        return int(self.entry_id.partition("-")[0])

    @property
    def played_shard(self) -> int:
        """The shard whose environments gave it."""
        return self.shard if self.shard >= 0 else -1 - self.shard


@dataclass(frozen=True, slots=True)
class Amount:
    """A counter in both of its units."""

    batches: int = 0
    steps: int = 0


@dataclass(frozen=True, slots=True)
class Flow:
    """An experiment's experience, counted. Always: appended = trained + evaluated + stale + dead + dropped +
    rolled_back + what is in flight, in batches and in steps.

    Attributes:
        entries, bytes, steps: in flight: accepted and not acked.
        parked: bytes of batches that wait for room.
        waiting: shards that wait for room.
        appended: accepted from workers.
        trained, evaluated, stale, dead, dropped, rolled_back: what became of them.
        discarded: answered FENCED, GAP or GIVEN without ever having been accepted.
        forgotten: accepted, lost by the broker, and reported by the worker that played them.
        foreign: entries of the stream that no append wrote and that were set aside; they count nowhere else.
        appended_bytes: of those appended, wherever their bytes lie.
        mapped: batches of those appended whose bytes never went through the server, but through shared memory.
        rolled_back_by: seat epoch of the trainer that rolled back last; 0 for none.
    """

    entries: int
    bytes: int
    steps: int
    parked: int
    waiting: int
    appended: Amount
    trained: Amount
    evaluated: Amount
    stale: Amount
    dead: Amount
    dropped: Amount
    rolled_back: Amount
    discarded: Amount
    forgotten: Amount
    foreign: int = 0
    mapped: int = 0
    rolled_back_by: int = 0
    appended_bytes: int = 0
