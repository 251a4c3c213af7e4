"""Entries that somebody wrote by hand into a stream of ours: left out by whoever reads it, and named once."""

import logging
import math
from typing import Any

import pytest

from heddle.broker import Broker, foreign, keys
from heddle.broker.fleet import FleetReader
from heddle.broker.lines import Place
from heddle.broker.records import LATEST_MS, text
from tests.broker_kit import POOL, admit, claim_next
from tests.contract.specs import submitted

HIGHEST = 18446744073709551615
NO_MEASUREMENTS: dict[str, dict[Any, Any]] = {
    "nan": {"update": "5", "values": "nan"},
    "a number": {"update": "5", "values": "0"},
    "a list": {"update": "5", "values": "[]"},
    "null": {"update": "5", "values": "null"},
    "no JSON": {"update": "5", "values": "{"},
    "deep": {"update": "5", "values": "[" * 100_000},
    "nothing": {"update": "5", "values": ""},
    "no values": {"update": "5"},
    "no update": {"values": '{"return": 7.0}'},
    "a word": {"update": "abc", "values": '{"return": 7.0}'},
    "below": {"update": "-1", "values": '{"return": 7.0}'},
    "digits": {"update": "9" * 5_000, "values": '{"return": 7.0}'},
    "an absurd one": {"update": "9" * 300, "values": '{"return": 7.0}'},
    "a value of words": {"update": "5", "values": '{"return": "x"}'},
    "a value of lists": {"update": "5", "values": '{"return": []}'},
    "a value of digits": {"update": "5", "values": '{"return": 1' + "0" * 400 + "}"},
    "other": {"hello": "world"},
}


@pytest.fixture(autouse=True)
def nothing_named_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign, "_named", set())


def seated(broker: Broker) -> tuple[str, int]:
    experiment = submitted(broker)
    seat = broker.seats.claim_seat(experiment, "t1")
    assert seat is not None
    return experiment, seat


@pytest.mark.parametrize("fields", NO_MEASUREMENTS.values(), ids=NO_MEASUREMENTS.keys())
def test_measurements_that_nobody_of_ours_wrote_are_left_out_by_every_reader(
    any_broker: Broker, fields: dict[Any, Any]
) -> None:
    # Given an entry of somebody's between two of a trainer's, and one after them
    experiment, seat = seated(any_broker)
    events, raw = any_broker.events, any_broker.conn.main
    events.metrics_add(experiment, 1, {"return": 20.0}, seat_epoch=seat)
    raw.xadd(keys.metrics(experiment), fields)
    events.metrics_add(experiment, 2, {"return": 30.0, "kl": math.inf}, seat_epoch=seat)
    raw.xadd(keys.metrics(experiment), fields)
    # Then every reader finds the trainer's
    assert [metric.update for metric in events.metrics_read(experiment)] == [1, 2]
    assert [metric.update for metric in events.metrics_read(experiment, count=1)] == [1]
    assert [metric.update for metric in events.metrics_recent(experiment, count=4)] == [1, 2]
    assert events.metrics_last(experiment)["return"] == 30.0
    newest = events.metrics_newest(experiment)
    assert newest is not None and (newest.update, newest.values["return"]) == (2, 30.0)
    glance = any_broker.overview.experiments({experiment: None})[experiment]
    assert [metric.update for metric in glance.metrics] == [1, 2]
    # And what was rolled back is forgotten, and nothing else
    assert events.metrics_forget(experiment, above=1, seat_epoch=seat) >= 1
    assert [metric.update for metric in events.metrics_read(experiment)] == [1]


