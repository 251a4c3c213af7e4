"""Events: a log that never fails its writer, metrics that outlive a full memory, news that wake who waits."""

import math
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from heddle.broker import Broker, keys, open_broker
from heddle.broker.lines import LINE_CHARS, LOG_ENTRIES, PRINTED, STREAMS, Line, Place
from heddle.broker.news import Facts, NewsListener
from heddle.broker.server import LocalServer
from heddle.errors import Gone, SeatLost
from tests.broker_kit import next_ms
from tests.contract.specs import all_keys, out_of_memory, seated, submitted
from tests.helpers import eventually


def printed(message: str) -> Line:
    return Line("a-1", PRINTED, "w1", "info", message)


# ---- log


def test_the_log_tells_of_one_experiment_or_of_all_oldest_first(any_broker: Broker) -> None:
    events = any_broker.events
    for number in range(6):
        events.log("a-1" if number % 2 else None, "worker", "w1", "info", f"line {number}")
    assert [event.message for event in events.read()] == [f"line {number}" for number in range(6)]
    assert [event.message for event in events.read("a-1", count=2)] == ["line 3", "line 5"]
    last = events.read(count=1)[0]
    assert (last.experiment, last.role, last.worker, last.level) == ("a-1", "worker", "w1", "info")
    assert abs(last.time_ms - any_broker.conn.now_ms()) < 5_000


def test_a_line_has_the_shard_and_epoch_of_whoever_printed_it_and_an_event_those_that_it_names(
    any_broker: Broker,
) -> None:
    events = any_broker.events
    played = Line("a-1", PRINTED, "w1", "info", "shard=9 epoch=9 of its own", shard=3, epoch=17)
    assert events.log_all([played, printed("shard=9 epoch=9, and nobody knows whose")])
    events.log("a-1", "supervisor", "s", "warning", "freed shard=a-1/4, it ended; epoch=18 of worker=w1, now queued")
    events.log("a-1", "trainer", "t", "info", "claimed the seat epoch=19")
    events.log("a-1", "worker", "w1", "info", "claimed shard=5")
    events.log("a-1", "worker", "w1", "info", f"claimed shard=a-1/{'9' * 40}")
    found = {event.message: (event.shard, event.epoch) for event in events.read()}
    assert found == {
        "shard=9 epoch=9 of its own": (3, 17),
        "shard=9 epoch=9, and nobody knows whose": (None, None),
        "freed shard=a-1/4, it ended; epoch=18 of worker=w1, now queued": (4, 18),
        "claimed the seat epoch=19": (None, None),
        "claimed shard=5": (5, None),
        f"claimed shard=a-1/{'9' * 40}": (None, None),
    }


def test_the_log_is_followed_from_a_line_on(any_broker: Broker) -> None:
    events = any_broker.events
    for number in range(4):
        events.log("a-1", "worker", None, "info", f"line {number}")
    first = events.read(count=4)[0]
    assert [event.message for event in events.after(Place({keys.LOG: first.entry_id}), count=2)[0]] == [
        "line 1",
        "line 2",
    ]
    assert [event.message for event in events.after(Place(), "a-1", count=9)[0]] == [f"line {n}" for n in range(4)]
    told, end = events.after(Place(), "other", count=9)
    assert (told, end) == ([], events.end()), "what is about others is behind it all the same"
    assert events.after(end, count=9) == ([], end)


def test_what_user_code_prints_is_told_among_events_in_order_of_time_and_pushes_none_of_them_out(
    broker: Broker,
) -> None:
    # Given an event, many more prints than are kept, and an event that happened before the last of them was told
    broker.events.log("a-1", "worker", "w1", "info", "first")
    for start in range(0, 2 * LOG_ENTRIES, 1_000):
        assert broker.events.log_all([printed(f"print {number}") for number in range(start, start + 1_000)])
    after_it = [Line("a-1", "worker", "w1", "info", "last", ago_ms=60_000)]
    next_ms(broker)  # within one millisecond two streams have no order
    broker.events.log_all([printed("bye"), *after_it])
    # Then prints are kept by their own cap, and no event is gone
    assert broker.conn.main.xlen(keys.PRINTS) <= LOG_ENTRIES + 200
    assert [event.message for event in broker.events.find(lambda _: True, count=9, prints=False)] == ["last", "first"]
    # And one look tells both by when they happened, filtered as ever
    everything = broker.events.find(lambda _: True, count=10 * LOG_ENTRIES)
    assert len(everything) > LOG_ENTRIES
    assert [event.time_ms for event in everything] == sorted(event.time_ms for event in everything)
    found = broker.events.find(lambda event: not event.message.startswith("print "), count=9)
    assert [event.message for event in found] == ["last", "first", "bye"]
    assert [event.message for event in broker.events.read(count=2)] == ["last", "bye"]


