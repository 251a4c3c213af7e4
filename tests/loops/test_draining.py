"""Draining: what the end of a run says to workers, on real servers."""

from types import SimpleNamespace
from typing import Any

import pytest

from heddle.broker import Broker
from heddle.clock import SystemClock
from heddle.consumers.draining import drain, say_stop
from heddle.consumers.intake import Intake
from heddle.consumers.patience import Patience
from heddle.consumers.quorum import Rules
from heddle.errors import SeatLost
from tests.helpers import eventually
from tests.loops.desk import Desk
from tests.trainer_kit import Fleet, submit


def test_a_trainer_that_thaws_while_it_ends_stops_nothing_of_its_successors(broker: Broker) -> None:
    experiment = submit(broker)
    frozen = broker.seats.claim_seat(experiment, "t1", ttl_ms=1)
    seat = eventually(lambda: broker.seats.claim_seat(experiment, "t2", ttl_ms=30_000))
    assert frozen is not None and seat is not None
    with pytest.raises(SeatLost):
        say_stop(broker, experiment, Patience(), seat_epoch=frozen)
    assert broker.experiments.ctl(experiment).command == "run"
    say_stop(broker, experiment, Patience(), seat_epoch=seat)
    assert broker.experiments.ctl(experiment).command == "stop"


def test_what_somebody_else_read_is_looked_for_before_the_end(broker: Broker) -> None:
    # Given a batch that a trainer which is frozen now read, and no worker that holds a shard
    fleet = Fleet(broker, submit(broker, rollout={"sync": False})).claim_all()
    desk = Desk(broker, fleet)
    assert desk.poll() == []
    fleet.give(0, 1)
    assert len(broker.experience.read(fleet.experiment, 0, "trainer", "frozen", count=8, block_ms=0)) == 1
    for claim in fleet.claims.values():
        broker.shards.release(claim.lease)
    # When the run ends
    rules = Rules(sync=False, max_lag=2, batch_steps=8, timeout_s=1.0, min_steps=1, usual_steps=2)
    flow: Any = SimpleNamespace
    intake = Intake(desk.reader, desk.ledger, rules, clock=SystemClock(), flow=flow)
    desk.reader._look_again_s = 60.0
    drain(
        broker, fleet.experiment, 0, intake=intake, patience=Patience(), clock=SystemClock(), lease_ttl_s=1.0,
        turn=lambda batches: None, make_room=lambda: None,
    )  # fmt: skip
    # Then it is there
    assert intake.num_batches == 1
