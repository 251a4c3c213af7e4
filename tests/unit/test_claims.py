"""Claims: which tickets a worker leaves to others, and for how long."""

import os
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from heddle.broker.faults import Damaged
from heddle.broker.types import Claim, Lease, Ticket
from heddle.clock import ManualClock
from heddle.errors import BrokerFull
from heddle.producers.claims import Claimer
from heddle.producers.desk import Desk
from heddle.producers.holdings import Holding, hold
from heddle.producers.quota import Quota

TICKET = Ticket("test-1a2b", 0, 3, "default", "1-0", 0)


def claimer(clock: ManualClock) -> tuple[Claimer, list[Ticket]]:
    """One for which TICKET is always there, and what it tried to claim (another is always first)."""
    tried: list[Ticket] = []

    def claim(ticket: Ticket, **_: Any) -> str:
        tried.append(ticket)
        return "HELD"

    shards = SimpleNamespace(
        read_ticket=lambda *_, **__: TICKET, peek_ticket=lambda _: None, claim=claim, drop_ticket=lambda _: None
    )
    made = Claimer(
        SimpleNamespace(shards=shards),  # type: ignore[arg-type]
        Desk(),
        damaged=SimpleNamespace(shuns=lambda _: False),  # type: ignore[arg-type]
        pool="default",
        worker="w1",
        on_claim=lambda *_: None,
        entropy=os.urandom,
        clock=clock,
        rng=np.random.default_rng(0),
    )
    made.stages[TICKET.experiment] = SimpleNamespace(ttl_ms=1_000)  # type: ignore[assignment]
    return made, tried


def failed(*, batches: int) -> Holding:
    """TICKET's shard after that many accepted batches and a failure."""
    lease = Lease(TICKET.experiment, 0, TICKET.shard, "w1", 1, "n")
    values: dict[str, Any] = {"command": "run", "policy": 1, "min_policy": 0, "eval_policy": 0, "snapshot": None}
    one = hold(Claim(lease=lease, seq=7, given=0, kind="train", attempts=1, sync=False, **values), 1_000)
    for seq in range(8, 8 + batches):
        one.note_accepted(seq, 16)
    return one


def seconds_left_to_others(made: Claimer, tried: list[Ticket], clock: ManualClock) -> float:
    tried.clear()
    began = clock.monotonic()
    while not tried:
        made.look()
        clock.advance(0.25)
    return clock.monotonic() - began


@pytest.mark.parametrize(
    ("batches", "seconds"), [([0, 0, 0, 0], [2, 4, 8, 16]), ([9, 9, 9, 9], [2, 2, 2, 2]), ([0, 0, 1, 0], [2, 4, 2, 4])]
)
def test_a_shard_that_fails_is_left_to_others_twice_as_long_unless_it_worked_since(
    batches: list[int], seconds: list[float]
) -> None:
    clock = ManualClock()
    made, tried = claimer(clock)
    left = []
    for worked in batches:
        made.avoid(failed(batches=worked))
        left.append(seconds_left_to_others(made, tried, clock))
    assert left == pytest.approx(seconds, abs=0.5)