def test_who_follows_both_streams_gets_each_line_once_and_none_before_an_older_one(broker: Broker) -> None:
    # Given events and prints by turns, in runs longer than what is read at once
    for turn in range(6):
        broker.events.log_all([Line("a-1", "worker", "w1", "info", f"{turn} event {n}") for n in range(7)])
        next_ms(broker)
        broker.events.log_all([printed(f"{turn} print {n}") for n in range(7)])
        next_ms(broker)
    # When they are read five at a time
    found: list[str] = []
    place = Place()
    told, place = broker.events.after(place, count=5)
    while told:
        assert len(told) <= 5
        found += [event.message for event in told]
        told, place = broker.events.after(place, count=5)
    # Then
    assert found == [f"{turn} {kind} {n}" for turn in range(6) for kind in ("event", "print") for n in range(7)]


def test_prints_of_a_version_that_knew_one_stream_are_still_told(broker: Broker) -> None:
    old: Any = {"experiment": "a-1", "role": PRINTED, "worker": "w1", "level": "info", "message": "of old"}
    broker.conn.main.xadd(keys.LOG, old)
    broker.events.log_all([printed("of now")])
    for told in (
        broker.events.read("a-1"),
        broker.events.find(lambda event: event.role == PRINTED),
        broker.events.after(Place(), "a-1", count=9)[0],
        broker.overview.server().events,
    ):
        assert [event.message for event in told] == ["of old", "of now"]


