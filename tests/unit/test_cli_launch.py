"""Roles as supervised children, which trainers a host starts, and when a session is over."""

import os
import re
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from heddle.clock import ManualClock, SystemClock
from heddle.launch import children
from heddle.launch.children import Ending, Role, end_all
from heddle.launch.host import MemoryWatch, memory_kills
from heddle.launch.hurry import HURRIED_EXIT_S
from heddle.launch.local import Local, Setup
from heddle.launch.process import HURRY_S
from heddle.launch.session import LAST_WORD_S, MOST_FAILURES, STOP_S, Session
from heddle.launch.trainers import unseated
from heddle.launch.vigil import Patience
from heddle.stop import StopFlag
from tests.helpers import eventually

CHILD = """
import signal, sys, time
what = sys.argv[1]
if what == "end":
    print("last words"); sys.exit(int(sys.argv[2]))
if what == "crash":
    import ctypes, faulthandler
    faulthandler.enable(file=2, all_threads=False)
    print("last words", flush=True)
    ctypes.string_at(0)
if what in ("deaf", "stone deaf"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if what == "stone deaf":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
print("up", flush=True)
time.sleep(60)
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Roles run this script instead of `python -m heddle`."""
    (tmp_path / "child.py").write_text(CHILD)
    original = Role.__init__

    def patched(self: Role, *args: object, **kwargs: object) -> None:
        original(self, *args, **kwargs)  # type: ignore[arg-type]
        self._argv = [sys.executable, str(tmp_path / "child.py"), *self._argv[3:]]

    monkeypatch.setattr(Role, "__init__", patched)
    yield


def ended(role: Role) -> Ending:
    return eventually(role.step, timeout_s=10, what="the child ends")  # type: ignore[return-value]


def test_a_role_that_ends_unasked_tells_why_and_starts_again(script: None) -> None:
    role = Role("thing", ["end", "7"], url="redis://x")
    first = ended(role)
    assert (first.role, first.code) == ("thing", 7)
    assert "exit code 7" in first.why
    assert "last words" in first.why
    assert ended(role).code == 7
    assert role.failures == role.restarts == 2
    role.terminate(1.0)
    eventually(lambda: role.step() or role.finished)


def test_who_stops_a_run_wakes_what_was_frozen_so_that_it_can_give_back_what_it_holds(
    script: None, tmp_path: Path
) -> None:
    stop = StopFlag()
    local = Local(Setup(url="redis://x", folder=tmp_path), stop=stop)
    role = local.add(Role("thing", ["end", "7"], url="redis://x", done=(7,)))
    assert role.child is not None
    os.kill(role.child.pid, signal.SIGSTOP)
    session = Session(local, role, Watched(), lambda: None, stop, lambda _: None)
    stop.request("SIGINT")
    session.step()

    def ended_by_itself() -> bool:
        session.step()
        return role.finished

    eventually(ended_by_itself)
    assert role.code == 7


@pytest.mark.skipif(not hasattr(os, "waitid"), reason="nobody can tell there")
def test_a_role_that_stays_stopped_is_killed_and_started_again_with_the_reason(script: None) -> None:
    role = Role("thing", ["stay"], url="redis://x", patience=Patience(stopped_s=0.3))
    role.step()
    assert role.child is not None
    os.kill(role.child.pid, signal.SIGSTOP)
    ending = ended(role)
    assert "no sign of life" in ending.why and "SIGSTOP" in ending.why
    eventually(lambda: role.step() or role.child is not None)
    role.terminate(1.0)
    eventually(lambda: role.step() or role.finished)


@pytest.mark.parametrize("by_the_system", [True, False])
def test_a_role_that_the_system_killed_for_want_of_memory_says_so(
    script: None, monkeypatch: pytest.MonkeyPatch, by_the_system: bool
) -> None:
    kills = [3]
    monkeypatch.setattr(children, "MemoryWatch", partial(MemoryWatch, count=lambda: kills[0]))
    role = Role("thing", ["stay"], url="redis://x")
    role.step()
    assert role.child is not None
    kills[0] += by_the_system
    os.kill(role.child.pid, signal.SIGKILL)
    ending = ended(role)
    assert ending.of_memory == by_the_system
    assert ("signal SIGKILL, by the system for want of memory" in ending.why) == by_the_system
    role.terminate(0.0)
    eventually(lambda: role.step() or role.finished)


