"""What `validate` and `plan` find out about an environment's snapshots."""

import re
from pathlib import Path
from typing import Any

import pytest

from heddle.cli.main import run
from heddle.launch.check import load_and_check
from heddle.producers.envs import make_env
from heddle.producers.envs_spaces import describe, describe_action
from heddle.producers.snapshot_check import SnapshotTrial, try_snapshot
from tests.unit.fake_envs import spec_of

ZOO = "tests.snapshot_zoo"
SPEC = """
[experiment]
name = "zoo"
[env]
id = "{id}"
[budget]
env_steps = 1000
"""


@pytest.mark.parametrize("name", ["CartPole-v1", f"{ZOO}:Dice", f"{ZOO}:layered", f"{ZOO}:Robot", "Pendulum-v1"])
def test_what_comes_back_as_it_was_has_a_size_and_no_reason(name: str) -> None:
    trial = _try(name)
    assert trial.reason == ""
    assert 100 < trial.size < 10_000


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Handle", "attribute 'handle' of Handle (lock): cannot pickle"),
        ("Easy", "attribute 'handle' of Easy (lock): cannot pickle"),
        ("Elsewhere", "when it was brought back the environment went another way, at step 1"),
        ("Touchy", "it cannot be restored: OSError: no arm is connected"),
        ("Single", "a second one, to bring it back in, making it raised OSError: the port is taken"),
    ],
)
def test_what_does_not_come_back_has_a_reason(name: str, reason: str) -> None:
    trial = _try(f"{ZOO}:{name}")
    assert trial.size == 0
    assert re.match(re.escape(reason).replace("making\\ it", ".*"), trial.reason), trial.reason


@pytest.mark.parametrize(("name", "reason"), [("layered", ""), ("Handle", "attribute 'handle' of Handle")])
def test_environments_in_a_child_are_tried_in_a_child(name: str, reason: str) -> None:
    trial = _try(f"{ZOO}:{name}", isolation="process")
    assert reason in trial.reason
    assert bool(trial.size) == (not reason)


def _try(name: str, **env: Any) -> SnapshotTrial:
    spec = spec_of(env={"id": name, **env})
    made = make_env(spec.env)
    observation, action = describe(made.observation_space), describe_action(made.action_space)
    made.close()
    return try_snapshot(spec, observation, action)


def test_validate_and_plan_say_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = tmp_path / "good.toml", tmp_path / "bad.toml"
    good.write_text(SPEC.format(id="CartPole-v1"))
    bad.write_text(SPEC.format(id=f"{ZOO}:Handle"))
    for command in ("validate", "plan"):
        assert _said(command, good, capsys).count("KiB an environment; whoever takes over") == 1
        assert "none: attribute 'handle' of Handle" in _said(command, bad, capsys)
        assert "none (faults.snapshot_every = 0)" in _said(command, good, capsys, "--set", "faults.snapshot_every=0")


def _said(command: str, file: Path, capsys: pytest.CaptureFixture[str], *more: str) -> str:
    assert run([command, str(file), *more]) == 0
    return capsys.readouterr().out


def test_snapshots_count_in_the_memory_that_the_broker_needs(tmp_path: Path) -> None:
    file = tmp_path / "exp.toml"
    file.write_text(SPEC.format(id="CartPole-v1"))
    with_them = load_and_check(file, with_snapshot=True)[1].needed
    without = load_and_check(file, ["faults.snapshot_every=0"], with_snapshot=True)[1].needed
    assert with_them.broker_bytes - without.broker_bytes > 8 * 2 * with_them.snapshot_bytes
