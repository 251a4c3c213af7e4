"""Lanes: one plays at a time, one that waits lets others play, and a wait that is not wanted any more is ended."""

import threading

import pytest

from heddle.producers.lanes import Lane, parked
from tests.helpers import eventually


def lane_of(told: list[str], name: str = "lane") -> Lane[str]:
    return Lane(
        name,
        on_park=lambda: told.append("parked"),
        on_go=lambda: told.append("goes on"),
        on_ready=lambda: told.append("ready"),
    )


def test_a_lane_that_waits_gives_the_turn_back_and_goes_on_only_when_told_to() -> None:
    told: list[str] = []
    answer = threading.Event()
    lane = lane_of(told)

    def work() -> str:
        told.append("begins")
        with parked(answer.set):
            answer.wait(10)
        told.append("ends")
        return "result"

    assert lane.begin(work) is False
    assert told == ["begins", "parked"]
    assert lane.is_parked
    answer.set()
    eventually(lambda: lane.is_ready)
    assert told == ["begins", "parked", "ready"], "it does not go on by itself"
    assert lane.go_on() is True
    assert lane.result() == "result"
    assert told == ["begins", "parked", "ready", "goes on", "ends"]
    lane.end()


def test_an_abandoned_wait_is_interrupted_and_may_not_begin_again() -> None:
    answer = threading.Event()
    lane = lane_of([])

    def work() -> str:
        with parked(answer.set):
            answer.wait(10)
        with parked(answer.set):  # does not park: nobody would come back
            answer.wait(10)
        raise RuntimeError("not wanted")

    assert lane.begin(work) is False
    lane.abandon()
    assert not lane.is_parked
    assert lane.begin(lambda: "closed", may_park=False)
    assert lane.result() == "closed"
    lane.end()


def test_what_is_raised_in_a_lane_is_raised_to_its_owner() -> None:
    lane = lane_of([])

    def work() -> str:
        raise ValueError("here")

    assert lane.begin(work)
    with pytest.raises(ValueError, match="here"):
        lane.result()
    lane.end()


def test_outside_a_lane_waiting_is_just_waiting() -> None:
    ended: list[str] = []
    with parked(lambda: ended.append("interrupted")):
        ended.append("waited")
    assert ended == ["waited"]
