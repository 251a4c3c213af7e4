"""The line on a terminal that says how far long work is."""

import io
import threading
from pathlib import Path
from typing import Any

import pytest

from heddle.cli import progress as module
from heddle.cli.evaluate import play
from heddle.cli.progress import CLEAR, progress
from heddle.producers.evaluate import evaluate
from tests.helpers import eventually
from tests.unit.test_film import checkpoint


class Terminal(io.StringIO):
    """Standard error that somebody looks at."""

    def isatty(self) -> bool:
        return True


def on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """For a test's body: before it pytest puts its own in place."""
    shown = Terminal()
    monkeypatch.setattr("sys.stderr", shown)
    monkeypatch.setattr(module, "FIRST_S", 0.001)
    return shown


def test_a_terminal_is_told_how_far_it_is_and_nothing_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_a_terminal(monkeypatch)
    with progress("playing") as shown:
        shown.tell("3 of 9 episodes")
        eventually(lambda: "playing 3 of 9 episodes, " in terminal.getvalue(), timeout_s=30)
    assert terminal.getvalue().endswith(CLEAR)
    assert not any(thread.name == "progress" for thread in threading.enumerate())


def test_a_line_that_is_printed_stands_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = on_a_terminal(monkeypatch)
    with progress("removing") as shown:
        eventually(lambda: "removing" in terminal.getvalue(), timeout_s=30)
        shown.say("removed a")
    assert capsys.readouterr().out == "removed a\n"


def test_a_pipe_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = io.StringIO()
    monkeypatch.setattr("sys.stderr", pipe)
    monkeypatch.setattr(module, "FIRST_S", 0.0)
    with progress("playing") as shown:
        shown.tell("3 of 9")
        assert not any(thread.name == "progress" for thread in threading.enumerate())
    assert pipe.getvalue() == ""


def test_an_evaluation_tells_how_many_episodes_have_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []

    def listening(*args: Any, tell: Any, **how: Any) -> Any:
        def both(done: int) -> None:
            told.append(done)
            tell(done)

        return evaluate(*args, **how, tell=both)

    monkeypatch.setattr("heddle.producers.evaluate.evaluate", listening)
    score = play(checkpoint(tmp_path), episodes=800)
    assert told == sorted(told) and told[-1] == score.episodes == 800 and len(set(told)) > 1
