"""What is printed in a role that nobody supervises: still where it was printed to, and heard."""

import io
import logging
import os
import sys
from typing import Any

import pytest

from heddle import subject
from heddle.cli import begun, prints
from heddle.cli.log_lines import FORMAT_ENV
from heddle.cli.prints import prints_are_heard


class Ears:
    """Takes what a `Speaking` would."""

    def __init__(self, *_: Any) -> None:
        self.heard: list[tuple[str, str | None, str]] = []
        ears.append(self)

    def hear(self, who: str, experiment: str | None, line: str) -> None:
        self.heard.append((who, experiment, line))

    def stop(self) -> None:
        self.heard.append(("", None, "ended"))


ears: list[Ears] = []


@pytest.fixture(autouse=True)
def listening(monkeypatch: pytest.MonkeyPatch) -> None:
    ears.clear()
    monkeypatch.setattr(prints, "Speaking", Ears)
    monkeypatch.setattr(begun, "IDLE_S", 3_600.0)
    monkeypatch.setattr(subject, "_process", {})
    monkeypatch.delenv(FORMAT_ENV, raising=False)


def test_whole_lines_are_heard_with_the_experiment_that_is_played_and_stay_where_they_were_printed_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    with prints_are_heard("redis://nowhere", "worker", "w1"):
        with subject.about({"experiment": "pole-1", "shard": 3, "epoch": 17}):
            print("arm", "is", end=" ")
            print("cold")
        print("outside\nand on")
    print("afterwards")
    assert out.getvalue() == "arm is cold\noutside\nand on\nafterwards\n"
    assert ears[0].heard == [
        ("w1", "pole-1", "arm is cold"),
        ("w1", None, "outside"),
        ("w1", None, "and on"),
        ("", None, "ended"),
    ]


def test_where_prints_are_log_lines_those_are_heard_and_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(FORMAT_ENV, "json")
    caplog.set_level(logging.INFO, logger=subject.PRINTED)
    with prints_are_heard("redis://nowhere", "worker", "w1"):
        about = {"experiment": "pole-1", "shard": 3}
        logging.getLogger(subject.PRINTED).info("%s", "x", extra={"printed": "arm is cold", "subject": about})
        logging.getLogger("heddle.worker").info("claimed shard=3")
    assert ears[0].heard == [("w1", "pole-1", "arm is cold"), ("", None, "ended")]


def test_a_fork_of_it_prints_and_is_not_heard_for_it_has_none_of_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    with prints_are_heard("redis://nowhere", "worker", "w1"):
        monkeypatch.setattr(os, "getpid", lambda: -1)
        print("in the fork")
    assert out.getvalue() == "in the fork\n" and ears[0].heard == [("", None, "ended")]


def test_a_fork_whose_prints_are_log_lines_is_not_heard_either(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(FORMAT_ENV, "json")
    caplog.set_level(logging.INFO, logger=subject.PRINTED)
    with prints_are_heard("redis://nowhere", "worker", "w1"):
        monkeypatch.setattr(os, "getpid", lambda: -1)
        logging.getLogger(subject.PRINTED).info("%s", "x", extra={"printed": "in the fork"})
    assert ears[0].heard == [("", None, "ended")]


def test_what_a_destructor_prints_while_a_line_is_heard_is_printed_and_nobody_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Given ears in the middle of whose hearing something is collected that prints
    class Collecting(Ears):
        def hear(self, who: str, experiment: str | None, line: str) -> None:
            super().hear(who, experiment, line)
            print("closed an environment")

    monkeypatch.setattr(prints, "Speaking", Collecting)
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    # When a line is printed
    with prints_are_heard("redis://nowhere", "worker", "w1"):
        print("step")
    # Then both are where they were printed to, and the first is heard
    assert out.getvalue() == "step\nclosed an environment\n"
    assert ears[0].heard == [("w1", None, "step"), ("", None, "ended")]


def test_user_code_finds_the_encoding_of_the_stream_beneath_and_may_wrap_it_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, "latin-1", errors="replace", write_through=True))
    with prints_are_heard("redis://nowhere", "worker", "w1"):
        assert (sys.stdout.encoding, sys.stdout.errors) == ("latin-1", "replace")
        anew = io.TextIOWrapper(sys.stdout.detach(), "utf-8", write_through=True)  # type: ignore[union-attr]
        anew.write("é\n")
        print("é")
    assert raw.getvalue() == "é\n".encode() + "é\n".encode("latin-1")
    assert ears[0].heard == [("w1", None, "é"), ("", None, "ended")]


def test_last_words_without_an_end_are_heard_with_the_experiment_that_was_played(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    with prints_are_heard("redis://nowhere", "worker", "w1"):
        with subject.about({"experiment": "pole-1"}):
            print("arm is", end="")
        held = sys.stdout
    print("of late", end="", file=held)
    assert ears[0].heard == [("w1", "pole-1", "arm is"), ("", None, "ended"), ("w1", None, "of late")]
