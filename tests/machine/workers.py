"""What workers, supervisors and coordinators do, in any order, also late and again.

An honest worker has one unanswered append per shard; any call that was ever made may come once more.
"""

import contextlib

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from heddle.broker import keys
from heddle.broker.types import Claim
from heddle.errors import BrokerFull, LeaderLost
from tests.broker_kit import LEADER, POOL, TTL_MS, E, ctl, run_out
from tests.machine.bench import SHARDS, WORKERS, Bench, coin, index, shards
from tests.machine.model import Call, Held, Worker


class CoordinatorRules(Bench):
    """Time that passes, reaping, tickets, new policy versions."""

    @precondition(lambda self: not self.full and any(truth.owner for truth in self.truth.shards.values()))
    @rule(shard=shards, found=coin)
    def let_a_lease_run_out(self, shard: int, found: bool) -> None:
        owner = self.truth.shards[shard].owner
        if owner is not None:
            run_out(self.broker, owner)
        if found:
            self.reap()

    @rule()
    def reap(self) -> None:
        over = {shard for shard in range(SHARDS) if not self.raw.exists(keys.lease(E, 0, shard))}
        for found in self.broker.shards.reap(E, 0, leader_epoch=LEADER):
            owner = self.truth.shards[found.shard].owner
            assert found.shard in over and owner is not None and owner.epoch == found.epoch
            self.truth.lost(found.shard)

    @rule(shard=shards)
    def see_a_deadline_too_early(self, shard: int) -> None:
        """As by a clock that jumped: the lease key lives, so nothing may be taken."""
        if self.truth.shards[shard].owner is not None:
            self.raw.zadd(keys.due(E, 0), {str(shard): 1})
            self.reap()

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
        ctl(self.broker, policy=self.policy)


class WorkerRules(CoordinatorRules):
    """Claims, appends, renewals, releases and deaths."""

    @precondition(lambda self: any(truth.owner is None for truth in self.truth.shards.values()))
    @rule(who=index, lose=coin)
    def claim(self, who: int, lose: bool) -> None:
        worker = self.workers[who % WORKERS]
        try:
            ticket = self.broker.shards.read_ticket(POOL, worker.name, block_ms=0)
            if ticket is None:
                self.issue_tickets_anew()
                return
            self.counter += 1
            self.claims.append((ticket, worker.name, f"n{self.counter}"))
            for _ in range(1 + lose):  # the answer was lost: the same claim again
                claim = self.broker.shards.claim(ticket, worker=worker.name, nonce=f"n{self.counter}", ttl_ms=TTL_MS)
                if isinstance(claim, Claim):
                    self.truth.claimed(claim.lease)
        except BrokerFull:
            assert self.full
            return
        self.broker.shards.drop_ticket(ticket)
        if isinstance(claim, Claim):
            truth = self.truth.shards[ticket.shard]
            assert (claim.seq, claim.given) == (truth.seq, truth.given)
            worker.held[ticket.shard] = Held(claim, claim.seq)

    @precondition(lambda self: self.claims)
    @rule(who=index, which=index)
    def claim_any_old_ticket(self, who: int, which: int) -> None:
        """Also by the same worker with the same nonce: a claim that dawdled on its way."""
        ticket, worker, nonce = self.claims[which % len(self.claims)]
        if who % 2:
            self.counter += 1
            worker, nonce = self.workers[who % WORKERS].name, f"n{self.counter}"
        owner = self.truth.shards[ticket.shard].owner
        claim = self.broker.shards.claim(ticket, worker=worker, nonce=nonce, ttl_ms=TTL_MS)
        mine = owner is not None and (owner.worker, owner.nonce) == (worker, nonce)
        assert isinstance(claim, Claim) == (owner is None or mine), f"{claim}, the owner was {owner}"
        if isinstance(claim, Claim):
            assert not mine or claim.lease == owner
            self.truth.claimed(claim.lease)
            for living in self.workers:
                if living.name == worker and not mine:
                    living.held[ticket.shard] = Held(claim, claim.seq)

    @rule(which=index, lose=coin, bare=coin, steps=st.integers(min_value=1, max_value=9), times=st.integers(1, 3))
    def deliver(self, which: int, lose: bool, bare: bool, steps: int, times: int) -> None:
        """A worker plays and appends, or tries again what it had no answer to; the last answer may get lost."""
        holding = [(worker, shard) for worker in self.workers for shard in worker.held]
        if len(holding) <= which % SHARDS:
            self.claim(which, lose)
            holding = [(worker, shard) for worker in self.workers for shard in worker.held]
        if not holding:
            return
        worker, shard = holding[which % len(holding)]
        for left in range(times, 0, -1):
            if not self.deliver_once(worker, worker.held[shard], lose=lose and left == 1, bare=bare, steps=steps):
                break

    def deliver_once(self, worker: Worker, held: Held, *, lose: bool, bare: bool, steps: int) -> bool:
        if held.pending is None:
            given = self.policy if self.truth.sync else 0
            held.pending = Call(held.lease, held.known + 1, given, steps, 100 + steps)
            self.calls.append(held.pending)
            bare = False
        call = held.pending
        status = self.send(call, bare=bare)
        if lose or status in ("FULL", "NOBLOB", "OOM"):
            return False
        held.pending = None
        if status in ("OK", "DUP"):
            held.known = call.seq
        elif status == "GAP":
            self.give_back(held)
        elif status == "FENCED":
            self.report_taken(held)
        if status in ("GAP", "FENCED"):
            del worker.held[held.lease.shard]
        return status == "OK"

    @precondition(lambda self: self.calls)
    @rule(which=index, bare=coin)
    def repeat_any_old_append(self, which: int, bare: bool) -> None:
        self.calls = [
            call
            for call in self.calls
            if call.lease in self.known_owners(call.lease.shard) and self.may_come_again(call)
        ]
        if self.calls:
            self.send(self.calls[which % len(self.calls)], bare=bare)

    def may_come_again(self, call: Call) -> bool:
        """Nobody sends what was reported as forgotten."""
        return call.name not in self.truth.forgotten

    @precondition(lambda self: any(truth.owners for truth in self.truth.shards.values()))
    @rule(shard=shards, which=index)
    def renew_any_old_lease(self, shard: int, which: int) -> None:
        owners = self.truth.shards[shard].owners
        if not owners:
            return
        lease = owners[which % len(owners)]
        (renewal,) = self.broker.shards.renew(E, 0, [(lease, bool(which % 2))], ttl_ms=TTL_MS)
        owned = self.truth.shards[shard].owner == lease
        assert renewal.status == ("OK" if owned else "FENCED")
        assert renewal.seq == self.truth.shards[shard].seq

    @precondition(lambda self: any(truth.owners for truth in self.truth.shards.values()))
    @rule(shard=shards, which=index)
    def release_any_old_lease(self, shard: int, which: int) -> None:
        owners = self.truth.shards[shard].owners
        if owners:
            lease = owners[which % len(owners)]
            owned = self.truth.shards[shard].owner == lease
            assert self.broker.shards.release(lease) == owned
            if owned:
                self.truth.lost(shard)

    @precondition(lambda self: any(worker.held for worker in self.workers))
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
