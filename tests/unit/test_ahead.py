"""Ahead: who plays never waits for weights, and has them soon after they were published."""

import threading
from collections.abc import Iterator

import pytest

from heddle.broker.faults import Damaged, NoNumber
from heddle.errors import BrokerUnreachable, PolicyLost
from heddle.policies.weights import TornWeights
from heddle.producers.ahead import Ahead
from tests.helpers import eventually


class Store:
    """Published weights; asking for them lasts until `go` is set."""

    def __init__(self) -> None:
        self.latest, self.calls = 1, 0
        self.trouble: Exception | None = None
        self.go = threading.Event()
        self.go.set()

    def fetch(self, experiment: str, version: int | None) -> tuple[int, bytes]:
        self.calls += 1
        assert self.go.wait(20)
        if self.trouble is not None:
            raise self.trouble
        found = version or self.latest
        return found, b"%d" % found


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def ahead(store: Store) -> Iterator[Ahead]:
    failures: list[BaseException] = []
    made = Ahead(store.fetch, on_failure=failures.append).start()
    yield made
    store.go.set()
    made.stop()
    assert failures == []


def test_while_weights_are_fetched_nobody_waits_and_then_they_are_there(ahead: Ahead, store: Store) -> None:
    # Given an experiment whose first version was fetched as it always is
    assert ahead.fetch("exp") == (1, b"1")
    # When a newer one is there, and takes long
    store.latest = 2
    store.go.clear()
    assert ahead.follow("exp", 2) == 0
    assert ahead.follow("exp", 2) == 0
    # Then it is played when it came, without asking the broker again
    store.go.set()
    eventually(lambda: ahead.follow("exp", 2) == 2)
    before = store.calls
    assert ahead.fetch("exp") == (2, b"2")
    assert store.calls == before == 2
    assert ahead.follow("exp", 2) == 0


def test_news_of_what_is_played_fetch_it_at_once_and_other_news_do_not(ahead: Ahead, store: Store) -> None:
    # Given one experiment that is followed, and news of others
    store.latest = 2
    ahead.heard("barrier", 9)
    ahead.follow("exp", 2)
    eventually(lambda: ahead.follow("exp", 2) == 2)
    # When there are news of it
    store.latest = 3
    ahead.heard("other", 9)
    ahead.heard("exp", 3)
    # Then it is fetched though nobody has played a segment since
    eventually(lambda: store.calls == 2)
    eventually(lambda: ahead.follow("exp", 2) == 3)


@pytest.mark.parametrize(
    "trouble", [BrokerUnreachable("away"), Damaged("a policy of another kind"), NoNumber("chunks")]
)
def test_a_fetch_that_failed_is_tried_again_at_the_next_segment(ahead: Ahead, store: Store, trouble: Exception) -> None:
    ahead.fetch("exp")
    store.trouble, store.latest = trouble, 2
    ahead.follow("exp", 2)
    eventually(lambda: store.calls == 2)
    store.trouble = None
    eventually(lambda: ahead.follow("exp", 2) == 2)


def test_a_broker_that_forgot_what_it_announced_is_asked_again(ahead: Ahead, store: Store) -> None:
    ahead.fetch("exp")
    ahead.follow("exp", 7)
    eventually(lambda: ahead.follow("exp", 1) == 1)
    store.latest = 7
    eventually(lambda: ahead.follow("exp", 7) == 7)


def test_a_pinned_version_is_asked_for_as_ever(ahead: Ahead, store: Store) -> None:
    ahead.fetch("exp")
    ahead.follow("exp", 1)
    assert ahead.fetch("exp", 5) == (5, b"5")


def test_what_nobody_plays_any_more_is_not_kept(ahead: Ahead, store: Store) -> None:
    ahead.fetch("exp")
    store.latest = 2
    ahead.follow("exp", 2)
    eventually(lambda: ahead.follow("exp", 2) == 2)
    ahead.forget("exp")
    assert ahead.fetch("exp") == (2, b"2")
    assert store.calls == 3


@pytest.mark.parametrize("trouble", [PolicyLost("gone", version=2), TornWeights("torn", version=2)])
def test_who_plays_meets_weights_that_cannot_be_read_and_can_take_them_back(
    ahead: Ahead, store: Store, trouble: Exception
) -> None:
    # Given a version that somebody removed or spoilt
    assert ahead.fetch("exp") == (1, b"1")
    store.trouble = trouble
    # When it is followed
    eventually(lambda: ahead.follow("exp", 2) == 2, what="the playing thread is told to fetch it")
    # Then who plays meets why, and all is well once it is there again
    with pytest.raises(type(trouble)):
        ahead.fetch("exp")
    store.trouble, store.latest = None, 2
    eventually(lambda: ahead.follow("exp", 2) == 2 and ahead.fetch("exp") == (2, b"2"))
