"""Environments in a child: played like any others, and whatever they do ends only their child, with the cause told."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from heddle.clock import SystemClock
from heddle.errors import EnvError, NotSnapshottable, SnapshotError
from heddle.layout import Segments
from heddle.producers import snapshot
from heddle.producers.envs import check_env
from heddle.producers.isolation import home
from heddle.producers.isolation.origin import kept
from heddle.producers.isolation.process import EnvProcess, end_children
from heddle.producers.isolation.shard import IsolatedEnvs
from heddle.producers.mishap import PlayError
from heddle.producers.player import Player
from heddle.spaces import Box, Discrete
from heddle.spec import ExperimentSpec
from tests.helpers import eventually, is_alive
from tests.poison_kit import POISON, SIZE, STATEFUL
from tests.unit.fake_envs import Drawn, layout_for, plan_of, spec_of

STEPS = 4
OBSERVATION, ACTION = Box((SIZE,), "float32", -1e9, 1e9), Discrete(3)


def poison_spec(**env: Any) -> ExperimentSpec:
    section = {"id": POISON, "num_envs": 2, "envs_per_shard": 2, "isolation": "process", **env}
    return spec_of(env=section, rollout={"steps": STEPS, "info_keys": ["fuel"]})


def player_of(spec: ExperimentSpec) -> Player:
    policy = Drawn()
    layout = layout_for(policy, steps=STEPS, observation=OBSERVATION, action=ACTION, info_keys=["fuel"])
    return Player(plan_of(spec.env.num_envs), spec, policy, layout)


def poisoned(how: str, *, memory: str | None = None, **env: Any) -> Player:
    kwargs = {"how": how, "only": [1], **env.pop("kwargs", {})}
    env = {"kwargs": kwargs, "step_timeout": 20.0, **env}
    return player_of(poison_spec(**env, **({"memory": memory} if memory else {})))


def child_of(player: Player) -> EnvProcess:
    assert isinstance(player._envs, IsolatedEnvs)
    return player._envs.process


def played(player: Player, times: int = 4) -> list[Segments]:
    """What it plays, copied; ends with the error where there is one."""
    return [player.play(1).select(np.arange(len(player._envs))) for _ in range(times)]


def fails(player: Player) -> PlayError:
    """The failure that it comes to; afterwards neither child nor home are left."""
    child = child_of(player)
    with pytest.raises(PlayError) as failed:
        played(player)
    player.close()
    assert not is_alive(child.pid)
    assert not child._home.path.exists()
    return failed.value


@pytest.mark.parametrize(
    ("how", "cause", "what"),
    [
        ("segfault", "signal", "its process was ended by signal SIGSEGV"),
        ("abort", "signal", "its process was ended by signal SIGABRT"),
        ("os_exit", "exit", "its process ended with exit code 9"),
        ("sys_exit", "exit", "sys.exit(3)"),
        ("raise", "exception", "RuntimeError: the arm fell off at "),
        ("recurse", "exception", "RecursionError: maximum recursion depth exceeded"),
        ("interrupt", "exception", "KeyboardInterrupt"),
        ("memory_error", "memory", "no room for the map"),
        ("hang_up", "exit", "it closed its line to the worker"),
        ("shape", "answer", "the observation has shape (3,), its space (2,)"),
        ("short", "answer", "step returned a tuple of "),
        ("info", "answer", "info['fuel'] is much, expected one number"),
        ("nan", "answer", "nan], which is not a finite number"),
        ("reward", "answer", "gave reward = nan, which is not a finite number"),
        ("leak_files", "exception", "Too many open files"),
        ("reset_short", "answer", "reset returned a ndarray, expected (observation, info)"),
    ],
)
def test_what_ends_or_fails_in_a_child_is_told_with_its_cause_and_its_place(how: str, cause: str, what: str) -> None:
    failure = fails(poisoned(how)).failure
    assert failure.cause == cause
    assert what in failure.what
    assert (failure.env, failure.episode, failure.isolation) == (1, 2, "process")
    expected = ("reset", 0) if how == "reset_short" else ("step", 3)
    assert (failure.doing, failure.step) == expected
    assert failure.num_actions == len(failure.last_actions) == expected[1]
    assert failure.seed is not None
    if how == "segfault":
        assert re.search(r"ended by signal SIGSEGV, at \S*poison_kit\.py:\d+$", failure.what), (
            "the user's line, not ours"
        )
        assert "about to read address 0" in failure.output
        assert any("do_segfault" in line for line in failure.output), "where it was is printed by faulthandler"


@pytest.mark.parametrize(
    ("how", "doing", "limits"),
    [
        ("hang", "step", {"step_timeout": 0.6}),
        ("spin_in_c", "step", {"step_timeout": 0.6}),
        ("deaf", "step", {"step_timeout": 0.6}),
        ("stop", "step", {"step_timeout": 0.6}),
        ("flood_forever", "step", {"step_timeout": 0.6}),
        ("fork_bomb", "step", {"step_timeout": 0.6}),
        ("reset_hang", "reset", {"reset_timeout": 0.6}),
    ],
)
def test_a_call_that_lasts_too_long_is_ended_and_nothing_else_may_take_as_long(
    how: str, doing: str, limits: dict[str, Any]
) -> None:
    clock = SystemClock()
    player = poisoned(how, **limits)
    began = clock.monotonic()
    failure = fails(player).failure
    assert (failure.cause, failure.doing, failure.env) == ("timeout", doing, 1)
    assert re.fullmatch(rf"{doing} lasted longer than 0\.6 s(, at \S+poison_kit\.py:\d+)?", failure.what)
    assert clock.monotonic() - began < 15
    if how == "hang":
        assert "poison_kit.py" in failure.what
        assert any("do_hang" in line for line in failure.output), "where it hangs is printed by faulthandler"


@pytest.mark.parametrize("how", ["make_hang", "make_segfault", "make_raise"])
def test_what_cannot_be_made_is_an_error_of_the_environment_and_leaves_nothing(how: str) -> None:
    reasons = {
        "make_hang": "failed in make: make lasted longer than 0.6 s",
        "make_segfault": "failed in make: its process was ended by signal SIGSEGV",
        "make_raise": "the factory raised RuntimeError: no such level",
    }
    with pytest.raises(EnvError, match=reasons[how]):
        poisoned(how, reset_timeout=0.6 if how == "make_hang" else 20.0)


def test_a_close_that_hangs_is_cut_short_and_is_no_failure() -> None:
    player = poisoned("close_hang", step_timeout=0.6)
    played(player)
    child = child_of(player)
    player.close()
    assert not is_alive(child.pid)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("leak_memory", "above env.memory = 400 MiB"),
        ("allocate_all", "above env.memory = 400 MiB"),
        ("share_memory", "MiB, above env.memory = 400 MiB"),
    ],
)
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="memory is limited on Linux only")
def test_memory_beyond_the_limit_ends_the_child_and_is_told(how: str, said: str) -> None:
    failure = fails(poisoned(how, memory="400MiB")).failure
    assert (failure.cause, failure.env, failure.doing) == ("memory", 1, "step")
    assert said in failure.what


def test_a_flood_is_read_and_only_its_end_is_kept() -> None:
    failure = fails(poisoned("flood")).failure
    assert failure.what.startswith("RuntimeError: drowned")
    assert failure.output[-1] == "the last line"
    assert sum(map(len, failure.output)) < 16_384


@pytest.mark.parametrize("how", ["fork", "fork_and_return", "thread"])
def test_what_an_environment_leaves_running_ends_with_its_child(how: str, tmp_path: Path) -> None:
    player = poisoned(how, kwargs={"folder": str(tmp_path)})
    child = child_of(player)
    assert len(played(player, 5)) == 5, "it plays on"
    left = [int(path.name) for path in tmp_path.iterdir()]
    assert len(left) == (2 if how == "fork" else 0)
    assert all(map(is_alive, left))
    player.close()
    eventually(lambda: not any(map(is_alive, [child.pid, *left])), what="all gone")


def test_a_child_has_a_folder_of_its_own_that_goes_with_it_and_no_secrets_or_descriptors_of_its_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEDDLE_REDIS_URL", "redis://:canary@host:6379")
    monkeypatch.setenv("HEDDLE_REDIS_PASSWORD_FILE", "/run/canary")
    monkeypatch.setenv("REDISCLI_AUTH", "canary")
    inherited, other = os.pipe()
    os.set_inheritable(inherited, True)
    player = poisoned("litter", kwargs={"folder": str(tmp_path)})
    played(player)
    work = Path((tmp_path / "cwd").read_text())
    assert sorted(path.name for path in work.iterdir() if path.name in ("left.txt", "closed")) == ["closed", "left.txt"]
    assert "canary" not in (tmp_path / "environ").read_text()
    assert str(inherited) not in (tmp_path / "descriptors").read_text().split()
    player.close()
    assert not work.parent.exists()
    for fd in (inherited, other):
        os.close(fd)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("get_segfault", "its process was ended by signal SIGSEGV"),
        ("get_hang", "taking a snapshot lasted longer than 1 s"),
        ("set_segfault", "its process was ended by signal SIGSEGV"),
        ("set_hang", "restoring the snapshot lasted longer than 1 s"),
    ],
)
def test_what_a_snapshot_fails_of_in_a_child_is_told_with_the_name_of_the_environment(how: str, said: str) -> None:
    player = poisoned(how, id=STATEFUL, reset_timeout=1.0)
    with pytest.raises((NotSnapshottable, SnapshotError)) as raised:
        snapshot.restore_all(player._envs, snapshot.take_all(player._envs))
    player.close()
    reason = raised.value.reason  # type: ignore[attr-defined]
    begins = "" if how.startswith("get") else "cannot be restored by "
    assert reason.startswith(f"{begins}{STATEFUL} (environment 1): {said}"), reason


def test_a_child_starts_with_what_its_worker_began_with_whatever_became_of_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played(player := poisoned(""))  # what is loaded late is loaded now
    player.close()
    (tmp_path / "gone").mkdir()
    monkeypatch.setenv("KEPT", "from before")
    with kept():
        # Given user code that took everything away by which a child finds its way
        monkeypatch.chdir(tmp_path / "gone")
        (tmp_path / "gone").rmdir()
        monkeypatch.setattr("sys.path", [])
        monkeypatch.setattr("sys.executable", "/nowhere/python")
        monkeypatch.setenv("PYTHONPATH", "/nowhere")
        monkeypatch.setenv("PYTHONHOME", "/nowhere")
        monkeypatch.delenv("KEPT")
        # When another experiment's child is started
        player = poisoned("litter", kwargs={"folder": str(tmp_path)})
        played(player)
        player.close()
    # Then it plays, with the variables of before
    told = (tmp_path / "environ").read_text()
    assert "KEPT" in told and "nowhere" not in told


def test_a_child_ends_with_its_worker_however_that_ends_and_its_home_is_swept_by_the_next(tmp_path: Path) -> None:
    program = (
        "from tests.loops.test_isolation import *;"
        f"p = poisoned('fork', kwargs={{'folder': {str(tmp_path)!r}}}); played(p); c = child_of(p);"
        "print(c.pid, c._home.path, flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    pid, path = done.stdout.split()
    left = [int(entry.name) for entry in tmp_path.iterdir()]
    eventually(lambda: not is_alive(int(pid)), what="the child is gone")
    assert Path(path).exists()
    assert home.sweep(Path(path).parent) >= 1
    assert not Path(path).exists()
    eventually(lambda: not any(map(is_alive, left)), what="what it left is gone")


def test_a_process_that_ends_at_once_takes_its_children_and_their_homes_along() -> None:
    player = poisoned("hang", kwargs={"only": []})
    child = child_of(player)
    played(player, 1)
    end_children()
    eventually(lambda: not is_alive(child.pid))
    assert not child._home.path.exists()
    player.close()


def test_a_child_that_dies_between_two_steps_is_told_at_the_next() -> None:
    player = poisoned("hang", kwargs={"only": []})
    played(player, 1)
    os.kill(child_of(player).pid, signal.SIGKILL)
    failure = fails(player).failure
    assert (failure.cause, failure.what) == ("signal", "its process was ended by signal SIGKILL")


def test_the_same_seeds_give_the_same_experience_in_a_child_as_here() -> None:
    for wrappers in ([], [{"id": "tests.loops.test_isolation:HalfReward"}]):
        env = {"id": "CartPole-v1", "num_envs": 3, "envs_per_shard": 3, "wrappers": wrappers}
        runs = []
        for isolation in ("inline", "process"):
            spec = spec_of(env={**env, "isolation": isolation}, rollout={"steps": 16})
            observation, action = check_env(spec)
            policy = Drawn(2)
            layout = layout_for(policy, steps=16, observation=observation, action=action)
            player = Player(plan_of(3), spec, policy, layout)
            runs.append(played(player, 10))
            player.close()
        for here, there in zip(*runs, strict=True):
            assert here.arrays.keys() == there.arrays.keys()
            for name, array in here.arrays.items():
                np.testing.assert_array_equal(array, there.arrays[name], err_msg=name)
        assert sum(np.count_nonzero(segments.arrays["episode_length"]) for segments in runs[0]) > 10


class HalfReward(gymnasium.RewardWrapper[Any, Any]):
    """Rewards that are not the innermost environment's, so that its returns are counted beneath."""

    def reward(self, reward: Any) -> float:
        return float(reward) / 2