class Pool:
    """Shards whose tickets are read and claimed together; counts the trips, and loses answers when told to."""

    def __init__(self, tickets: int) -> None:
        self.left = [Ticket("test-1a2b", 0, shard, "default", f"{shard + 1}-0", 0) for shard in range(tickets)]
        self.trips: list[str] = []
        self.answers: dict[int, Any] = {}
        self.nonces: dict[int, set[str]] = {}
        self.dropped: list[int] = []

    def peek_ticket(self, pool: str) -> Ticket | None:
        self.trips.append("peek")
        return replace(self.left[0], urgent=True, waiting=len(self.left)) if self.left else None

    def read_tickets(self, pool: str, worker: str, *, count: int, block_ms: int) -> list[Ticket]:
        self.trips.append("read")
        some, self.left = self.left[:count], self.left[count:]
        return some

    def read_ticket(self, pool: str, worker: str, *, block_ms: int) -> Ticket | None:
        return next(iter(self.read_tickets(pool, worker, count=1, block_ms=block_ms)), None)

    def claim_all(self, wanted: Any, *, worker: str) -> list[Any]:
        self.trips.append("claim")
        return [self.answer(ticket, nonce) for ticket, nonce, _ in wanted]

    def claim(self, ticket: Ticket, *, worker: str, nonce: str, ttl_ms: int) -> Any:
        self.trips.append("claim")
        return self.answer(ticket, nonce)

    def answer(self, ticket: Ticket, nonce: str) -> Any:
        self.nonces.setdefault(ticket.shard, set()).add(nonce)
        if (other := self.answers.pop(ticket.shard, None)) is not None:
            return other
        lease = Lease(ticket.experiment, 0, ticket.shard, "w1", 1, nonce)
        return Claim(lease, 0, 0, "run", 1, 0, 0, None, "train", 1, False)

    def drop_tickets_read(self, tickets: Any) -> None:
        self.trips.append("drop")
        self.dropped += [ticket.shard for ticket in tickets]

    def drop_ticket(self, ticket: Ticket) -> None:
        self.drop_tickets_read([ticket])


def in_a_large_pool(pool: Pool, clock: ManualClock, met: list[str] | None = None) -> tuple[Claimer, Desk]:
    """A worker at its quota of one in a pool of 2,000, and its desk."""
    desk = Desk()
    made = Claimer(
        SimpleNamespace(shards=pool),  # type: ignore[arg-type]
        desk,
        damaged=SimpleNamespace(  # type: ignore[arg-type]
            shuns=lambda _: False, met=lambda experiment, _: (met if met is not None else []).append(experiment)
        ),
        pool="default",
        worker="w1",
        on_claim=lambda *_: None,
        entropy=os.urandom,
        clock=clock,
        rng=np.random.default_rng(0),
    )
    env = SimpleNamespace(in_children=False)
    made.stages[TICKET.experiment] = SimpleNamespace(ttl_ms=1_000, spec=SimpleNamespace(env=env))  # type: ignore[assignment]
    desk.set_quota(Quota(0, 0, live=2_000))
    desk.take(Pool(0).answer(replace(TICKET, shard=999), "n"), 1_000)
    return made, desk


def shards_held(desk: Desk) -> list[int]:
    return [one.lease.shard for one in desk.holdings() if one.lease.shard != 999]


def test_what_a_fleet_left_that_died_is_claimed_in_a_few_trips_of_many_shards_each() -> None:
    # Given a worker at its quota, and tickets of a thousand dead ones
    pool = Pool(1_000)
    made, desk = in_a_large_pool(pool, ManualClock())
    # When it looks once, then it takes as many as ever in a look, and all of them together
    made.look()
    assert shards_held(desk) == pool.dropped == list(range(8))
    assert pool.trips == ["peek", "read", "claim", "drop"]


def test_a_claim_of_several_that_was_refused_is_made_again_with_its_nonce_and_the_others_are_held() -> None:
    pool, clock = Pool(1_000), ManualClock()
    pool.answers = {1: BrokerFull("no room"), 2: "HELD"}
    made, desk = in_a_large_pool(pool, clock)
    made.look()
    assert shards_held(desk) == [0, 3, 4, 5, 6, 7]
    assert pool.dropped == [0, 2, 3, 4, 5, 6, 7], "its ticket stays"
    clock.advance(60.0)
    made.look()
    assert 1 in shards_held(desk) and 1 in pool.dropped
    assert len(pool.nonces[1]) == 1


def test_of_several_claims_one_that_meets_damaged_keys_is_told_and_not_made_again() -> None:
    pool, clock, met = Pool(8 * 16), ManualClock(), list[str]()
    pool.answers = {4: Damaged("of another kind")}
    made, desk = in_a_large_pool(pool, clock, met)
    made.look()
    assert (4 not in shards_held(desk), len(shards_held(desk)), met) == (True, 7, [TICKET.experiment])
    pool.left = []
    clock.advance(60.0)
    made.look()
    assert len(shards_held(desk)) == 7
