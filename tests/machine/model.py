"""The model that the broker is compared with: who owns what, what was accepted, answered, settled.

It never talks to a broker; it is told every answer, also those that "get lost" on the way to a worker.
"""

from copy import deepcopy
from dataclasses import dataclass, field

from heddle.broker.experience_types import Pointer
from heddle.broker.types import AppendReply, Claim, Lease

Name = tuple[int, int, str, int, int]
"""(shard, epoch, nonce, seq, given): one batch that somebody played."""
Key = tuple[int, int, str, int]
"""The same as pointers know it."""


@dataclass(frozen=True)
class Call:
    """An append that somebody made and may make again at any time."""

    lease: Lease
    seq: int
    given: int
    steps: int
    size: int

    @property
    def name(self) -> Name:
        return (self.lease.shard, self.lease.epoch, self.lease.nonce, self.seq, self.given)


@dataclass
class Held:
    """A shard as its worker sees it."""

    claim: Claim
    known: int
    pending: Call | None = None

    @property
    def lease(self) -> Lease:
        return self.claim.lease


@dataclass
class Worker:
    """A worker: what it holds, and a claim whose answer it never got."""

    name: str
    held: dict[int, Held] = field(default_factory=dict)


@dataclass
class ShardTruth:
    """A shard as the broker must see it."""

    owner: Lease | None = None
    seq: int = 0
    claim_seq: int = 0
    given: int = 0
    owners: list[Lease] = field(default_factory=list)


@dataclass
class Truth:
    """What must be so."""

    shards: dict[int, ShardTruth]
    sync: bool
    accepted: dict[Name, Call] = field(default_factory=dict)
    order: dict[int, list[Key]] = field(default_factory=dict)
    answered: set[Name] = field(default_factory=set)
    discarded: dict[Name, Call] = field(default_factory=dict)
    unreported: dict[Name, Call] = field(default_factory=dict)
    late: dict[Name, Call] = field(default_factory=dict)
    """Forgotten, and refused when a late copy came, of which its worker knows nothing."""
    forgotten: set[Name] = field(default_factory=set)
    settled: dict[Key, str] = field(default_factory=dict)
    manifest: set[Key] = field(default_factory=set)
    epochs: dict[int, int] = field(default_factory=dict)

    def claimed(self, lease: Lease) -> None:
        """A claim was answered OK."""
        shard = self.shards[lease.shard]
        if shard.owner == lease:
            return
        assert shard.owner is None, "claimed while another owns it"
        assert lease.epoch > self.epochs.get(lease.shard, 0), "an epoch did not rise"
        self.epochs[lease.shard] = lease.epoch
        shard.owner, shard.claim_seq = lease, shard.seq
        shard.owners.append(lease)

    def lost(self, shard: int) -> None:
        """The shard was released or reaped."""
        self.shards[shard].owner = None

    def told(self, call: Call, reply: AppendReply, *, entries: int, waiting: int) -> None:
        """An append was answered; `entries` and `waiting` were so before it."""
        shard, name = self.shards[call.lease.shard], call.name
        owned = shard.owner == call.lease
        assert (reply.status == "FENCED") == (not owned), f"{reply.status} to {call}, the owner is {shard.owner}"
        if reply.status == "OK":
            self._accept(call)
        elif reply.status == "DUP":
            assert any(known[:4] == name[:4] for known in self.accepted), "DUP of what was never accepted"
        elif reply.status == "FENCED":
            if not reply.accepted_before:
                self._discard(call)
            else:
                assert any(known[:4] == name[:4] for known in self.accepted)
        elif reply.status in ("GAP", "GIVEN"):
            assert reply.status == "GAP" or (self.sync and call.given <= shard.given)
            assert reply.status == "GIVEN" or call.seq != shard.seq + 1
            self._discard(call)
        elif reply.status == "FULL":
            assert entries or waiting, "FULL with nothing in flight and nobody waiting"
        if reply.status not in ("FULL", "NOBLOB"):
            self.answered.add(name)

    def _accept(self, call: Call) -> None:
        shard = self.shards[call.lease.shard]
        assert call.seq == shard.seq + 1, "a gap or a repeat was accepted"
        assert not self.sync or call.given > shard.given, "a version was given twice"
        shard.seq, shard.given = call.seq, max(shard.given, call.given)
        self.accepted[call.name] = call
        self.unreported.pop(call.name, None)
        self.late.pop(call.name, None)
        self.order.setdefault(call.lease.shard, []).append(call.name[:4])

    def _discard(self, call: Call) -> None:
        if call.name in self.unreported:
            self.late[call.name] = self.unreported.pop(call.name)
        elif call.name in self.answered:
            return
        self.discarded[call.name] = call

    def in_flight(self) -> list[Key]:
        """Accepted and not settled, in the order of acceptance within each shard."""
        return [key for keys in self.order.values() for key in keys if key not in self.settled]

    def forget_last(self, shard: int) -> Call | None:
        """The broker forgets the last batch of a shard, if that is its owner's and in flight; which one."""
        truth, order = self.shards[shard], self.order.get(shard, [])
        if truth.owner is None or truth.seq <= truth.claim_seq or not order or order[-1] in self.settled:
            return None
        key = order.pop()
        name = next(name for name in self.accepted if name[:4] == key)
        call = self.accepted.pop(name)
        truth.seq -= 1
        truth.given = max((known[4] for known in self.accepted if known[0] == shard), default=0)
        self.unreported[name] = call
        return call

    def after(self, later: "Truth") -> "Truth":
        """This, if it is what a broker goes back to from `later`: manifests and epochs were given out, and stay so."""
        again = deepcopy(self)
        # what it had forgotten before, and nobody reported, is not known now
        known = later.late | later.unreported | later.accepted
        lost = {name: call for name, call in known.items() if name not in again.accepted}
        again.unreported |= lost
        again.answered |= lost.keys() & later.answered
        again.manifest, again.epochs = set(later.manifest), dict(later.epochs)
        return again

    def report(self, lease: Lease, known: int) -> list[Call]:
        """What a worker that learned of it reports as forgotten when it releases this lease.

        Args:
            known: seq of the last batch of which it was told that it was accepted.
        """
        mine = [call for call in self.unreported.values() if call.lease == lease]
        mine += [call for call in self.late.values() if call.lease == lease and call.seq <= known]
        for call in mine:
            self.unreported.pop(call.name, None)
            self.late.pop(call.name, None)
        self.forgotten.update(call.name for call in mine)
        return mine


def key_of(pointer: Pointer) -> Key:
    """A batch as pointers know it."""
    return (pointer.shard, pointer.epoch, pointer.nonce, pointer.seq)


@dataclass
class Trainer:
    """A trainer: its seat, what it was given, and what is in its weights (not all of it saved)."""

    epoch: int
    trained: set[Key]
    hand: dict[str, Pointer] = field(default_factory=dict)
