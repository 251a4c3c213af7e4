"""Claims: which tickets a worker leaves to others, and for how long."""

import os
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from heddle.broker.types import Claim, Lease, Ticket
from heddle.clock import ManualClock
from heddle.producers.claims import Claimer
from heddle.producers.desk import Desk
from heddle.producers.holdings import Holding, hold

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
