"""Tracing: who is asked to trace, what is named how, and that nobody ever waits for a collector."""

import subprocess
import sys
import threading
from collections.abc import Sequence

import pytest

from heddle.broker.types import AppendMeta, Lease
from heddle.clock import ManualClock, SystemClock
from heddle.errors import MissingExtra, UsageError
from heddle.producers.parcel import Outcome, Parcel
from heddle.producers.traced import traced
from heddle.tracing import Outbox, Span, Tally, Tracing, batch_ref, is_followed, open_tracing, policy_ref
from tests.helpers import eventually

SPAN = Span(policy_ref("publish", "e-1a2b3c", 1), "publish", 1, 2)


class Kept:
    """A collector in this process, which may be slow, or broken."""

    def __init__(self, why: str = "") -> None:
        self.why = why
        self.spans: list[Span] = []
        self.gate = threading.Event()
        self.gate.set()
        self.asked = threading.Event()

    def send(self, spans: Sequence[Span]) -> str:
        self.asked.set()
        self.gate.wait(20)
        if self.why == "raise":
            raise OSError("no route")
        self.spans += spans if not self.why else []
        return self.why


def test_nobody_traces_unless_told_to() -> None:
    assert open_tracing("heddle-worker", told="") is None
    assert open_tracing("heddle-worker", told="0") is None


def test_a_process_that_does_not_trace_never_loads_opentelemetry() -> None:
    def loaded_by(code: str) -> str:
        code = f"import sys\n{code}\nprint(sorted(name for name in sys.modules if name.startswith('opentelemetry')))"
        return subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, check=True).stdout

    roles = "import heddle.producers.worker, heddle.consumers.trainer, heddle.tracing, heddle.cli.roles\n"
    roles += "assert heddle.tracing.open_tracing('heddle-worker', told='') is None"
    assert loaded_by(roles) == loaded_by("import redis")  # which looks for it by itself
    assert loaded_by("import heddle.tracing") == "[]\n"


@pytest.mark.parametrize("told", ["1", "yes", "localhost:4318", "grpc://host:4317", "http://"])
def test_what_names_no_collector_is_refused_with_what_to_write(told: str) -> None:
    with pytest.raises(UsageError, match=r"HEDDLE_TRACE=.*names no collector.*http://127.0.0.1:4318.*otlp"):
        open_tracing("heddle-worker", told=told)


