"""The comparison with other libraries pairs what was played in the same round, and leaves out who fails, by name."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from benchmarks import image_env, waiting_env
from benchmarks.measure import Played
from benchmarks.peers import sides
from benchmarks.peers.comparing import GOALS, TITLES, LeftOut, SideFailed, compared
from benchmarks.peers.installing import HOME, PEERS, Peer, pinned, python_of
from benchmarks.peers.learning import Trained, learned_by_sb3, rows_of
from benchmarks.peers.sides import alive, kill, opened, running, stamps, used_s
from tests.helpers import eventually

HERE = HOME.parent / "benchmarks" / "peers"
ECHO = """
import time
class Echo:
    def __init__(self, steps): self.steps = steps
    def segment(self):
        print("noise of a library")
        time.sleep(0.01)
        return self.steps
def broken(): raise ValueError("no such thing")
def hanging(): time.sleep(60)
SIDES = {"w1": lambda: Echo(5), "w2": broken, "w3": hanging}
"""


def playing(*rates: float) -> Iterator[Played]:
    return (Played(int(rate), 1.0, 0.5) for rate in rates)


def test_ratios_are_taken_round_by_round() -> None:
    ours, theirs, left_out = playing(100, 200, 400), playing(50, 50, 100), LeftOut(say=lambda _: None)
    rows = compared("w1", {"heddle": lambda: next(ours), "rllib": lambda: next(theirs)}, 2, left_out)
    found = {row.what: row.value for row in rows}
    assert found["steps/s, heddle / rllib (goal 5)"].median == pytest.approx(4.0)  # the first of each only warms up
    assert found["CPU a step, rllib / heddle"].median == pytest.approx(4.0)
    assert found["heddle: steps/s"].rounds == 2
    assert not left_out.reasons


def test_who_fails_in_a_later_round_is_left_out_by_name_and_the_others_go_on() -> None:
    ours, said = playing(1, 2, 3, 4), list[str]()
    rounds = iter([1, 1])

    def failing() -> Played:
        if next(rounds, None) is None:
            raise SideFailed("said nothing for 60 s")
        return Played(1, 1.0, 1.0)

    left_out = LeftOut(say=said.append)
    rows = compared("w2", {"heddle": lambda: next(ours), "sb3": failing}, 3, left_out)
    assert [row.what for row in rows] == ["heddle: steps/s", "heddle: CPU a step"]
    assert rows[0].value.rounds == 3
    assert left_out.reasons == ["sb3 at w2: said nothing for 60 s"]
    assert said == ["left out: sb3 at w2, said nothing for 60 s"]


def test_a_failure_of_heddle_is_no_reason_to_leave_it_out() -> None:
    def failing() -> Played:
        raise RuntimeError("a process ended during the benchmark")

    with pytest.raises(RuntimeError, match="a process ended"):
        compared("w1", {"heddle": failing}, 1, LeftOut(say=lambda _: None))


def test_every_peer_has_an_environment_of_its_own_and_a_module() -> None:
    homes = {python_of(HOME / one.name) for one in PEERS}
    assert len(homes) == len(PEERS)
    assert all((HERE / f"{one.module}.py").exists() for one in PEERS)
    assert set(GOALS) == set(TITLES)


def test_torch_is_installed_in_the_version_that_heddle_has() -> None:
    pins = "torch==2.13.0\ntorchvision==1.0\n"
    assert pinned(("torch", "torchrl", "ray[rllib]"), pins) == ["torch==2.13.0", "torchrl", "ray[rllib]"]
    assert pinned(("torch",), "") == ["torch"]


def test_peers_play_the_environments_that_heddle_plays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))
    theirs = __import__("envs")
    for place in (0, 7):
        image, mine = theirs.Images(place), image_env.Images(place)
        assert image.observation_space == mine.observation_space
        assert image.action_space == mine.action_space
        assert np.array_equal(image.reset()[0], mine.reset()[0])
        for _ in range(image_env.EPISODE):
            told, expected = image.step(0), mine.step(0)
            assert np.array_equal(told[0], expected[0])
            assert told[1:] == expected[1:]
        waits = waiting_env.Waits(place, 0.01)
        assert theirs.Waiting(place)._waits == pytest.approx([waits._waits[n] for n in range(waiting_env.WAITS)])
    first = theirs.Images(3, first=True).reset()[0]
    assert np.array_equal(first.transpose(1, 2, 0), image_env.Images(3).reset()[0])


@pytest.fixture
def peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Peer:
    """A peer whose library is four lines."""
    home = tmp_path
    (home / "echo_side.py").write_text(ECHO)
    (home / "side.py").write_text((HERE / "side.py").read_text())
    (home / "echo").mkdir()
    monkeypatch.setattr(sides, "HERE", home)
    monkeypatch.setattr(sides, "HOME", home)
    return Peer("echo", "echo_side", "numpy", ())


def test_a_side_plays_rounds_and_ends_with_all_it_started(peer: Peer) -> None:
    with running([(peer, Path(sys.executable))], LeftOut(say=lambda _: None)) as (side,):
        assert side.workloads == ["w1", "w2", "w3"]
        assert side.version == np.__version__
        assert opened([side], "w1", LeftOut(say=lambda _: None)) == [side]
        played = side.play("w1", 0.05)
        assert played.steps >= 5
        assert played.steps % 5 == 0
        assert played.wall_s > 0.04
        side.close("w1")
        begun = stamps(side._process.pid)
        assert alive(begun)
    assert not alive(begun)


def test_what_a_library_raises_is_told_and_the_side_still_serves(peer: Peer) -> None:
    left_out = LeftOut(say=lambda _: None)
    with running([(peer, Path(sys.executable))], left_out) as (side,):
        assert opened([side], "w2", left_out) == []
        assert left_out.reasons == ["echo at w2: ValueError: no such thing"]
        assert opened([side], "w1", left_out) == [side]
        assert side.play("w1", 0.05).steps


def test_a_side_that_says_nothing_is_ended(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    left_out = LeftOut(say=lambda _: None)
    with running([(peer, Path(sys.executable))], left_out) as (side,):
        monkeypatch.setattr(sides, "START_S", 0.3)
        assert opened([side], "w3", left_out) == []
        assert opened([side], "w1", left_out) == []
        assert left_out.reasons == ["echo at w3: said nothing for 0.3 s", "echo at w1: ended with -9: no word"]


def test_a_library_that_cannot_be_imported_is_left_out_with_its_last_word(peer: Peer) -> None:
    (sides.HERE / "echo_side.py").write_text("import no_such_library")
    left_out = LeftOut(say=lambda _: None)
    with running([(peer, Path(sys.executable))], left_out) as found:
        assert found == []
    assert left_out.reasons == [
        "echo at its start: ended with 1: ModuleNotFoundError: No module named 'no_such_library'"
    ]


def test_time_of_children_counts_and_a_pid_that_came_again_is_somebody_else() -> None:
    before = {(1, 10): 100, (2, 20): 50}
    assert used_s(before, {(1, 10): 150, (2, 21): 30}) == pytest.approx((50 + 30) / sides.TICKS)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    begun = stamps(os.getpid())
    assert child.pid in {pid for pid, _ in begun}
    assert alive({(child.pid, start + 1): 0 for pid, start in begun if pid == child.pid}) == []
    kill([child.pid])
    eventually(lambda: child.pid not in alive(begun))
    child.communicate()


def test_what_runs_in_a_peers_environment_imports_nothing_of_ours() -> None:
    theirs = [HERE / f"{one.module}.py" for one in PEERS]
    theirs += [HERE / f"{name}.py" for name in ("side", "common", "envs", "nets", "ray_local")]
    imports = [
        line for path in theirs for line in path.read_text().splitlines() if line.startswith(("import ", "from "))
    ]
    assert not [line for line in imports if line.split()[1].partition(".")[0] in ("heddle", "benchmarks")]


def test_learning_beside_another_library_shows_the_return_of_both_and_ratios_round_by_round() -> None:
    pairs = [
        (Trained(300.0, 10.0, 500.0), Trained(100.0, 30.0, 490.0)),
        (Trained(100.0, 20.0, 480.0), Trained(100.0, 30.0, 500.0)),
    ]
    found = {row.what: row.value for row in rows_of(pairs)}
    assert found["steps/s, heddle / sb3 (goal 1.5)"].median == pytest.approx(2.0)
    assert (found["heddle: return at the end"].low, found["sb3: return at the end"].low) == (480.0, 490.0)


def test_a_learner_of_another_library_that_fails_is_left_out_by_its_last_line(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho a traceback >&2; echo 'ImportError: no such library' >&2; exit 1\n")
    python.chmod(0o755)
    with pytest.raises(SideFailed, match="no such library"):
        learned_by_sb3(python, tmp_path, 1)
