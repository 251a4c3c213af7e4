"""What is printed in a role that nobody supervises: still where it was printed to, and heard."""

import io
import logging
import os
import re
import sys
import threading
from contextvars import copy_context
from pathlib import Path
from typing import Any

import pytest

from heddle import subject
from heddle.cli import begun, prints
from heddle.cli.log_lines import FORMAT_ENV, formatter
from heddle.cli.prints import prints_are_heard, prints_are_marked
from heddle.cli.root import _StandardError
from heddle.clock import ManualClock
from heddle.launch.voices import Voices


class Ears:
    """Takes what a `Speaking` would."""

    def __init__(self, *_: Any) -> None:
        self.heard: list[tuple[str, object, str]] = []
        self.about: list[subject.Subject] = []
        ears.append(self)

    def hear(self, who: str, about: subject.Subject, line: str) -> None:
        self.heard.append((who, about.get("experiment"), line))
        self.about.append(about)

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
    assert ears[0].about == [{"experiment": "pole-1", "shard": 3, "epoch": 17}, {}, {}]


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
        def hear(self, who: str, about: subject.Subject, line: str) -> None:
            super().hear(who, about, line)
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


PLAYED: subject.Subject = {"experiment": "pole-1", "shard": 3, "epoch": 17}


def test_for_a_supervisor_each_line_has_the_shard_that_its_thread_played_and_others_are_as_they_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Given a worker that prints of a shard, of none, in a thread that plays on, and in one that nobody knows about
    out, err = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    with prints_are_marked():
        with subject.about(PLAYED):
            print("arm", "is", end=" ")
            print("cold")
            print("a | b", file=sys.stderr)
            playing = threading.Thread(target=copy_context().run, args=(print, "beside"))
            unknown = threading.Thread(target=print, args=("of nobody",))
            for thread in (playing, unknown):
                thread.start()
                thread.join()
            print("the last", end="")
        print(" word", end="")
    print("afterwards")
    # Then its supervisor takes each line with its shard and epoch, where there is one
    voices = Voices(ManualClock())
    for line in [*out.getvalue().splitlines(), *err.getvalue().splitlines()]:
        voices.hear("w1", line)
    about = ("pole-1", 3, 17)
    assert [((line.experiment, line.shard, line.epoch), line.message) for line in voices.take()] == [
        (about, "arm is cold"),
        (about, "beside"),
        ((None, None, None), "of nobody"),
        ((None, None, None), "the last word"),
        ((None, None, None), "afterwards"),
        (about, "a | b"),
    ]
    assert "of nobody\n" in out.getvalue() and out.getvalue().endswith("the last word\nafterwards\n")


def test_what_heddle_logs_while_a_shard_is_played_is_no_line_of_user_code(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a worker whose log has lines of its own, of an environment in a child, and of a traceback
    err, handler = io.StringIO(), _StandardError()
    monkeypatch.setattr(sys, "stderr", err)
    handler.setFormatter(formatter())
    with prints_are_marked(), subject.about(PLAYED):
        for logger, said in (
            ("heddle.worker", "claimed shard=3\nTraceback"),
            (subject.PRINTED, "shard=pole-1/3 | cold"),
        ):
            handler.emit(logging.LogRecord(logger, logging.INFO, __file__, 1, said, (), None))
    # Then they are as the log writes them
    first, second, third = err.getvalue().splitlines()
    assert re.fullmatch(r"\d\d:\d\d:\d\d INFO    heddle.worker claimed shard=3", first) and second == "Traceback"
    assert re.fullmatch(r"\d\d:\d\d:\d\d INFO    heddle.printed shard=pole-1/3 \| cold", third)


def test_a_fork_of_a_thread_that_plays_says_its_shard_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "log").open("w") as file:
        monkeypatch.setattr(sys, "stdout", file)
        with prints_are_marked(), subject.about(PLAYED):
            if (pid := os.fork()) == 0:
                try:
                    print("in the fork")
                finally:
                    os._exit(0)
            os.waitpid(pid, 0)
    assert (tmp_path / "log").read_text() == "heddle.printed shard=pole-1/3 epoch=17 | in the fork\n"


def test_where_lines_are_json_nothing_is_put_in_front(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FORMAT_ENV, "json")
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    with prints_are_marked(), subject.about(PLAYED):
        print("cold")
    assert out.getvalue() == "cold\n"