def test_without_opentelemetry_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    for name in [name for name in sys.modules if name.startswith("opentelemetry.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(MissingExtra, match=r"heddle-rl\[obs\]"):
        open_tracing("heddle-worker", told="otlp")


def test_worker_and_trainer_name_the_same_span_alike_and_no_two_spans_alike() -> None:
    assert batch_ref("append", "e-1", 0, "3:17:ab:9") == batch_ref("append", "e-1", 0, "3:17:ab:9")
    refs = [
        *(batch_ref(name, "e-1", 0, "3:17:ab:9") for name in ("rollout", "append", "stream", "queue")),
        batch_ref("append", "e-1", 0, "3:17:ab:10"),
        batch_ref("append", "e-1", 1, "3:17:ab:9"),
        batch_ref("append", "e-2", 0, "3:17:ab:9"),
        *(policy_ref(name, "e-1", 9) for name in ("update", "publish", "first use w1", "first use w2")),
        policy_ref("update", "e-1", 10),
    ]
    assert len({(ref.trace_id, ref.span_id) for ref in refs}) == len(refs)
    assert len({ref.trace_id for ref in refs[:4]}) == 1  # one batch is one trace
    assert all(0 < ref.trace_id < 1 << 128 and 0 < ref.span_id < 1 << 64 for ref in refs)


def test_spans_are_sent_in_order_and_the_rest_of_them_at_the_end() -> None:
    kept = Kept()
    outbox = Outbox(kept.send, every_s=60.0).start()
    spans = [Span(policy_ref("publish", "e", version), "publish", version, version) for version in range(1, 4)]
    for span in spans:
        outbox.add([span])
    outbox.close(within_s=20.0)
    assert kept.spans == spans
    assert outbox.tally() == Tally(sent=3, refused=0, dropped=0)


def test_whoever_adds_never_waits_for_a_collector_that_hangs_and_what_has_no_room_is_counted() -> None:
    kept, clock = Kept(), SystemClock()
    kept.gate.clear()
    outbox = Outbox(kept.send, most=1_000, every_s=0.0, clock=clock).start()
    try:
        outbox.add([SPAN] * 10)
        assert kept.asked.wait(20)
        began = clock.monotonic()
        for _ in range(100):
            outbox.add([SPAN] * 100)
        outbox.close(within_s=0.1)
        assert clock.monotonic() - began < 5.0  # what it hangs for is 20 s
        assert outbox.tally().dropped == 100 * 100  # those that had room were not sent either
    finally:
        kept.gate.set()


@pytest.mark.parametrize("why", ["it said no", "raise"])
def test_what_a_collector_does_not_take_is_counted_and_told_once(why: str, caplog: pytest.LogCaptureFixture) -> None:
    outbox = Outbox(Kept(why).send, every_s=0.0, clock=ManualClock()).start()
    for number in range(1, 4):
        outbox.add([SPAN])
        eventually(lambda number=number: outbox.tally().refused == number)  # type: ignore[misc]
    outbox.close(within_s=20.0)
    lines = [record.getMessage() for record in caplog.records if "loses traces" in record.getMessage()]
    assert len(lines) == 1
    assert ("it said no" if why != "raise" else "OSError: no route") in lines[0]


def test_of_quick_batches_a_part_is_followed_and_of_slow_ones_every_one() -> None:
    refs = [batch_ref("append", "e-1", 0, f"0:17:ab:{seq}") for seq in range(2_000)]
    followed = {ms: sum(is_followed(ref, ms) for ref in refs) for ms in (0, 1, 50, 249, 250, 5_000)}
    assert followed[0] == followed[1]
    assert 0 < followed[1] < 30  # 1 in 250
    assert 300 < followed[50] < 500  # 1 in 5
    assert followed[249] < followed[250] == followed[5_000] == 2_000
    rollouts = [batch_ref("rollout", "e-1", 0, f"0:17:ab:{seq}") for seq in range(2_000)]
    assert [is_followed(ref, 50) for ref in refs] == [is_followed(ref, 50) for ref in rollouts]


def parcel(version: int, seq: int | None) -> Parcel:
    meta = AppendMeta("train", version, version, 2, 16, bytes=3, crc32=0, played_ms=250)
    made = Parcel(Lease("e-1", 0, 3, "w1", 17, "ab"), memoryview(b"abc"), meta, ttl_ms=1_000)
    made.seq, made.since = seq, 1_000.0
    return made


def test_a_settled_batch_is_a_rollout_and_an_append_and_the_first_of_a_version_its_first_use() -> None:
    kept, clock, told = Kept(), ManualClock(), list[Outcome]()
    tracing = Tracing(Outbox(kept.send, every_s=0.0).start(), clock)
    settled = traced(lambda _parcel, outcome, _reply: told.append(outcome), tracing)
    clock.advance(0.5)
    for seq, version, outcome in [
        (1, 4, Outcome.ACCEPTED),
        (2, 4, Outcome.FENCED),
        (3, 5, Outcome.ACCEPTED),
        (None, 5, Outcome.UNSENT),
    ]:
        settled(parcel(version, seq), outcome, None)
    tracing.close()
    assert told == [Outcome.ACCEPTED, Outcome.FENCED, Outcome.ACCEPTED, Outcome.UNSENT]
    names = [span.name for span in kept.spans]
    assert names == ["rollout", "append", "first use", "rollout", "append", "rollout", "append", "first use"]
    rollout, append, first = kept.spans[:3]
    assert (rollout.ended_ns - rollout.began_ns, append.ended_ns - append.began_ns) == (250_000_000, 500_000_000)
    assert append.parent == rollout.ref == batch_ref("rollout", "e-1", 0, "3:17:ab:1")
    assert rollout.links == (policy_ref("publish", "e-1", 4),)
    assert (first.parent, first.links) == (policy_ref("publish", "e-1", 4), (rollout.ref,))
    assert kept.spans[4].error == "fenced"


def test_who_does_not_trace_is_given_what_it_had() -> None:
    def settled(*_: object) -> None:
        raise AssertionError

    assert traced(settled, None) is settled
