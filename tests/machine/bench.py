"""One experiment on a real server, and what must hold of it after every step.

It has no rules of its own: workers, coordinators and trainers add them.
"""

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant

from heddle.broker import Broker, keys
from heddle.broker.types import Lease, Ticket
from heddle.errors import BrokerFull
from tests.broker_kit import POOL, TTL_MS, Books, E, admit, meta_of, payload
from tests.conftest import MEMORY
from tests.machine.model import Call, Held, ShardTruth, Trainer, Truth, Worker

SHARDS = 2
WORKERS = 3
KNOWN_OWNERS = 6
"""How many owners back a call may be made again; the broker remembers eight."""

index = st.integers(min_value=0, max_value=1 << 16)
coin = st.booleans()
shards = st.integers(min_value=0, max_value=SHARDS - 1)


class Bench(RuleBasedStateMachine):
    """One experiment of two shards, three workers, one trainer at a time."""

    def __init__(self, broker: Broker) -> None:
        super().__init__()
        self.broker = broker
        self.raw: Any = broker.conn.main
        self.counter = 0
        self.full = False

    @initialize(sync=coin, max_entries=st.integers(min_value=1, max_value=4))
    def begin(self, sync: bool, max_entries: int) -> None:
        self.raw.config_set("maxmemory", MEMORY)
        self.raw.flushall()
        admit(self.broker, shards=SHARDS, sync=int(sync), max_entries=max_entries, barren_deaths=1000)
        self.raw.xgroup_create(keys.pool_tickets(POOL), keys.TICKET_GROUP, id="0")
        self.truth = Truth({shard: ShardTruth() for shard in range(SHARDS)}, sync)
        self.workers = [Worker(f"w{number}") for number in range(WORKERS)]
        self.calls: list[Call] = []
        self.claims: list[tuple[Ticket, str, str]] = []
        self.policy = 1
        self.trainer = Trainer(5, set())
        self.zombies: list[Trainer] = []

    def change_memory(self, full: bool) -> None:
        self.full = full
        self.raw.config_set("maxmemory", 1 if full else MEMORY)

    # ---- what must hold

    @invariant()
    def the_books_are_right(self) -> None:
        if not hasattr(self, "truth"):
            return
        Books(self.broker).check()
        truth, flow = self.truth, self.broker.experience.flow(E, 0)
        assert flow.appended.batches == len(truth.accepted)
        assert flow.appended.steps == sum(call.steps for call in truth.accepted.values())
        assert flow.discarded.batches == len(truth.discarded)
        assert flow.discarded.steps == sum(call.steps for call in truth.discarded.values())
        assert flow.forgotten.batches == len(truth.forgotten)
        unreported = len([name for name in truth.unreported if name in truth.answered])
        told = flow.appended.batches + flow.discarded.batches + flow.forgotten.batches + unreported
        # refused behind a gap, and accepted when it came again behind a late copy of the one before it: counted in
        # both; or forgotten, refused when a late copy of it came, and reported by its worker, which knows of none
        twice = len(truth.discarded.keys() & (truth.accepted.keys() | truth.forgotten))
        assert len(truth.answered) == told - twice
        for outcome in ("trained", "stale", "dead"):
            assert getattr(flow, outcome).batches == list(truth.settled.values()).count(outcome)

    @invariant()
    def every_shard_is_as_it_must_be(self) -> None:
        if not hasattr(self, "truth"):
            return
        queued = self.raw.hkeys(keys.queued(E, 0))
        for state in self.broker.shards.shards(E, 0):
            truth = self.truth.shards[state.shard]
            assert (state.seq, state.given) == (truth.seq, truth.given)
            assert state.worker == (truth.owner.worker if truth.owner else "")
            assert (str(state.shard).encode() in queued) == (truth.owner is None)
        stream: dict[int, list[Any]] = {}
        for _, fields in self.raw.xrange(keys.experience(E, 0)):
            key = (int(fields[b"shard"]), int(fields[b"epoch"]), fields[b"nonce"].decode(), int(fields[b"seq"]))
            stream.setdefault(key[0], []).append(key)
        for shard in range(SHARDS):
            assert stream.get(shard, []) == [key for key in self.truth.in_flight() if key[0] == shard]

    # ---- inside

    def known_owners(self, shard: int) -> list[Lease]:
        return self.truth.shards[shard].owners[-KNOWN_OWNERS:]

    def send(self, call: Call, *, bare: bool) -> str:
        data = payload(call.lease, call.seq, call.size)
        entries, waiting = self.raw.xlen(keys.experience(E, 0)), self.raw.zcard(keys.waiting(E, 0))
        try:
            reply = self.broker.shards.append(
                call.lease,
                seq=call.seq,
                blob=None if bare else data,
                meta=meta_of(data, steps=call.steps, given=call.given),
                ttl_ms=TTL_MS,
            )
        except BrokerFull:
            assert self.full
            return "OOM"
        self.truth.told(call, reply, entries=entries, waiting=waiting)
        return reply.status

    def give_back(self, held: Held) -> None:
        """Release as an honest worker: with a report of what it had accepted and the broker forgot."""
        owned = self.truth.shards[held.lease.shard].owner == held.lease
        lost = self.truth.report(held.lease, held.known) if owned else []
        steps = sum(call.steps for call in lost)
        done = self.broker.shards.release(held.lease, forgotten_batches=len(lost), forgotten_steps=steps)
        assert done == owned
        if owned:
            self.truth.lost(held.lease.shard)

    def report_taken(self, held: Held) -> None:
        """As an honest worker whose shard was taken: report what it had accepted and the broker forgot."""
        lost, shard = self.truth.report(held.lease, held.known), held.lease.shard
        steps, known = sum(call.steps for call in lost), held.known - len(lost)
        if not self.broker.shards.report_forgotten(held.claim, accepted=held.known, known=known, steps=steps):
            assert self.truth.shards[shard].owner == held.lease  # a server that went back
            assert self.broker.shards.release(held.lease, forgotten_batches=len(lost), forgotten_steps=steps)
            self.truth.lost(shard)
