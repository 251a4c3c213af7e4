"""Weights that are published while the next update is made: one at a time, in order, and no trouble is forgotten."""

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from heddle.consumers.courier import LARGE_BYTES
from heddle.consumers.publisher import Publisher
from heddle.errors import BrokerFull, BrokerUnreachable, Conflict, Gone, SeatLost
from heddle.policies.base import Arrays
from tests.helpers import eventually

LARGE = {"w": np.zeros(LARGE_BYTES // 4 + 1, np.float32)}
SMALL = {"w": np.zeros(4, np.float32)}


class Policies:
    """Takes versions once its gate is open, or raises what it is told to."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.began = threading.Event()
        self.published: list[tuple[int, int]] = []
        self.threads: list[str] = []
        self.trouble: list[Exception] = []

    def publish(self, experiment: str, seat_epoch: int, version: int, data: bytes, *, update: int) -> int:
        self.began.set()
        assert self.gate.wait(30)
        self.threads.append(threading.current_thread().name)
        if self.trouble:
            raise self.trouble.pop()
        self.published.append((version, update))
        return version

    def latest(self, experiment: str) -> int:
        return 9


@pytest.fixture
def policies() -> Policies:
    return Policies()


@pytest.fixture
def publisher(policies: Policies) -> Iterator[Publisher]:
    broker: Any = SimpleNamespace(policies=policies)
    made = Publisher(broker, "e", seat_epoch=1, version=0, apart=True)
    made.first(SMALL, 0)
    yield made
    policies.gate.set()
    made.close()


def under_way(publisher: Publisher, policies: Policies, *, update: int = 1, weights: Arrays = LARGE) -> None:
    policies.gate.clear()
    policies.began.clear()
    assert not publisher.publish(weights, update)
    assert policies.began.wait(30)


def test_publishing_large_weights_returns_while_they_are_under_way(publisher: Publisher, policies: Policies) -> None:
    under_way(publisher, policies)
    assert (publisher.version, publisher.pending, publisher.is_refused) == (2, True, False)
    assert not publisher.compare(1), "ctl cannot show it yet, and it is not sent a second time"
    policies.gate.set()
    assert publisher.settle()
    assert policies.published == [(1, 0), (2, 1)]
    assert policies.threads[1] == "courier"
    assert publisher.compare(2)


def test_small_weights_are_published_when_it_returns(publisher: Publisher, policies: Policies) -> None:
    assert publisher.publish(SMALL, 1)
    assert policies.published == [(1, 0), (2, 1)]
    assert "courier" not in policies.threads


def test_without_a_courier_large_weights_are_published_when_it_returns(policies: Policies) -> None:
    broker: Any = SimpleNamespace(policies=policies)
    publisher = Publisher(broker, "e", seat_epoch=1, version=0)
    assert publisher.publish(LARGE, 1)
    assert policies.published == [(1, 1)]


def test_the_next_version_leaves_when_the_one_before_has_arrived(publisher: Publisher, policies: Policies) -> None:
    under_way(publisher, policies)
    second = threading.Thread(target=publisher.publish, args=(LARGE, 2))
    second.start()
    assert policies.published == [(1, 0)]
    policies.gate.set()
    second.join(30)
    assert publisher.settle()
    assert policies.published == [(1, 0), (2, 1), (3, 2)]


@pytest.mark.parametrize("trouble", [BrokerFull("full"), BrokerUnreachable("away")], ids=["full", "away"])
def test_what_was_refused_on_the_way_is_offered_again(
    publisher: Publisher, policies: Policies, trouble: Exception
) -> None:
    policies.trouble = [trouble, trouble]
    under_way(publisher, policies)
    policies.gate.set()
    assert not publisher.settle()
    assert (publisher.pending, publisher.is_refused) == (True, True)
    assert publisher.offer()
    assert (publisher.pending, publisher.is_refused) == (False, False)
    assert policies.published == [(1, 0), (2, 1)]


def test_a_higher_version_that_was_met_on_the_way_is_passed(publisher: Publisher, policies: Policies) -> None:
    policies.trouble = [Conflict("9 is there"), Conflict("9 is there")]
    under_way(publisher, policies)
    policies.gate.set()
    assert publisher.settle()
    assert policies.published == [(1, 0), (10, 1)]
    assert publisher.same == {2, 10}


def test_who_settles_waits_only_so_long_as_it_says(publisher: Publisher, policies: Policies) -> None:
    under_way(publisher, policies)
    assert not publisher.settle(timeout_s=0.01)
    assert publisher.pending
    policies.gate.set()
    assert publisher.settle()


@pytest.mark.parametrize("trouble", [SeatLost("another"), Gone("removed"), ZeroDivisionError("a bug")])
@pytest.mark.parametrize("then", ["settle", "offer", "publish"])
def test_what_ends_a_trainer_ends_it_at_the_next_look(
    publisher: Publisher, policies: Policies, trouble: Exception, then: str
) -> None:
    policies.trouble = [trouble]
    under_way(publisher, policies)
    policies.gate.set()
    look: dict[str, Callable[[], object]] = {
        "settle": publisher.settle,
        "offer": lambda: eventually(publisher.offer),
        "publish": lambda: publisher.publish(LARGE, 2),
    }
    with pytest.raises(type(trouble)):
        look[then]()


def test_a_forgotten_version_is_published_again(publisher: Publisher, policies: Policies) -> None:
    under_way(publisher, policies)
    policies.gate.set()
    assert publisher.settle()
    assert publisher.compare(1)
    assert policies.published == [(1, 0), (2, 1), (2, 1)]


def test_the_end_does_not_wait_for_ever(
    publisher: Publisher, policies: Policies, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heddle.consumers.publisher.CLOSE_S", 0.01)
    under_way(publisher, policies)
    publisher.close()
    assert policies.published == [(1, 0)]
