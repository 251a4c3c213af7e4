"""Lines that are not over yet: told once nobody adds to them, and no print waits for that."""

import _thread
import threading
from functools import partial
from queue import SimpleQueue
from typing import Any

import pytest

from heddle.cli import begun
from heddle.cli.begun import BegunLines
from heddle.subject import Subject
from tests.helpers import eventually

MOST = 2_000


class Told:
    """Takes lines; `refused` cannot be told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, line: str, _: Subject) -> None:
        if line == "refused":
            raise ZeroDivisionError
        self.lines.append(line)


def test_a_line_that_cannot_be_told_keeps_no_other_from_it_now_or_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(begun, "IDLE_S", 0.02)
    told = Told()
    lines = BegunLines(told, MOST)
    lines.add("one", "refused")
    lines.add("two", "told")
    eventually(lambda: told.lines == ["told"])
    lines.add("two", "later")
    eventually(lambda: told.lines == ["told", "later"])
    lines.add("one", "refused")
    lines.add("two", "last")
    lines.close()
    assert told.lines == ["told", "later", "last"]


def test_a_print_in_the_middle_of_the_start_of_a_thread_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(begun, "IDLE_S", 0.02)
    told = Told()
    lines = BegunLines(told, MOST)
    printed = threading.Event()

    def destructor() -> None:
        lines.add("one", "closed")
        printed.set()

    with threading._active_limbo_lock:  # type: ignore[attr-defined]
        _thread.start_new_thread(destructor, ())
        assert printed.wait(20)
    eventually(lambda: told.lines == ["closed"])
    lines.close()


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), MemoryError()])
def test_where_no_thread_can_be_started_the_print_goes_on_and_a_later_one_has_it_told(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: Any) -> int:
        raise error

    monkeypatch.setattr(begun, "IDLE_S", 0.02)
    told = Told()
    lines = BegunLines(told, MOST)
    with monkeypatch.context() as patched:
        patched.setattr(_thread, "start_new_thread", refuses)
        lines.add("one", "first")
        lines.add("two", "second")
    assert told.lines == []
    lines.add("three", "third")
    eventually(lambda: sorted(told.lines) == ["first", "second", "third"])
    lines.close()


def test_of_many_prints_one_wakes_who_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given prints of two pieces each, as `print` makes them, over more looks than one
    woken = list[bool]()

    class Counting(SimpleQueue[bool]):
        def put(self, item: bool, block: bool = True, timeout: float | None = None) -> None:
            woken.append(item)
            super().put(item)

    monkeypatch.setattr(begun, "SimpleQueue", Counting)
    monkeypatch.setattr(begun, "IDLE_S", 0.02)
    told = Told()
    lines = BegunLines(told, MOST)
    lines.add("other", "begun")

    def prints() -> bool:
        lines.add("one", "x")
        lines.add("one", "\n")
        return "begun" in told.lines

    eventually(prints)
    prints()
    assert woken == [False]
    lines.close()


def test_who_looked_long_enough_sleeps_and_is_woken_by_the_next_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(begun, "IDLE_S", 0.02)
    monkeypatch.setattr(begun, "LINGER_S", 0.0)
    told = Told()
    lines = BegunLines(told, MOST)

    def sleeps_after(count: int) -> bool:
        return len(told.lines) == count and not lines._is_watched

    for number in (1, 2):
        lines.add("one", "a line")
        eventually(partial(sleeps_after, number))
    lines.close()
