"""Workers that die, dawdle, return and retry any old call, trainers that die, coordinators that disagree.

On real servers. After every step promises P1 and P2 and all counters are compared with a model.
HEDDLE_SOAK=1 runs thousands of schedules.
"""

import contextlib
import os
from typing import Any

from hypothesis import HealthCheck, event, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from heddle.broker import Broker, keys
from heddle.broker.types import Claim, Lease
from heddle.errors import BrokerFull, LeaderLost, SeatLost
from tests.broker_kit import LEADER, POOL, TTL_MS, Books, E, admit, ctl, meta_of, payload, run_out
from tests.conftest import MEMORY
from tests.machine.model import Call, Held, ShardTruth, Trainer, Truth, Worker, key_of

SHARDS = 2
WORKERS = 3
KNOWN_OWNERS = 6
"""How many owners back a call may be made again; the broker remembers eight."""

index = st.integers(min_value=0, max_value=1 << 16)
coin = st.booleans()


class BrokerMachine(RuleBasedStateMachine):
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
        self.truth = Truth({shard: ShardTruth() for shard in range(SHARDS)}, sync)
        self.workers = [Worker(f"w{number}") for number in range(WORKERS)]
        self.calls: list[Call] = []
        self.policy = 1
        self.trainer = Trainer(5, set())
        self.zombies: list[Trainer] = []

    # ---- workers

    @rule(who=index, lose=coin)
    def claim(self, who: int, lose: bool) -> None:
        worker = self.workers[who % WORKERS]
        try:
            ticket = self.broker.shards.read_ticket(POOL, worker.name, block_ms=0)
        except BrokerFull:  # its group is missing, and cannot be made now
            assert self.full
            return
        if ticket is None:
            return
        self.counter += 1
        nonce = f"n{self.counter}"
        for _ in range(1 + lose):  # the answer was lost: the same claim again
            try:
                claim = self.broker.shards.claim(ticket, worker=worker.name, nonce=nonce, ttl_ms=TTL_MS)
            except BrokerFull:
                assert self.full
                return
            if isinstance(claim, Claim):
                self.truth.claimed(claim.lease)
        self.broker.shards.drop_ticket(ticket)
        if isinstance(claim, Claim):
            truth = self.truth.shards[ticket.shard]
            assert (claim.seq, claim.given) == (truth.seq, truth.given)
            worker.held[ticket.shard] = Held(claim, claim.seq)

    @rule(who=index, which=index, lose=coin, bare=coin, steps=st.integers(min_value=1, max_value=9))
    def deliver(self, who: int, which: int, lose: bool, bare: bool, steps: int) -> None:
        """A worker plays and appends, or tries again what it had no answer to."""
        worker = self.workers[who % WORKERS]
        if not worker.held:
            return
        held = list(worker.held.values())[which % len(worker.held)]
        if held.pending is None:
            given = self.policy if self.truth.sync else 0
            held.pending = Call(held.lease, held.known + 1, given, steps, 100 + steps)
            self.calls.append(held.pending)
            bare = False
        call = held.pending
        status, seq = self.send(call, bare=bare)
        if lose or status in ("FULL", "NOBLOB", "OOM"):
            return
        held.pending = None
        if status in ("OK", "DUP"):
            held.known = call.seq
        elif status == "GAP":
            self.give_back(held)
            del worker.held[held.lease.shard]
        elif status == "FENCED":
            del worker.held[held.lease.shard]

    @precondition(lambda self: self.calls)
    @rule(which=index, bare=coin)
    def repeat_any_old_append(self, which: int, bare: bool) -> None:
        self.calls = [call for call in self.calls if call.lease in self.known_owners(call.lease.shard)]
        if self.calls:
            self.send(self.calls[which % len(self.calls)], bare=bare)

    @rule(shard=st.integers(min_value=0, max_value=SHARDS - 1), which=index)
    def renew_any_old_lease(self, shard: int, which: int) -> None:
        owners = self.truth.shards[shard].owners
        if not owners:
            return
        lease = owners[which % len(owners)]
        (renewal,) = self.broker.shards.renew(E, 0, [(lease, bool(which % 2))], ttl_ms=TTL_MS)
        owned = self.truth.shards[shard].owner == lease
        assert renewal.status == ("OK" if owned else "FENCED")
        assert renewal.seq == self.truth.shards[shard].seq

    @rule(shard=st.integers(min_value=0, max_value=SHARDS - 1), which=index)
    def release_any_old_lease(self, shard: int, which: int) -> None:
        owners = self.truth.shards[shard].owners
        if owners:
            lease = owners[which % len(owners)]
            owned = self.truth.shards[shard].owner == lease
            assert self.broker.shards.release(lease) == owned
            if owned:
                self.truth.lost(shard)

    @rule(who=index)
    def release_all(self, who: int) -> None:
        worker = self.workers[who % WORKERS]
        for held in worker.held.values():
            if held.pending is None:
                self.give_back(held)
        worker.held = {shard: held for shard, held in worker.held.items() if held.pending is not None}

    @rule(who=index, supervised=coin)
    def die(self, who: int, supervised: bool) -> None:
        worker = self.workers[who % WORKERS]
        if supervised:
            for freed in self.broker.shards.release_worker(worker.name):
                owner = self.truth.shards[freed.shard].owner
                assert owner is not None and owner.worker == worker.name
                self.truth.lost(freed.shard)
            assert not any(s.owner and s.owner.worker == worker.name for s in self.truth.shards.values())
        self.counter += 1
        self.workers[who % WORKERS] = Worker(f"w{who % WORKERS}-{self.counter}")

    # ---- time and coordinators

    @rule(shard=st.integers(min_value=0, max_value=SHARDS - 1))
    def let_a_lease_run_out(self, shard: int) -> None:
        owner = self.truth.shards[shard].owner
        if owner is not None and not self.full:
            run_out(self.broker, owner)

    @rule()
    def reap(self) -> None:
        over = {shard for shard in range(SHARDS) if not self.raw.exists(keys.lease(E, 0, shard))}
        for found in self.broker.shards.reap(E, 0, leader_epoch=LEADER):
            owner = self.truth.shards[found.shard].owner
            assert found.shard in over and owner is not None and owner.epoch == found.epoch
            self.truth.lost(found.shard)

    @rule()
    def reap_as_a_leader_that_was(self) -> None:
        with contextlib.suppress(LeaderLost):
            assert self.broker.shards.reap(E, 0, leader_epoch=LEADER - 1) == []

    @rule()
    def issue_tickets_anew(self) -> None:
        try:
            for waiting in self.broker.shards.tickets_of(E, 0):
                assert self.truth.shards[waiting.shard].owner is None
                if not waiting.in_stream or waiting.read_ms_ago is not None:
                    assert self.broker.shards.queue_ticket(E, 0, waiting.shard, POOL)
        except BrokerFull:
            assert self.full

    @rule()
    def publish(self) -> None:
        self.policy += 1
        if not self.full:
            ctl(self.broker, policy=self.policy)

    # ---- the server

    @rule(full=coin)
    def change_memory(self, full: bool) -> None:
        self.full = full
        self.raw.config_set("maxmemory", 1 if full else MEMORY)

    @rule()
    def forget_the_scripts(self) -> None:
        self.raw.script_flush()

    @rule(shard=st.integers(min_value=0, max_value=SHARDS - 1))
    def lose_the_tail(self, shard: int) -> None:
        """The server comes back without the last append."""
        if self.full:
            return
        call = self.truth.forget_last(shard)
        if call is None:
            return
        for entry, fields in self.raw.xrange(keys.experience(E, 0)):
            if (int(fields[b"shard"]), int(fields[b"epoch"]), int(fields[b"seq"])) == call.name[:2] + (call.seq,):
                self.raw.xdel(keys.experience(E, 0), entry)
                self.raw.xack(keys.experience(E, 0), keys.TRAINER_GROUP, entry)
                self.trainer.hand.pop(entry.decode(), None)
                self.raw.unlink(fields[b"blob"])
        for field, by in (("entries", 1), ("bytes", call.size), ("steps", call.steps), ("appended", 1)):
            self.raw.hincrby(keys.flow(E, 0), field, -by)
        self.raw.hincrby(keys.flow(E, 0), "appended_steps", -call.steps)
        self.raw.hset(keys.shard(E, 0, shard), mapping={"seq": call.seq - 1, "given": self.truth.shards[shard].given})
        self.trainer.trained.discard(call.name[:4])
        self.truth.manifest.discard(call.name[:4])

    # ---- trainers

    @rule(count=st.integers(min_value=1, max_value=4))
    def read(self, count: int) -> None:
        name = f"seat-{self.trainer.epoch}"
        for pointer in self.broker.experience.read(E, 0, keys.TRAINER_GROUP, name, count=count, block_ms=0):
            self.trainer.hand[pointer.entry_id] = pointer

    @rule()
    def take_over(self) -> None:
        pointers = self.broker.experience.take_over(E, 0, keys.TRAINER_GROUP, f"seat-{self.trainer.epoch}")
        self.trainer.hand.update({pointer.entry_id: pointer for pointer in pointers})

    @rule()
    def train(self) -> None:
        for pointer in self.trainer.hand.values():
            self.trainer.trained.add(key_of(pointer))  # a repeat is known by the marks

    @rule()
    def checkpoint(self) -> None:
        self.truth.manifest = set(self.trainer.trained)

    @rule(again=coin)
    def ack(self, again: bool) -> None:
        done = [pointer for pointer in self.trainer.hand.values() if key_of(pointer) in self.truth.manifest]
        for _ in range(1 + again):
            self.broker.experience.ack(E, 0, self.trainer.epoch, [(pointer, "trained") for pointer in done])
        for pointer in done:
            self.truth.settled.setdefault(key_of(pointer), "trained")
            self.trainer.hand.pop(pointer.entry_id)

    @rule(which=index, bury=coin)
    def set_aside(self, which: int, bury: bool) -> None:
        fresh = [p for p in self.trainer.hand.values() if key_of(p) not in self.trainer.trained]
        if not fresh:
            return
        pointer = fresh[which % len(fresh)]
        if bury:
            assert self.broker.experience.set_aside(E, 0, self.trainer.epoch, pointer, "bad", keep_blob=not self.full)
        else:
            assert self.broker.experience.ack(E, 0, self.trainer.epoch, [(pointer, "stale")]) == 1
        self.truth.settled[key_of(pointer)] = "dead" if bury else "stale"
        self.trainer.hand.pop(pointer.entry_id)

    @precondition(lambda self: not self.full)
    @rule()
    def trainer_dies(self) -> None:
        self.zombies.append(self.trainer)
        self.trainer = Trainer(self.trainer.epoch + 1, set(self.truth.manifest))
        ctl(self.broker, seat_epoch=self.trainer.epoch)

    @precondition(lambda self: any(zombie.hand for zombie in self.zombies))
    @rule(which=index)
    def an_earlier_trainer_acks(self, which: int) -> None:
        zombies = [zombie for zombie in self.zombies if zombie.hand]
        zombie = zombies[which % len(zombies)]
        try:
            self.broker.experience.ack(E, 0, zombie.epoch, [(p, "trained") for p in zombie.hand.values()])
        except SeatLost:
            return
        raise AssertionError("a trainer without a seat settled something")

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
        assert flow.forgotten.batches == truth.forgotten
        unreported = len([name for name in truth.unreported if name in truth.answered])
        told = flow.appended.batches + flow.discarded.batches + flow.forgotten.batches + unreported
        assert len(truth.answered) == told
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

    def teardown(self) -> None:
        """Whatever happened: a last trainer finds all that was accepted and not settled, once, and leaves nothing."""
        if not hasattr(self, "truth"):
            return
        self.change_memory(False)
        self.trainer_dies()
        self.take_over()
        self.read(1000)
        found = sorted(key_of(pointer) for pointer in self.trainer.hand.values())
        assert found == sorted(self.truth.in_flight())
        self.train()
        self.checkpoint()
        self.ack(again=True)
        self.the_books_are_right()
        left = [key for key in self.raw.keys(f"{keys.tag(E, 0)}:blob:*") if self.raw.ttl(key) == -1]
        assert len(left) == sum(1 for _ in self.broker.experience.dead(E, 0)) - self.buried_without_bytes()

    # ---- inside

    def buried_without_bytes(self) -> int:
        return sum(1 for _, fields in self.raw.xrange(keys.dead(E, 0)) if fields[b"kept_bytes"] == b"0")

    def known_owners(self, shard: int) -> list[Lease]:
        return self.truth.shards[shard].owners[-KNOWN_OWNERS:]

    def send(self, call: Call, *, bare: bool) -> tuple[str, int]:
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
            return "OOM", 0
        event(f"append answered {reply.status}")
        self.truth.told(call, reply, entries=entries, waiting=waiting)
        return reply.status, reply.seq

    def give_back(self, held: Held) -> None:
        """Release as an honest worker: with a report of what it had accepted and the broker forgot."""
        owned = self.truth.shards[held.lease.shard].owner == held.lease
        lost = self.truth.report(held.lease) if owned else []
        steps = sum(call.steps for call in lost)
        done = self.broker.shards.release(held.lease, forgotten_batches=len(lost), forgotten_steps=steps)
        assert done == owned
        if owned:
            self.truth.lost(held.lease.shard)


def test_no_schedule_of_crashes_breaks_a_promise(broker: Broker) -> None:
    soak = bool(os.environ.get("HEDDLE_SOAK"))
    run_state_machine_as_test(
        lambda: BrokerMachine(broker),
        settings=settings(
            max_examples=3000 if soak else 60,
            stateful_step_count=60 if soak else 40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
