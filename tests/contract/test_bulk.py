"""Large batches received by ourselves: what redis-py would have given, whatever the server says."""

import socket
import threading
from collections.abc import Iterator, Sequence

import pytest
from redis.exceptions import ConnectionError as Disconnected

from heddle.blocks import Blocks
from heddle.broker import Broker
from heddle.broker.bulk import Answers, Unexpected
from heddle.broker.experience_types import Pointer
from heddle.errors import BrokerUnreachable
from tests.broker_kit import admit, append, claim_next, read_all

LARGE = 200_000


def large(broker: Broker, batches: int = 4) -> list[Pointer]:
    admit(broker)
    lease = claim_next(broker).lease
    for seq in range(1, batches + 1):
        assert append(broker, lease, seq, size=LARGE).status == "OK"
    return read_all(broker)


def as_bytes(found: Sequence[bytes | memoryview | None]) -> list[bytes | None]:
    return [None if one is None else bytes(one) for one in found]


def test_large_batches_are_those_that_are_fetched_in_the_usual_way(any_broker: Broker) -> None:
    pointers = large(any_broker)
    plain = any_broker.experience.fetch(pointers)
    assert [None if one is None else len(one) for one in plain] == [LARGE] * 4
    for order in (pointers, pointers[::-1]):
        assert as_bytes(any_broker.experience.fetch_views(order)) == any_broker.experience.fetch(order)
    any_broker.conn.main.unlink(pointers[1].blob_key)
    any_broker.conn.main.append(pointers[2].blob_key, b"and more of it")
    found = as_bytes(any_broker.experience.fetch_views(pointers))
    assert found == any_broker.experience.fetch(pointers)
    assert found[1] is None
    assert len(found[2] or b"") == LARGE + 1, "what somebody put in its place may be of any size"
    any_broker.conn.main.unlink(pointers[0].blob_key)
    any_broker.conn.main.rpush(pointers[0].blob_key, "a list")
    found = as_bytes(any_broker.experience.fetch_views(pointers))
    assert found == any_broker.experience.fetch(pointers)
    assert [one is None for one in found] == [True, True, False, False]
    assert any_broker.conn.main.ping()


def test_from_a_server_they_come_without_redis_py_into_memory_that_is_used_again(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    pointers = large(broker, 1)

    def refuse(_: object) -> list[bytes | None]:
        raise AssertionError("asked in the usual way")

    monkeypatch.setattr(broker.experience, "fetch", refuse)
    for _ in range(5):
        (found,) = broker.experience.fetch_views(pointers)
        assert isinstance(found, memoryview)
        assert found.readonly
        assert bytes(found) == payload_of(pointers[0])
        del found
    assert len(broker.experience._bulk._blocks._free) == 1


def payload_of(pointer: Pointer) -> bytes:
    name = f"{pointer.shard}:{pointer.epoch}:{pointer.nonce}:{pointer.seq}|".encode()
    return (name * (pointer.bytes // len(name) + 1))[: pointer.bytes]


def test_a_line_that_breaks_in_the_middle_is_a_broker_without_answer_and_the_next_call_has_a_new_one(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    pointers = large(broker, 2)
    expected = broker.experience.fetch(pointers)

    def breaks(*_: object) -> None:
        raise Disconnected("the server closed the connection")

    with monkeypatch.context() as patch:
        patch.setattr(Answers, "_fill", breaks)
        with pytest.raises(BrokerUnreachable, match="closed the connection"):
            broker.experience.fetch_views(pointers)
    assert as_bytes(broker.experience.fetch_views(pointers)) == expected
    assert broker.conn.main.ping()


def test_an_answer_that_cannot_be_is_left_to_redis_py_and_nothing_of_it_is_taken_for_the_next_one(
    broker: Broker,
) -> None:
    pointers = large(broker, 3)
    broker.conn.main.unlink(pointers[0].blob_key)
    broker.conn.main.rpush(pointers[0].blob_key, "a list")  # an error stands first, and two strings behind it
    expected = broker.experience.fetch(pointers)
    for _ in range(3):
        assert as_bytes(broker.experience.fetch_views(pointers)) == expected
        assert broker.conn.now_ms() > 0


# ---- the line itself


@pytest.fixture
def line() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(10.0)
        yield ours, theirs


@pytest.mark.parametrize("at_once", [1, 3, 7, 100, 1 << 20])
def test_answers_are_read_wherever_the_bytes_are_cut(line: tuple[socket.socket, socket.socket], at_once: int) -> None:
    ours, theirs = line
    sent = [b"", b"a", b"\r\n" * 9, b"x" * 5000, b"$3\r\nabc\r\n" * 3]
    wire = b"".join(b"$%d\r\n%s\r\n" % (len(one), one) for one in sent) + b"$-1\r\n$2\r\nzz\r\n"

    def send() -> None:
        for at in range(0, len(wire), at_once):
            theirs.sendall(wire[at : at + at_once])

    sender = threading.Thread(target=send)
    sender.start()
    answers, blocks = Answers(ours), Blocks()
    found = as_bytes([answers.string(10_000, blocks) for _ in range(7)])
    sender.join()
    assert found == [None, *sent[1:], None, b"zz"]


@pytest.mark.parametrize(
    "wire",
    [
        b"-ERR no\r\n",
        b":5\r\n",
        b"*1\r\n$1\r\na\r\n",
        b"$6\r\nabcdef\r\n",
        b"$-2\r\n",
        b"$\r\n\r\n",
        b"$+3\r\nabc\r\n",
        b"$3\r\nabcd\r\n",
        b"x" * 100,
    ],
)
def test_an_answer_that_is_no_string_of_that_size_is_told(
    line: tuple[socket.socket, socket.socket], wire: bytes
) -> None:
    ours, theirs = line
    theirs.sendall(wire)
    with pytest.raises(Unexpected):
        Answers(ours).string(5, Blocks())


@pytest.mark.parametrize("wire", [b"", b"$", b"$5\r\n", b"$5\r\nabc", b"$5\r\nabcde\r"])
def test_an_end_within_an_answer_is_a_broken_line(line: tuple[socket.socket, socket.socket], wire: bytes) -> None:
    ours, theirs = line
    theirs.sendall(wire)
    theirs.close()
    with pytest.raises(Disconnected):
        Answers(ours).string(5, Blocks())
