"""Draining: what the end of a run says to workers, on real servers."""

import pytest

from heddle.broker import Broker
from heddle.consumers.draining import say_stop
from heddle.consumers.patience import Patience
from heddle.errors import SeatLost
from tests.helpers import eventually
from tests.trainer_kit import submit


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
