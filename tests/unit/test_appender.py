"""The appender, against a broker that answers from a script."""

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from heddle.broker.types import AppendMeta, AppendReply, Lease
from heddle.clock import Clock, ManualClock
from heddle.errors import BrokerFull, BrokerUnreachable, Gone
from heddle.producers.appender import FULL_FIRST_S, OOM_FIRST_S, OOM_LAST_S, Appender
from heddle.producers.parcel import Outcome, Parcel
from tests.helpers import eventually

META = AppendMeta("train", 1, 1, 2, 16, bytes=3, crc32=0)
AWAY = BrokerUnreachable("no answer")


def lease(shard: int = 0, epoch: int = 1) -> Lease:
    return Lease("test-1a2b", 0, shard, "w1", epoch, "nonce")


def reply(status: str, seq: int = 0) -> AppendReply:
    return AppendReply(status, "run", 1, 0, seq, 9, 999, False)  # type: ignore[arg-type]


class Script:
    """Appends that are answered in turn, the last answer for ever; remembers what was sent."""

    def __init__(self, *answers: str | Exception) -> None:
        self.answers = list(answers)
        self.sent: list[tuple[int, int, bool]] = []
        self.snapshots: list[tuple[bytes | None, bool]] = []
        self.outcomes: list[tuple[int, int | None, Outcome]] = []
        self.heard: list[str] = []
        self.failures: list[BaseException] = []
        self.accepted: dict[Lease, int] = {}
        self.gate = threading.Event()
        self.gate.set()

    def append(self, lease: Lease, *, seq: int, blob: Any, **more: Any) -> AppendReply:
        self.gate.wait(5)
        self.sent.append((lease.shard, seq, blob is not None))
        self.snapshots.append((more["snapshot"], more["resend_snapshot"]))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return reply(answer, seq)

    def settled(self, parcel: Parcel, outcome: Outcome, _: AppendReply | None) -> None:
        if outcome is Outcome.ACCEPTED and parcel.seq is not None:
            self.accepted[parcel.lease] = parcel.seq
        self.outcomes.append((parcel.lease.shard, parcel.seq, outcome))


@pytest.fixture
def made() -> Iterator[list[Appender]]:
    appenders: list[Appender] = []
    yield appenders
    for one in appenders:
        one.stop()


def appender_of(script: Script, clock: Clock | None = None) -> Appender:
    """One whose thread does not run yet."""
    return Appender(
        script.append,
        number=lambda lease: script.accepted.get(lease, 0) + 1,
        stepping=lambda _: False,
        on_outcome=script.settled,
        on_heard=lambda _, answer: script.heard.append(answer.status),
        on_failure=script.failures.append,
        on_damage=lambda one, error: script.failures.append(error),
        clock=clock,
        rng=np.random.default_rng(0),
    )


def begin(script: Script, made: list[Appender]) -> Appender:
    made.append(appender_of(script).start())
    return made[-1]


def parcel(shard: int = 0, epoch: int = 1) -> Parcel:
    return Parcel(lease(shard, epoch), memoryview(b"abc"), META, ttl_ms=1_000)


def test_batches_of_a_shard_are_delivered_in_order_and_numbered_when_sent(made: list[Appender]) -> None:
    script = Script("OK")
    appender = begin(script, made)
    for _ in range(3):
        appender.hand_over(parcel())
    eventually(lambda: len(script.outcomes) == 3)
    assert script.sent == [(0, 1, True), (0, 2, True), (0, 3, True)]
    assert appender.outstanding() == 0


def test_an_answer_that_was_lost_is_asked_for_again_with_the_same_number_and_the_bytes(made: list[Appender]) -> None:
    script = Script(AWAY, AWAY, "DUP")
    begin(script, made).hand_over(parcel())
    eventually(lambda: script.outcomes == [(0, 1, Outcome.ACCEPTED)])
    assert script.sent == [(0, 1, True)] * 3


def test_a_full_stream_is_waited_out_without_sending_the_bytes_again(made: list[Appender]) -> None:
    script = Script("FULL", "FULL", "OK")
    appender = begin(script, made)
    appender.hand_over(parcel())
    eventually(lambda: script.outcomes == [(0, 1, Outcome.ACCEPTED)])
    assert script.sent == [(0, 1, True), (0, 1, False), (0, 1, False)]
    assert script.heard == ["FULL", "FULL"]
    assert appender.tally.full == 2
    assert appender.tally.full_s > 0.0


@pytest.mark.parametrize("answer", ["FULL", BrokerFull("no memory")])
def test_news_let_a_refused_batch_ask_again_soon(made: list[Appender], answer: str | Exception) -> None:
    script = Script(*[answer] * 100)
    appender, refused = begin(script, made), parcel()
    appender.hand_over(refused)
    eventually(lambda: refused.refusals >= 5, what="waits that have grown")
    due = refused.due
    appender.nudge("another")
    assert refused.refusals >= 5
    appender.nudge(refused.lease.experiment)
    assert refused.refusals <= 2
    assert refused.due <= due or refused.refusals == 2