def test_what_the_system_killed_long_ago_says_nothing_about_now() -> None:
    clock, kills = ManualClock(), [3]
    watch = MemoryWatch(clock, lambda: kills[0])
    kills[0] = 4
    assert watch.has_killed()
    for _ in range(2):
        clock.advance(1.0)
        watch.look()
    assert not watch.has_killed()
    assert memory_kills() >= 0


def test_a_role_that_is_done_is_not_started_again(script: None) -> None:
    role = Role("thing", ["end", "8"], url="redis://x", done=(8,))
    eventually(lambda: role.step() or role.finished, timeout_s=10)
    assert role.code == 8
    assert role.child is None


def test_a_killed_role_is_named_by_its_signal(script: None) -> None:
    role = Role("thing", ["stay"], url="redis://x")
    role.step()
    assert role.child is not None
    os.kill(role.child.pid, signal.SIGKILL)
    assert "signal SIGKILL" in ended(role).why
    role.terminate(0.0)
    role.step()
    assert role.finished


def test_of_a_role_that_crashes_in_native_code_the_users_line_is_told_and_none_of_ours(script: None) -> None:
    role = Role("trainer", ["crash"], url="redis://x")
    why = ended(role).why
    assert re.search(
        r"^trainer ended with signal SIGSEGV at \S*child\.py:\d+: Fatal Python error: [^|]* \|   File ", why
    )
    assert "last words" not in why
    assert role.tail(1)
    role.terminate(0.0)


def test_ending_all_kills_the_deaf_after_their_grace(script: None) -> None:
    deaf, good = Role("deaf", ["deaf"], url="redis://x"), Role("good", ["stay"], url="redis://x")
    for role in (deaf, good):
        role.step()
        eventually(lambda role=role: role.tail())  # type: ignore[misc]
    end_all([deaf, good], grace_s=0.3, clock=SystemClock(), hurried=lambda: False)
    assert deaf.code == -signal.SIGKILL
    assert good.code == -signal.SIGTERM


def test_told_twice_the_deaf_are_killed_whatever_their_grace_and_within_the_second(script: None) -> None:
    deaf = Role("deaf", ["stone deaf"], url="redis://x")
    deaf.step()
    eventually(lambda: deaf.tail())
    end_all([deaf], grace_s=600.0, clock=SystemClock(), hurried=lambda: True)
    assert deaf.code == -signal.SIGKILL
    assert HURRIED_EXIT_S < HURRY_S < 0.8, "some of the second is left for what ends after it"


def test_the_url_travels_in_the_environment_only(script: None) -> None:
    role = Role("thing", ["stay"], url="redis://:secret@x")
    role.step()
    assert role.child is not None
    if Path("/proc").is_dir():
        eventually(lambda: role.tail())
        assert b"secret" not in Path(f"/proc/{role.child.pid}/cmdline").read_bytes()
        assert b"secret" in Path(f"/proc/{role.child.pid}/environ").read_bytes()
    role.hurry()
    eventually(lambda: role.step() or role.finished)


@pytest.mark.parametrize(
    ("active", "seated", "running", "most", "expected"),
    [
        (["a", "b"], [], [], None, ["a", "b"]),
        (["a", "b"], ["a"], [], None, ["b"]),
        (["a", "b"], [], ["a"], None, ["b"]),
        (["a", "b", "c"], [], ["a"], 2, ["b"]),
        (["a"], [], ["x", "y"], 2, []),
        ([], ["a"], ["a"], None, []),
    ],
)
def test_a_host_starts_trainers_where_there_is_none(
    active: list[str], seated: list[str], running: list[str], most: int | None, expected: list[str]
) -> None:
    assert unseated(active, seated, running, most) == expected


