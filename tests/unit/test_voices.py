"""What user code prints in workers, on its way to the log in the broker."""

import logging
import os
from collections.abc import Sequence
from typing import cast

import pytest

from heddle.broker import Broker
from heddle.broker.lines import Line
from heddle.broker.presence import Pulse
from heddle.cli.log_lines import FORMAT_ENV, formatter
from heddle.clock import ManualClock
from heddle.errors import Denied
from heddle.launch import speaking
from heddle.launch.hearing import Hearing
from heddle.launch.speaking import Speaking
from heddle.launch.voices import BURST, MOST_WAITING, Voices
from heddle.producers.isolation.printed import Printed
from heddle.quick_exit import exit_now
from heddle.subject import PRINTED
from tests.helpers import eventually


def heard(voices: Voices) -> list[tuple[str, str]]:
    return [(line.worker, line.message) for line in voices.take()]


@pytest.mark.parametrize(
    "ours",
    [
        "15:04:05 INFO    heddle.worker claimed shard=3",
        '{"time": "2026-11-30T15:04:05.000+00:00", "level": "info", "logger": "heddle.worker", "message": "x"}',
        "   ",
    ],
)
def test_what_heddle_says_itself_is_not_said_again(ours: str) -> None:
    voices = Voices(ManualClock())
    voices.hear("w1", ours)
    voices.hear("w1", "arm is cold")
    assert heard(voices) == [("w1", "arm is cold")]
    assert voices.take() == []


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_line_as_heddles_own_log_writes_it_is_known(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FORMAT_ENV, form)
    record = logging.LogRecord("heddle.worker", logging.WARNING, __file__, 1, "claimed shard=%d", (3,), None)
    voices = Voices(ManualClock())
    voices.hear("w1", formatter().format(record))
    assert voices.take() == []


@pytest.mark.parametrize("form", ["text", "json"])
def test_what_an_environment_in_a_child_prints_is_taken_with_its_experiment_however_the_log_is_written(
    form: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(FORMAT_ENV, form)
    caplog.set_level(logging.INFO, PRINTED)
    Printed({"experiment": "pole-1a2b", "shard": 7, "epoch": 17}, ManualClock()).take(b"epoch=3 | loss 0.5\n")
    voices = Voices(ManualClock())
    voices.hear("w1", formatter().format(caplog.records[0]))
    assert [(line.experiment, line.shard, line.epoch, line.worker, line.message) for line in voices.take()] == [
        ("pole-1a2b", 7, 17, "w1", "epoch=3 | loss 0.5")
    ]


def test_a_line_that_an_environment_in_a_child_did_not_end_is_told_when_its_worker_is_ended_at_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, PRINTED)
    ends = list[int]()
    monkeypatch.setattr(os, "_exit", ends.append)
    open_one, closed = (Printed({"experiment": "pole-1a2b"}, ManualClock()) for _ in range(2))
    open_one.take(b"the arm is")
    closed.take(b"cold")
    closed.close()
    exit_now(70, within_s=20)
    assert ends == [70]
    assert [vars(record)["printed"] for record in caplog.records] == ["cold", "the arm is"]


@pytest.mark.parametrize(
    "forged",
    [
        '{"logger": "heddle.printed", "message": "x", "shard": "three", "epoch": true}',
        '{"logger": "heddle.printed", "message": "x", "shard": -1, "epoch": 1.5}',
        f"heddle.printed shard=pole-1/{'9' * 40} | x",
    ],
)
def test_a_shard_that_is_no_number_of_one_is_left_out(forged: str) -> None:
    voices = Voices(ManualClock())
    voices.hear("w1", forged)
    assert [(line.message, line.shard, line.epoch) for line in voices.take()] == [("x", None, None)]


def test_one_trainer_that_prints_much_costs_no_other_its_lines() -> None:
    voices = Voices(ManualClock())
    for number in range(BURST + 7):
        voices.hear("trainer", f"line {number}", {"experiment": "a-1"})
    voices.hear("trainer", "mine", {"experiment": "b-2"})
    assert [(line.experiment, line.message) for line in voices.take()][-1] == ("b-2", "mine")


def test_of_a_flood_the_first_lines_are_kept_and_the_rest_is_counted_once_there_is_room() -> None:
    clock = ManualClock()
    voices = Voices(clock)
    for number in range(BURST + 7):
        voices.hear("w1", f"line {number}")
    voices.hear("w2", "mine")  # nobody else loses by it
    assert [line for _, line in heard(voices)] == [*(f"line {number}" for number in range(BURST)), "mine"]
    clock.advance(1.0)
    voices.hear("w1", "later")
    assert heard(voices) == [("w1", "(left out 7 lines, they are in its log file) later")]


def test_while_the_broker_takes_nothing_what_is_kept_is_bounded_and_the_oldest_come_first() -> None:
    voices = Voices(ManualClock())
    for worker in range(MOST_WAITING):
        voices.hear(f"w{worker}", "here")
        voices.hear(f"w{worker}", "there")
    kept = voices.take()
    assert len(kept) == MOST_WAITING
    voices.hear("x", "new")
    voices.give_back(kept)
    assert voices.take() == kept


def test_a_line_is_about_the_experiment_whose_shards_alone_a_worker_holds() -> None:
    hearing = Hearing()
    said = {"one": Pulse(1, experiments=("a-1",)), "two": Pulse(1, experiments=("a-1", "b-2")), "none": Pulse(1)}
    hearing.hear(0.0, said, said)
    assert [hearing.experiment(worker) for worker in ("one", "two", "none", "stranger")] == ["a-1", None, None, None]


def test_what_the_broker_does_not_allow_is_dropped_and_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(speaking, "EVERY_S", 0.01)
    tried = list[int]()

    def connect() -> Broker:
        tried.append(1)
        raise Denied("asks for another password")

    speaks = Speaking(connect)
    speaks.hear("w1", {}, "one")
    eventually(lambda: len(tried) == 1 and not speaks._something.is_set())
    speaks.hear("w1", {}, "two")
    eventually(lambda: len(tried) == 2)
    speaks.stop()
    assert len(tried) == 2, "none is tried again"
    assert ["another password" in record.getMessage() for record in caplog.records] == [True]


class Log:
    """A broker that is asked for its log alone."""

    def __init__(self, did: list[str]) -> None:
        self.events = self
        self._did = did
        did.append("opened")

    def log_all(self, lines: Sequence[Line]) -> bool:
        self._did += [line.message for line in lines]
        return True

    def close(self) -> None:
        self._did.append("closed")


def test_where_nothing_is_printed_for_long_no_connection_is_held_and_the_next_line_opens_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(speaking, "IDLE_S", 0.02)
    monkeypatch.setattr(speaking, "EVERY_S", 0.01)
    did = list[str]()
    speaks = Speaking(lambda: cast(Broker, Log(did)))
    speaks.hear("w1", {}, "one")
    eventually(lambda: did == ["opened", "one", "closed"])
    speaks.hear("w1", {}, "two")
    eventually(lambda: did[3:] == ["opened", "two", "closed"])
    speaks.stop()
    assert len(did) == 6, "what is not held is not let go of again"
