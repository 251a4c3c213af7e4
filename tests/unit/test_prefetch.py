"""Fetching ahead: only while the learner works, never more than its budget, and the bytes of that very batch alone."""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from heddle.broker.experience_types import Pointer
from heddle.consumers import prefetch as module
from heddle.consumers.prefetch import Prefetch
from heddle.errors import BrokerUnreachable
from tests.helpers import eventually

SIZE = 1 << 20


def pointer(number: int, *, location: str = "redis", size: int = SIZE) -> Pointer:
    return Pointer(
        entry_id=f"{number}-0",
        shard=0,
        epoch=1,
        nonce="n",
        seq=number,
        kind="train",
        version_min=1,
        version_max=1,
        segments=1,
        steps=8,
        bytes=size,
        crc32=number,
        blob_key=f"blob:{number}",
        given=0,
        location=location,
    )


class Stream:
    """Entries of a stream, and who asked for what."""

    def __init__(self, *entries: Pointer) -> None:
        self.entries = list(entries)
        self.fetched: list[int] = []
        self.looks = 0
        self.trouble: Exception | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.is_fetching = threading.Event()

    def look(self, after: str, count: int) -> list[Pointer]:
        self.looks += 1
        if self.trouble is not None:
            raise self.trouble
        behind = int(after.partition("-")[0])
        return [one for one in self.entries if one.seq > behind][:count]

    def fetch(self, pointers: Sequence[Pointer]) -> list[bytes | memoryview | None]:
        self.is_fetching.set()
        assert self.gate.wait(30)
        self.fetched += [one.seq for one in pointers]
        return [bytes([one.seq]) for one in pointers]


@pytest.fixture
def stream() -> Stream:
    return Stream(*(pointer(number) for number in range(1, 9)))


@pytest.fixture
def ahead(stream: Stream) -> Iterator[Prefetch]:
    made = Prefetch(stream.look, stream.fetch, most_bytes=100 * SIZE)
    yield made
    stream.gate.set()
    made.close()


def test_what_comes_behind_the_newest_that_was_read_is_fetched_and_handed_out_once(
    stream: Stream, ahead: Prefetch
) -> None:
    with ahead.ahead("3-0"):
        eventually(lambda: ahead.held_bytes == 5 * SIZE)
    assert stream.fetched == [4, 5, 6, 7, 8]
    assert ahead.take(pointer(5)) == bytes([5])
    assert ahead.take(pointer(5)) is None
    assert ahead.take(pointer(3)) is None
    assert (ahead.held_bytes, ahead.used) == (4 * SIZE, 1)


def test_nothing_is_looked_at_before_anything_was_read_nor_between_two_updates(stream: Stream, ahead: Prefetch) -> None:
    with ahead.ahead(""):
        pass
    assert stream.looks == 0
    with ahead.ahead("8-0"):
        eventually(lambda: stream.looks > 0)
    seen = stream.looks
    stream.entries.append(pointer(9))
    with ahead.ahead(""):
        pass
    assert (stream.looks, stream.fetched) == (seen, [])


def test_what_comes_during_an_update_is_fetched_during_it(stream: Stream, ahead: Prefetch) -> None:
    with ahead.ahead("8-0"):
        eventually(lambda: stream.looks > 0)
        stream.entries.append(pointer(9))
        eventually(lambda: ahead.held_bytes == SIZE)
    assert stream.fetched == [9]


def test_never_more_is_held_than_the_budget(stream: Stream) -> None:
    ahead = Prefetch(stream.look, stream.fetch, most_bytes=5 * SIZE)
    most = 0
    for after in range(1, 8):
        with ahead.ahead(f"{after}-0"):
            eventually(lambda: ahead.held_bytes > 0 or not stream.entries)
            most = max(most, ahead.held_bytes)
        most = max(most, ahead.held_bytes)
        ahead.take(pointer(after + 1))
    assert 0 < most <= 5 * SIZE
    ahead.close()
    assert ahead.held_bytes == 0


def test_a_batch_larger_than_the_budget_is_left_to_its_turn(stream: Stream) -> None:
    stream.entries = [pointer(1), pointer(2, size=9 * SIZE), pointer(3)]
    ahead = Prefetch(stream.look, stream.fetch, most_bytes=5 * SIZE)
    with ahead.ahead("0-0"):
        eventually(lambda: ahead.held_bytes == SIZE)
    assert stream.fetched == [1]
    ahead.close()


def test_what_was_read_meanwhile_is_forgotten(stream: Stream, ahead: Prefetch) -> None:
    with ahead.ahead("3-0"):
        eventually(lambda: ahead.held_bytes == 5 * SIZE)
    with ahead.ahead("10-0"):
        eventually(lambda: ahead.held_bytes == 0)


def test_another_batch_of_the_same_entry_is_not_taken_for_it(stream: Stream, ahead: Prefetch) -> None:
    with ahead.ahead("7-0"):
        eventually(lambda: ahead.held_bytes == SIZE)
    assert ahead.take(replace(pointer(8), crc32=99)) is None
    assert (ahead.held_bytes, ahead.used) == (0, 0)


def test_what_lies_in_shared_memory_is_not_fetched(stream: Stream, ahead: Prefetch) -> None:
    stream.entries = [pointer(1, location="shm"), pointer(2), pointer(3, location="shm")]
    with ahead.ahead("0-0"):
        eventually(lambda: ahead.held_bytes == SIZE)
    assert stream.fetched == [2]


def test_a_broker_that_is_away_is_left_to_the_trainer_and_the_next_round_tries_again(
    stream: Stream, ahead: Prefetch
) -> None:
    stream.trouble = BrokerUnreachable("away")
    with ahead.ahead("3-0"):
        eventually(lambda: stream.looks == 1)
    stream.trouble = None
    with ahead.ahead("3-0"):
        eventually(lambda: ahead.held_bytes == 5 * SIZE)


def test_what_nobody_expects_ends_the_trainer_at_its_next_update(stream: Stream, ahead: Prefetch) -> None:
    stream.trouble = ZeroDivisionError("a bug")
    with ahead.ahead("3-0"):
        eventually(lambda: ahead._failure is not None)
    with pytest.raises(ZeroDivisionError), ahead.ahead("3-0"):
        pytest.fail("it went on")


def test_the_end_of_an_update_waits_only_so_long_for_a_broker_that_does_not_answer(
    stream: Stream, ahead: Prefetch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "END_S", 0.01)
    stream.gate.clear()
    with ahead.ahead("3-0"):
        assert stream.is_fetching.wait(30)
    with ahead.ahead("3-0"):  # still at it: nothing is begun beside it
        pass
    assert ahead.take(pointer(4)) is None
    stream.gate.set()
    eventually(lambda: ahead.held_bytes > 0)
    with ahead.ahead("3-0"):
        eventually(lambda: ahead.held_bytes == 5 * SIZE)
    assert sorted(stream.fetched) == [4, 5, 6, 7, 8]


def test_an_error_of_the_learner_ends_the_round(stream: Stream, ahead: Prefetch) -> None:
    with pytest.raises(KeyError), ahead.ahead("8-0"):
        raise KeyError("the learner's")
    stream.entries.append(pointer(9))
    with ahead.ahead("8-0"):
        eventually(lambda: stream.fetched == [9])