@dataclass
class Watched:
    outcome: str = ""
    ended: bool = False
    looks: int = 0

    def look(self) -> None:
        self.looks += 1


@dataclass
class Stage:
    """A session over services that do not exist."""

    clock: ManualClock = field(default_factory=ManualClock)
    watched: Watched = field(default_factory=Watched)
    stop: StopFlag = field(default_factory=StopFlag)
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def session(self, tmp_path: Path) -> Session:
        local = Local(Setup(url="redis://x", folder=tmp_path), stop=self.stop, clock=self.clock)
        role = Role("trainer", ["trainer"], url="redis://x", clock=self.clock)
        return Session(
            local, role, self.watched, lambda: self.asked.append("stop"), self.stop, self.said.append, self.clock
        )


def test_a_session_is_over_when_the_experiment_is(tmp_path: Path) -> None:
    stage = Stage()
    session = stage.session(tmp_path)
    assert not session.over()
    stage.watched.ended = True
    assert session.over()


def test_an_outcome_is_enough_when_no_coordinator_writes_it_down(tmp_path: Path) -> None:
    stage = Stage()
    session = stage.session(tmp_path)
    stage.watched.outcome = "completed"
    assert not session.over()
    stage.clock.advance(LAST_WORD_S + 0.1)
    assert session.over()


def test_a_first_request_stops_the_experiment_and_a_second_one_everything(tmp_path: Path) -> None:
    stage = Stage()
    session = stage.session(tmp_path)
    stage.stop.request("SIGINT")
    session.step()
    session.step()
    eventually(lambda: stage.asked == ["stop"])
    assert len(stage.said) == 1
    assert not session.over()
    stage.stop.request("SIGINT")
    assert session.over()


def test_an_experiment_that_does_not_stop_is_left_after_a_while(tmp_path: Path) -> None:
    stage = Stage()
    session = stage.session(tmp_path)
    stage.stop.request("SIGTERM")
    session.step()
    stage.clock.advance(STOP_S + 1)
    assert session.over()


def test_a_trainer_that_ended_with_the_experiment_is_no_failure(tmp_path: Path) -> None:
    stage = Stage()
    session = stage.session(tmp_path)
    stage.watched.outcome = "completed"
    session.local.endings.append(Ending("trainer", 0, "trainer ended with exit code 0"))
    session.step()
    assert session.restarts == []
    assert stage.watched.looks == 1
    assert not session.failure


@pytest.mark.parametrize("code", [2, 3, 6])
def test_a_trainer_that_cannot_ever_start_ends_the_run_with_its_reason(code: int, tmp_path: Path) -> None:
    session = Stage().session(tmp_path)
    session.local.endings.append(Ending("trainer", code, "trainer ended: torch is missing"))
    session.step()
    assert session.over()
    assert "torch is missing" in session.failure


def test_a_trainer_that_keeps_dying_ends_the_run(tmp_path: Path) -> None:
    stage = Stage()
    session = stage.session(tmp_path)
    session.local.endings.append(Ending("trainer", 1, "trainer died"))
    session.step()
    assert not session.over()
    assert [ending.why for ending in session.restarts] == ["trainer died"]
    session.trainer.failures = MOST_FAILURES
    session.local.endings.append(Ending("trainer", 1, "trainer died"))
    session.step()
    assert session.failure == "trainer died"


def test_a_trainer_that_crashes_in_the_same_way_however_late_ends_the_run(tmp_path: Path) -> None:
    stage = Stage()
    session = stage.session(tmp_path)
    asked: list[Ending] = []

    def given_up(ending: Ending) -> bool:
        asked.append(ending)
        return len(asked) == 2

    session.given_up = given_up
    crash = Ending("trainer", -11, "trainer ended with signal SIGSEGV")
    for restarts in (1, 1):  # the second one is not started again: the experiment has failed
        session.local.endings.append(crash)
        session.step()
        assert len(session.restarts) == restarts
    assert asked == [crash, crash]
    session.trainer.step()
    assert session.trainer.finished
