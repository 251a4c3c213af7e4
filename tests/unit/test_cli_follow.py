"""What following writes where there is no terminal: how often, and what never waits for its turn."""

from dataclasses import replace

import pytest
from rich.console import Console

from heddle.cli.facts import FactsReader
from heddle.cli.follow import PLAIN_MOST_S, PLAIN_S, Screen
from heddle.cli.live import Facts
from heddle.clock import ManualClock


class Reader(FactsReader):
    """Facts that a test sets."""

    def __init__(self, facts: Facts) -> None:
        self.shown_now = facts

    def facts(self) -> Facts:
        return self.shown_now


def lines_of(seconds: float, reader: Reader, clock: ManualClock) -> None:
    screen = Screen(reader, title="t", console=Console(force_terminal=False), clock=clock)
    with screen.open():
        for _ in range(round(seconds / 0.5)):
            screen.update()
            clock.advance(0.5)


def test_a_line_a_second_at_first_and_fewer_with_time(capsys: pytest.CaptureFixture[str]) -> None:
    reader = Reader(Facts("x", "running"))
    lines_of(60.0, reader, ManualClock())
    first_minute = len(capsys.readouterr().out.splitlines())
    assert 60 / PLAIN_S <= first_minute + 1 <= 60 / PLAIN_S + 2
    lines_of(10 * 3600.0, reader, ManualClock())
    assert len(capsys.readouterr().out.splitlines()) < 10 * 3600 / PLAIN_MOST_S + 350


def test_a_new_state_and_what_happened_are_written_within_a_second(capsys: pytest.CaptureFixture[str]) -> None:
    clock, reader = ManualClock(), Reader(Facts("x", "running"))
    screen = Screen(reader, title="t", console=Console(force_terminal=False), clock=clock)
    with screen.open():
        for _ in range(3600):
            screen.update()
            clock.advance(1.0)
        capsys.readouterr()
        screen.update()
        clock.advance(1.0)
        reader.shown_now = replace(reader.shown_now, state="stalled", events=("0:59 worker w1 died",), events_told=1)
        screen.update()
        out = capsys.readouterr().out
    assert "  0:59 worker w1 died" in out.splitlines() and "x stalled" in out


def test_the_last_line_is_always_written(capsys: pytest.CaptureFixture[str]) -> None:
    clock, reader = ManualClock(), Reader(Facts("x", "running"))
    screen = Screen(reader, title="t", console=Console(force_terminal=False), clock=clock)
    with screen.open():
        screen.update()
        clock.advance(0.1)
        reader.shown_now = replace(reader.shown_now, steps=777)
        screen.update()
    assert "steps 777" in capsys.readouterr().out.splitlines()[-1]