def test_who_follows_behind_a_foreign_measurement_waits_for_the_next_one(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment, seat = seated(broker)
    events, waiting = broker.events, broker.conn.blocking()
    events.metrics_add(experiment, 1, {"return": 20.0}, seat_epoch=seat)
    (first,) = events.metrics_read(experiment)
    broker.conn.main.xadd(keys.metrics(experiment), {"update": "abc", "values": "{}"})
    asked = list[str]()
    xread = waiting.xread

    def noted(streams: Any, **options: Any) -> Any:
        asked.extend(streams.values())
        if len(asked) == 2:  # it is the one that waits
            events.metrics_add(experiment, 2, {"return": 30.0}, seat_epoch=seat)
        return xread(streams, **options)

    monkeypatch.setattr(waiting, "xread", noted)
    found = events.metrics_read(experiment, first.entry_id, block_ms=2_000)
    assert [metric.update for metric in found] == [2]
    assert asked[0] == first.entry_id != asked[1]


def test_a_page_of_foreign_measurements_is_no_end_of_them(any_broker: Broker) -> None:
    experiment, seat = seated(any_broker)
    events = any_broker.events
    events.metrics_add(experiment, 1, {"return": 20.0}, seat_epoch=seat)
    pipe = any_broker.conn.main.pipeline(transaction=False)
    for _ in range(150):
        pipe.xadd(keys.metrics(experiment), {"update": "abc", "values": "{}"})
    pipe.execute()
    newest = events.metrics_newest(experiment)
    assert newest is not None and newest.update == 1
    events.metrics_add(experiment, 2, {"return": 30.0}, seat_epoch=seat)
    first = events.metrics_read(experiment, count=1)[0]
    assert [metric.update for metric in events.metrics_read(experiment, first.entry_id, count=10)] == [2]
    assert events.metrics_forget(experiment, above=0, seat_epoch=seat) == 2
    assert events.metrics_read(experiment) == []


def test_a_stream_is_named_once_with_the_entry(any_broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    experiment, _ = seated(any_broker)
    entry = text(any_broker.conn.main.xadd(keys.metrics(experiment), {"update": "5", "values": "nan"}))
    with caplog.at_level(logging.WARNING, "heddle.broker"):
        for _ in range(3):
            assert any_broker.events.metrics_newest(experiment) is None
    (said,) = caplog.messages
    assert keys.metrics(experiment) in said and entry in said


def test_a_tracker_deals_with_foreign_measurements_by_leaving_them_out(broker: Broker) -> None:
    experiment, seat = seated(broker)
    trackers, key = broker.trackers, keys.metrics(experiment)
    broker.conn.main.xadd(key, {"update": "5", "values": "nan"})
    trackers.ensure_group(experiment, "mine")
    assert trackers.read(experiment, "mine", count=10, block_ms=0) == []
    broker.events.metrics_add(experiment, 2, {"return": 30.0}, seat_epoch=seat)
    broker.conn.main.xadd(key, {"update": "5", "values": "[]"})
    (given,) = trackers.read(experiment, "mine", count=10, block_ms=0)
    pending = broker.conn.main.xpending(key, "track-mine")
    assert (given.update, pending["pending"]) == (2, 1)
    assert [metric.update for metric in trackers.take_over(experiment, "mine")] == [2]


def test_measurements_go_on_after_an_entry_with_the_highest_id(broker: Broker) -> None:
    experiment, seat = seated(broker)
    broker.events.metrics_add(experiment, 1, {"return": 20.0}, seat_epoch=seat)
    broker.conn.main.xadd(keys.metrics(experiment), {"hello": "world"}, id=f"{HIGHEST}-{HIGHEST}")
    broker.events.metrics_add(experiment, 2, {"return": 30.0}, seat_epoch=seat)
    assert [metric.update for metric in broker.events.metrics_read(experiment)] == [1, 2]


def test_a_follower_reads_a_foreign_measurement_once(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given somebody's entries behind a trainer's, and two who follow, one of them a dashboard
    experiment, seat = seated(broker)
    monkeypatch.setattr("heddle.broker.overview.METRICS", 4)
    reader, events = FleetReader(broker), broker.events
    events.metrics_add(experiment, 1, {"return": 20.0}, seat_epoch=seat)
    assert [metric.update for metric in reader.read().experiments[experiment].metrics] == [1]
    (first,) = events.metrics_read(experiment)
    for _ in range(9):
        broker.conn.main.xadd(keys.metrics(experiment), {"update": "abc", "values": "{}"})
    assert events.metrics_read(experiment, first.entry_id) == []
    # When they look again, a page at a time
    seen = list[str]()
    monkeypatch.setattr(foreign, "name", lambda _, entry_id, __: seen.append(entry_id))
    for _ in range(4):
        assert reader.read().experiments[experiment].metrics == ()
    # Then each of them was read once more, and none that was passed before
    assert len(seen) == len(set(seen)) == 9
    assert events.metrics_read(experiment, first.entry_id) == []
    assert len(seen) == 9
    # And what comes behind them is found
    events.metrics_add(experiment, 2, {"return": 30.0}, seat_epoch=seat)
    assert [metric.update for metric in reader.read().experiments[experiment].metrics] == [2]
    assert [metric.update for metric in events.metrics_read(experiment, first.entry_id)] == [2]


def test_who_follows_goes_on_after_an_entry_with_the_highest_id_and_when_the_stream_is_made_anew(
    broker: Broker,
) -> None:
    # Given who follows, and entries of somebody's with the highest id there is
    experiment, seat = seated(broker)
    reader, highest = FleetReader(broker), f"{HIGHEST}-{HIGHEST}"
    reader.read()
    broker.conn.main.xadd(keys.metrics(experiment), {"update": "7", "values": "{}"}, id=highest)
    broker.conn.main.xadd(keys.LOG, {"message": "by hand"}, id=highest)
    # Then they are told once
    looks = [reader.read() for _ in range(3)]
    assert [[metric.update for metric in look.experiments[experiment].metrics] for look in looks] == [[7], [], []]
    assert [[event.message for event in look.events] for look in looks] == [["by hand"], [], []]
    # And what is added to streams that are made anew for it is told, too
    broker.events.metrics_add(experiment, 8, {"return": 30.0}, seat_epoch=seat)
    broker.events.log(None, "client", "", "info", "new")
    looks = [reader.read() for _ in range(2)]
    assert [metric.update for look in looks for metric in look.experiments[experiment].metrics] == [8]
    assert [event.message for look in looks for event in look.events if event.message == "new"] == ["new"]


@pytest.mark.parametrize("entry", ["9" * 16 + "-1", f"{HIGHEST}-1", f"{HIGHEST - 1}-{HIGHEST}"])
def test_tickets_behind_one_with_an_absurd_id_are_known_replaced_and_dropped(broker: Broker, entry: str) -> None:
    # Given a ticket by hand, behind which every other one has as many digits
    experiment, stream = admit(broker, shards=2), keys.pool_tickets(POOL)
    claim_next(broker)
    broker.conn.main.xadd(stream, {"experiment": "nobody"}, id=entry)
    assert broker.shards.queue_tickets(experiment, 0, [0, 1], POOL) == 1
    (known,) = broker.shards.tickets_of(experiment, 0)
    assert (known.shard, known.in_stream) == (1, True) and len(known.entry_id) > 16
    # When it is issued again and again, then each replaces the one before
    for _ in range(3):
        assert broker.shards.queue_tickets(experiment, 0, [1], POOL) == 1
    assert broker.conn.main.xlen(stream) == 2
    # And it can be claimed, and all of them dropped
    peeked = broker.shards.peek_ticket(POOL)
    assert peeked is not None and peeked.experiment == "nobody"
    assert broker.shards.drop_tickets(experiment, 0, POOL) == 1


def test_a_ticket_with_the_highest_id_keeps_no_pool_from_its_work(broker: Broker) -> None:
    experiment, stream = admit(broker, shards=1), keys.pool_tickets(POOL)
    broker.conn.main.xadd(stream, {"experiment": "nobody"}, id=f"{HIGHEST}-{HIGHEST}")
    # Given that it and the other one were read
    for _ in range(2):
        assert broker.shards.read_ticket(POOL, "w1", block_ms=0) is not None
    # Then whoever looks for more is told that there is none, and a leader finds its own
    assert broker.shards.peek_ticket(POOL) is None
    assert [known.in_stream for known in broker.shards.tickets_of(experiment, 0)] == [True]
    assert broker.shards.drop_tickets(experiment, 0, POOL) == 1
    # And a new one can be claimed
    assert broker.shards.queue_tickets(experiment, 0, [0], POOL) == 1
    while (ticket := broker.shards.read_ticket(POOL, "w2", block_ms=0)) and ticket.experiment == "nobody":
        broker.shards.drop_ticket(ticket)
    assert ticket is not None and (ticket.experiment, ticket.shard) == (experiment, 0)


def test_lines_of_the_log_that_nobody_of_ours_wrote_keep_no_others_from_being_read(broker: Broker) -> None:
    events = broker.events
    events.log("a-1", "worker", "w1", "info", "first")
    for ago in ("abc", "9" * 5_000):
        broker.conn.main.xadd(keys.LOG, {"experiment": "a-1", "message": "by hand", "ago": ago})
    events.log("a-1", "worker", "w1", "info", "last")
    whole = ["first", "by hand", "by hand", "last"]
    assert [event.message for event in events.read("a-1")] == whole
    assert [event.message for event in events.after(Place(), count=9)[0]] == whole
    assert [event.message for event in events.find(lambda event: event.experiment == "a-1")] == whole
    assert [event.message for event in broker.overview.server().events] == whole


def test_what_has_the_time_of_no_calendar_is_told_with_one_that_has(any_broker: Broker) -> None:
    any_broker.conn.main.xadd(keys.LOG, {"message": "long ago", "ago": "9" * 14})
    any_broker.conn.main.xadd(keys.LOG, {"message": "far ahead"}, id=f"{HIGHEST}-1")
    assert [event.time_ms for event in any_broker.events.read()] == [0, LATEST_MS]


def test_dead_batches_and_tickets_by_hand_are_shown_and_dropped_as_what_they_are(any_broker: Broker) -> None:
    experiment, raw = submitted(any_broker), any_broker.conn.main
    raw.xadd(keys.dead(experiment, 0), {"reason": "mine", "kept_bytes": "9" * 5_000}, id=f"{HIGHEST}-1")
    (dead,) = any_broker.dead.ls(experiment)
    assert (dead.kept_bytes, dead.time_ms, dead.pointer) == (0, LATEST_MS, None)
    ticket: dict[Any, Any] = {"experiment": experiment, "partition": "nan", "shard": "0"}
    raw.xadd(keys.pool_tickets("default"), ticket)
    raw.xadd(keys.pool_tickets("default"), {**ticket, "partition": "0"})
    assert any_broker.shards.drop_tickets(experiment, 0, "default") == 1


@pytest.mark.parametrize(
    "noted", ["banana", "x 5", "5-1 nan", "", "9" * 5_000, "9" * 20 + "-1 5", "1-99999999999999999999 5"]
)
def test_a_ticket_noted_by_hand_is_one_that_is_issued_anew(any_broker: Broker, noted: str) -> None:
    experiment = admit(any_broker, shards=1)
    any_broker.conn.main.hset(keys.queued(experiment, 0), mapping={"0": noted, "banana": "x"})
    (known,) = any_broker.shards.tickets_of(experiment, 0)
    assert (known.shard, known.in_stream) == (0, False)
    assert any_broker.shards.queue_tickets(experiment, 0, [0], POOL) == 1
    assert claim_next(any_broker).lease.shard == 0
