"""Whoever reads the output, and leaves: no error, and one gentle wish to end."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from heddle.cli.audience import GONE, has_left, lasting_output


@contextmanager
def piped() -> Iterator[int]:
    """Standard output is a pipe while inside, whose reading end this is."""
    reading, writing = os.pipe()
    before = sys.stdout
    with os.fdopen(writing, "w") as sys.stdout:
        try:
            yield reading
        finally:
            sys.stdout = before


def test_what_is_printed_reaches_who_reads() -> None:
    said: list[str] = []
    with piped() as pipe, lasting_output() as audience:
        audience.tells(said.append)
        print("first")
        sys.stdout.flush()
        audience.look()
        assert os.read(pipe, 100) == b"first\n"
        os.close(pipe)
    assert said == []


def test_a_reader_that_left_is_told_of_once_it_is_written_to_and_what_follows_is_no_error() -> None:
    said: list[str] = []
    with piped() as pipe:
        stream = sys.stdout
        with lasting_output() as audience:
            audience.tells(said.append)
            os.close(pipe)
            for _ in range(3):
                print("to nobody", flush=True)
        assert sys.stdout is stream
    assert said == [GONE]


def test_a_reader_that_left_is_seen_by_who_has_nothing_to_say() -> None:
    said: list[str] = []
    with piped() as pipe, lasting_output() as audience:
        assert not has_left(sys.stdout.fileno())
        os.close(pipe)
        audience.look()
        audience.tells(said.append)  # who asks late is told, too
        assert has_left(sys.stdout.fileno())
    assert said == [GONE]


def test_a_service_outlives_the_reader_of_its_log() -> None:
    said: list[str] = []
    with piped() as pipe, lasting_output(minds_pipes=False) as audience:
        audience.tells(said.append)
        os.close(pipe)
        print("to nobody", flush=True)
        audience.look()
    assert said == []


def test_below_nohup_nobodys_going_matters() -> None:
    said: list[str] = []
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with piped() as pipe, lasting_output() as audience:
            audience.tells(said.append)
            os.close(pipe)
            print("to nobody", flush=True)
            audience.look()
            assert has_left(sys.stdout.fileno())
    finally:
        signal.signal(signal.SIGHUP, before)
    assert said == []


def test_a_full_disk_is_an_error_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(OSError, match="No space"), lasting_output() as audience:
            print("lost", flush=True)
        assert not audience.is_gone
        monkeypatch.undo()
