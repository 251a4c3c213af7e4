"""The truth: who owns what, what was accepted, settled and published, as it must be after everything the server did.

It never asks the server; it is told every call and its reply, also those whose answer nobody gets, and it forgets with
the server when that loses a tail.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

Batch = tuple[int, int, str, int]
"""shard, epoch, nonce, seq"""
Owner = tuple[str, int, str]
"""worker, epoch, nonce"""


class Violation(BaseException):
    """A promise was broken. No shipped code may catch this."""


def must(fact: bool, promise: str, detail: object = "") -> None:
    """Raises Violation unless `fact`."""
    if not fact:
        raise Violation(f"{promise} {detail}".rstrip())


@dataclass(slots=True)
class ShardTruth:
    """A shard as the server must have it."""

    owner: Owner | None = None
    seq: int = 0
    claim_seq: int = 0
    given: int = 0
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Accepted:
    """A batch that was accepted."""

    entry: bytes
    kind: str
    steps: int
    bytes: int
    name: tuple[int, int]


@dataclass(slots=True)
class Truth:
    """What the server remembers, and (`ever`) what ever was.

    Attributes:
        accepted, settled: batches in the order of acceptance; what became of them.
        by_entry: batch by entry id, while it is in the stream. names: of the accepted ones, for their steps.
        answered: batches that were refused for good, by (batch, given).
        seat: trainer and epoch of the holder; "" for nobody.
        versions: digest by published policy version.
    """

    shards: dict[int, ShardTruth] = field(default_factory=dict)
    accepted: dict[Batch, Accepted] = field(default_factory=dict)
    settled: dict[Batch, str] = field(default_factory=dict)
    by_entry: dict[bytes, Batch] = field(default_factory=dict)
    names: set[tuple[int, int]] = field(default_factory=set)
    refused: set[tuple[Batch, int]] = field(default_factory=set)
    seat: tuple[str, int] = ("", 0)
    versions: dict[int, str] = field(default_factory=dict)
    forgotten: int = 0
    ever_accepted: dict[Batch, Accepted] = field(default_factory=dict)
    ever_claimed: set[tuple[int, int, str]] = field(default_factory=set)
    highest_epoch: dict[int, int] = field(default_factory=dict)
    losses: int = 0
    clock_went_back: bool = False
    number: int = 0
    _undo: list[tuple[int, Callable[[], object]]] = field(default_factory=list)

    def shard(self, index: int) -> ShardTruth:
        return self.shards.setdefault(index, ShardTruth())

    def forget(self, keep: int) -> None:
        """The server lost all that it wrote from its command number `keep` on."""
        self.losses += 1
        while self._undo and self._undo[-1][0] >= keep:
            self._undo.pop()[1]()

    def _note(self, undo: Callable[[], object]) -> None:
        self._undo.append((self.number, undo))

    # ---- shards

    def claimed(self, shard: int, owner: Owner, seq: int, given: int) -> None:
        truth, (_, epoch, nonce) = self.shard(shard), owner
        if truth.owner == owner:
            return
        must(truth.owner is None, "P1: a shard was claimed while another owns it", (shard, owner, truth.owner))
        must(
            (seq, given) == (truth.seq, truth.given), "P2: a claim was told a wrong seq or version", (shard, seq, given)
        )
        must(epoch > truth.epoch, "P1: an epoch did not rise", (shard, epoch, truth.epoch))
        must((shard, epoch, nonce) not in self.ever_claimed, "P1: a claim has the name of an earlier one", owner)
        if not self.clock_went_back:
            must(epoch > self.highest_epoch.get(shard, 0), "P1: an epoch came again", (shard, epoch))
        self.ever_claimed.add((shard, epoch, nonce))
        self.highest_epoch[shard] = max(epoch, self.highest_epoch.get(shard, 0))
        before = (truth.owner, truth.claim_seq, truth.epoch)

        def undo() -> None:
            truth.owner, truth.claim_seq, truth.epoch = before

        self._note(undo)
        truth.owner, truth.claim_seq, truth.epoch = owner, seq, epoch

    def lost(self, shard: int) -> None:
        """The shard was released or reaped."""
        truth = self.shard(shard)
        before, truth.owner = truth.owner, None

        def undo() -> None:
            truth.owner = before

        self._note(undo)

    # ---- batches

    def took(self, batch: Batch, owner: Owner, given: int, fact: Accepted, *, once: bool) -> None:
        """An append was answered OK."""
        shard, _, _, seq = batch
        truth = self.shard(shard)
        must(truth.owner == owner, "P1: a batch was accepted from another than the owner", (batch, truth.owner))
        must(seq == truth.seq + 1, "P2: a gap or a repeat was accepted", (batch, truth.seq))
        must(not once or given > truth.given, "a shard gave a policy version twice", (batch, given))
        must(batch not in self.accepted, "P2: a batch was accepted twice", batch)
        must(fact.name not in self.names, "P2: the same steps were accepted twice", batch)
        before = (truth.seq, truth.given)

        def undo() -> None:
            truth.seq, truth.given = before
            del self.accepted[batch], self.by_entry[fact.entry]
            self.names.discard(fact.name)

        self._note(undo)
        truth.seq, truth.given = seq, max(truth.given, given)
        self.accepted[batch] = self.ever_accepted[batch] = fact
        self.by_entry[fact.entry] = batch
        self.names.add(fact.name)

    def turned_away(self, batch: Batch, given: int) -> None:
        """An append was answered FENCED, GAP or GIVEN, and had not been accepted."""
        name = (batch, given)
        if name not in self.refused:
            self.refused.add(name)
            self._note(lambda: self.refused.discard(name))

    def settle(self, entry: bytes, outcome: str) -> Batch | None:
        """An entry left the stream; which batch it was, None when it had left before."""
        batch = self.by_entry.pop(entry, None)
        if batch is None:
            return None
        found = batch
        self.settled[found] = outcome

        def undo() -> None:
            self.by_entry[entry] = found
            del self.settled[found]

        self._note(undo)
        return batch

    def count_forgotten(self, number: int) -> None:
        self.forgotten += number

        def undo() -> None:
            self.forgotten -= number

        self._note(undo)

    # ---- the seat and what it publishes

    def sat_down(self, trainer: str, epoch: int, *, was_free: bool) -> None:
        if self.seat == (trainer, epoch):
            return
        must(epoch > self.seat[1], "P1: a seat epoch did not rise", (epoch, self.seat))
        must(was_free or self.seat[0] in ("", trainer), "P1: the seat was taken from a living holder", self.seat)
        self._seat((trainer, epoch))

    def stood_up(self, epoch: int) -> None:
        self._seat(("", epoch + 1))

    def _seat(self, seat: tuple[str, int]) -> None:
        before, self.seat = self.seat, seat

        def undo() -> None:
            self.seat = before

        self._note(undo)

    def published(self, version: int, digest: str) -> None:
        before = self.versions.get(version)
        if before == digest:
            return
        must(before is None, "two different weights have one policy version", version)
        if not self.losses:
            must(all(version > known for known in self.versions), "a policy version went down", version)
        self.versions[version] = digest
        self._note(lambda: self.versions.pop(version))