def test_what_memory_refused_asks_again_as_soon_as_anything_is_taken() -> None:
    # Given two batches that were refused, one of them so often that its next wait is one of seconds
    script, clock = Script(BrokerFull("no memory"), BrokerFull("no memory"), "OK"), ManualClock()
    appender, quick, slow = appender_of(script, clock), parcel(0), parcel(1)
    slow.refusals = 12

    def deliver() -> None:
        one = appender._next()
        assert one is not None
        appender._deliver(one)

    for one in (slow, quick):
        appender.hand_over(one)
        deliver()
    assert slow.due > clock.monotonic() + OOM_LAST_S / 10 - 0.001
    assert quick.due <= clock.monotonic() + OOM_FIRST_S
    # When the other one is taken
    clock.advance(OOM_FIRST_S)
    deliver()
    assert script.outcomes == [(0, 1, Outcome.ACCEPTED)]
    # Then that one is due after the first and shortest of waits
    assert slow.due <= clock.monotonic() + FULL_FIRST_S
    clock.advance(FULL_FIRST_S)
    deliver()
    assert [shard for shard, _, _ in script.outcomes] == [0, 1]


def test_bytes_that_the_broker_lost_while_waiting_are_sent_again(made: list[Appender]) -> None:
    script = Script("FULL", "NOBLOB", "OK")
    begin(script, made).hand_over(parcel())
    eventually(lambda: script.outcomes)
    assert [with_bytes for _, _, with_bytes in script.sent] == [True, False, True]


def test_a_broker_without_memory_is_asked_again(made: list[Appender]) -> None:
    script = Script(BrokerFull("no memory"), "OK")
    appender = begin(script, made)
    appender.hand_over(parcel())
    eventually(lambda: script.outcomes == [(0, 1, Outcome.ACCEPTED)])
    assert appender.tally.out_of_memory == 1


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [("FENCED", Outcome.FENCED), ("GAP", Outcome.GAP), ("GONE", Outcome.GONE), (Gone("removed"), Outcome.GONE)],
)
def test_what_stands_behind_a_lost_lease_is_never_sent(
    made: list[Appender], answer: str | Exception, outcome: Outcome
) -> None:
    script = Script(answer)
    script.gate.clear()
    appender = begin(script, made)
    appender.hand_over(parcel())
    appender.hand_over(parcel())
    script.gate.set()
    eventually(lambda: len(script.outcomes) == 2)
    assert script.outcomes == [(0, 1, outcome), (0, None, Outcome.UNSENT)]
    assert len(script.sent) == 1


def test_a_version_that_was_given_uses_up_no_number(made: list[Appender]) -> None:
    script = Script("GIVEN", "OK")
    script.gate.clear()
    appender = begin(script, made)
    appender.hand_over(parcel())
    appender.hand_over(parcel())
    script.gate.set()
    eventually(lambda: len(script.outcomes) == 2)
    assert script.outcomes == [(0, 1, Outcome.GIVEN), (0, 1, Outcome.ACCEPTED)]


def test_a_shard_that_waits_for_room_does_not_hold_up_the_others(made: list[Appender]) -> None:
    script = Script("FULL", "OK", "FULL")
    appender = begin(script, made)
    appender.hand_over(parcel(0))
    appender.hand_over(parcel(1))
    eventually(lambda: (1, 1, Outcome.ACCEPTED) in script.outcomes)
    assert appender.outstanding() == 1


def test_forgetting_a_lease_drops_what_waits_and_leaves_the_one_that_is_being_sent(made: list[Appender]) -> None:
    script = Script("OK")
    script.gate.clear()
    appender = begin(script, made)
    appender.hand_over(parcel())
    eventually(lambda: appender._sending is not None)
    appender.hand_over(parcel())
    appender.hand_over(parcel(0, epoch=2))
    assert len(appender.forget(lease())) == 1
    script.gate.set()
    eventually(lambda: len(script.outcomes) == 2)
    assert [outcome for _, _, outcome in script.outcomes] == [Outcome.ACCEPTED] * 2


def test_an_answer_that_nobody_knows_ends_the_worker_instead_of_waiting_for_ever(made: list[Appender]) -> None:
    script = Script("PERHAPS")
    begin(script, made).hand_over(parcel())
    eventually(lambda: script.failures)
    assert "PERHAPS" in str(script.failures[0])


def test_a_snapshot_is_sent_with_its_batch_and_only_named_while_the_broker_has_both(made: list[Appender]) -> None:
    script = Script("FULL", "NOBLOB", AWAY, "OK")
    one = parcel()
    one.snapshot = b"state"
    begin(script, made).hand_over(one)
    eventually(lambda: script.outcomes == [(0, 1, Outcome.ACCEPTED)])
    assert script.snapshots == [(b"state", True), (None, True), (b"state", True), (b"state", True)]


def test_out_of_memory_a_batch_goes_on_without_its_snapshot(made: list[Appender]) -> None:
    script = Script(BrokerFull("out of memory"), "OK")
    one = parcel()
    one.snapshot = b"state"
    begin(script, made).hand_over(one)
    eventually(lambda: script.outcomes == [(0, 1, Outcome.ACCEPTED)])
    assert script.snapshots == [(b"state", True), (None, False)]