@pytest.mark.parametrize("stream", STREAMS)
def test_where_one_stream_is_damaged_the_other_is_written_and_that_is_said_once(
    stream: str, broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.conn.main.set(stream, "not a stream")
    for _ in range(3):
        assert not broker.events.log_all([printed("x"), Line(None, "worker", "w1", "info", "y")])
    (other,) = {*STREAMS} - {stream}
    assert broker.conn.main.xlen(other) == 3
    assert [stream in record.getMessage() for record in caplog.records] == [True]
    broker.conn.main.delete(stream)
    assert broker.events.log_all([printed("x"), Line(None, "worker", "w1", "info", "y")])


def test_a_long_line_keeps_its_end(any_broker: Broker) -> None:
    any_broker.events.log(None, "worker", None, "error", "x" * LINE_CHARS + "the reason")
    assert any_broker.events.read()[0].message.endswith("the reason")


def test_the_log_never_fails_who_writes_it(broker: Broker) -> None:
    line = Line(None, "worker", "", "info", "lost")
    with out_of_memory(broker):
        broker.events.log(None, "worker", None, "info", "lost")
        assert not broker.events.log_all([line])
    assert broker.events.read() == []
    broker.conn.main.set(keys.LOG, "not a stream")
    broker.events.log(None, "worker", None, "info", "lost")
    assert not broker.events.log_all([line])


def test_the_log_is_capped(broker: Broker) -> None:
    for start in range(0, 10_500, 1_500):
        assert broker.events.log_all([Line(None, "w", "", "info", str(start + number)) for number in range(1_500)])
    assert broker.conn.main.xlen(keys.LOG) <= 10_200


# ---- metrics


def test_the_metrics_of_an_update_arrive_together(any_broker: Broker) -> None:
    experiment, seat = seated(any_broker)
    events = any_broker.events
    events.metrics_add(experiment, 1, {"return": 20.5, "kl": math.nan}, seat_epoch=seat)
    events.metrics_add(experiment, 2, {"return": 30.0}, seat_epoch=seat)
    first, second = events.metrics_read(experiment)
    assert (first.update, first.values["return"], second.update) == (1, 20.5, 2)
    assert math.isnan(first.values["kl"])
    assert [metric.update for metric in events.metrics_read(experiment, first.entry_id)] == [2]
    assert events.metrics_read(experiment, second.entry_id) == []
    last = events.metrics_last(experiment)
    assert last["return"] == 30.0 and math.isnan(last["kl"])


def test_waiting_for_metrics_ends_when_they_come_or_in_time(broker: Broker) -> None:
    experiment, _ = seated(broker)
    assert broker.events.metrics_read(experiment, block_ms=20) == []
    adding = threading.Timer(0.05, lambda: broker.events.metrics_add(experiment, 1, {"return": 1.0}))
    adding.start()
    assert [metric.update for metric in broker.events.metrics_read(experiment, block_ms=2_000)] == [1]
    adding.join()


def test_metrics_come_from_the_holder_of_the_seat_and_never_bring_back_what_was_removed(any_broker: Broker) -> None:
    experiment, seat = seated(any_broker)
    with pytest.raises(SeatLost):
        any_broker.events.metrics_add(experiment, 1, {"return": 1.0}, seat_epoch=seat - 1)
    any_broker.experiments.remove(experiment)
    before = all_keys(any_broker)
    with pytest.raises(Gone):
        any_broker.events.metrics_add(experiment, 1, {"return": 1.0}, seat_epoch=seat)
    assert all_keys(any_broker) == before


def test_metrics_of_updates_that_were_rolled_back_are_forgotten_by_the_holder_of_the_seat(any_broker: Broker) -> None:
    events = any_broker.events
    experiment, seat = seated(any_broker)
    assert events.metrics_forget(experiment, above=0, seat_epoch=seat) == 0
    for update in [*range(1, 201), 200]:
        events.metrics_add(experiment, update, {"return": float(update)}, seat_epoch=seat)
    with pytest.raises(SeatLost):
        events.metrics_forget(experiment, above=3, seat_epoch=seat - 1)
    assert events.metrics_forget(experiment, above=3, seat_epoch=seat) == 198
    assert [metric.update for metric in events.metrics_read(experiment)] == [1, 2, 3]
    assert events.metrics_forget(experiment, above=3, seat_epoch=seat) == 0
    any_broker.experiments.remove(experiment, force=True)
    with pytest.raises(Gone):
        events.metrics_forget(experiment, above=3, seat_epoch=seat)


def test_metrics_are_stored_when_the_memory_is_full(broker: Broker) -> None:
    experiment, seat = seated(broker)
    with out_of_memory(broker):
        broker.events.metrics_add(experiment, 1, {"return": 1.0}, seat_epoch=seat)
        assert broker.events.metrics_last(experiment) == {"return": 1.0}


# ---- news


@pytest.fixture
def listener(broker: Broker) -> Iterator[NewsListener]:
    found = broker.events.listen()
    yield found
    found.close()


def test_a_watched_experiment_tells_its_facts_and_every_change(broker: Broker, listener: NewsListener) -> None:
    experiment, seat = seated(broker)
    assert listener.facts(experiment) is None
    listener.watch(experiment)
    eventually(lambda: listener.facts(experiment) == Facts(0, 0, "run"))
    broker.policies.publish(experiment, seat, 3, b"weights", update=0)
    eventually(lambda: listener.facts(experiment) == Facts(3, 0, "run"))
    broker.policies.set_eval(experiment, seat, 3)
    eventually(lambda: listener.facts(experiment) == Facts(3, 3, "run"))
    broker.experiments.set_command(experiment, "pause")
    eventually(lambda: listener.facts(experiment) == Facts(3, 3, "pause"))
    broker.experiments.finish(experiment, seat, "completed", "", {})
    eventually(lambda: listener.facts(experiment) == Facts(3, 3, "stop"))


def test_news_wake_who_waits_long_before_its_time_is_over(broker: Broker, listener: NewsListener) -> None:
    experiment, _ = seated(broker)
    listener.watch(experiment)
    assert listener.wait(5.0)
    assert not listener.wait(0.0)
    broker.experiments.set_command(experiment, "pause")
    assert listener.wait(5.0)


def test_what_is_not_watched_is_not_heard(broker: Broker, listener: NewsListener) -> None:
    experiment = submitted(broker)
    other = submitted(broker, name="other")
    listener.watch(experiment)
    listener.watch(other)
    eventually(lambda: listener.facts(experiment) and listener.facts(other))
    listener.unwatch(experiment)
    broker.experiments.set_command(experiment, "pause")
    broker.experiments.set_command(other, "pause")
    eventually(lambda: listener.facts(other) == Facts(0, 0, "pause"))
    assert listener.facts(experiment) is None


def test_a_listener_that_was_cut_off_listens_again_and_catches_up(broker: Broker, listener: NewsListener) -> None:
    experiment = submitted(broker)
    listener.watch(experiment)
    eventually(lambda: listener.facts(experiment))
    broker.conn.main.client_kill_filter(_type="pubsub")
    broker.experiments.set_command(experiment, "pause")
    eventually(lambda: listener.facts(experiment) == Facts(0, 0, "pause"))
    broker.experiments.set_command(experiment, "run")
    eventually(lambda: listener.facts(experiment) == Facts(0, 0, "run"))


def test_a_removed_experiment_has_no_command(broker: Broker, listener: NewsListener) -> None:
    listener.watch("gone-1")
    assert eventually(lambda: listener.facts("gone-1")) == Facts(0, 0, "")


def test_a_closed_listener_leaves_no_thread(redis_server: LocalServer) -> None:
    with open_broker(redis_server.url, role="test") as broker:
        listener = broker.events.listen()
        listener.watch("a-1")
        eventually(lambda: listener.facts("a-1"))
        listener.close()
        assert not any(thread.name == "heddle-news" for thread in threading.enumerate())
