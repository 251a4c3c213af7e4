"""Every file in examples/ does what it says."""

import json
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from heddle.checkpoint import load
from heddle.policies import make_policy
from heddle.spaces import from_json
from heddle.spec import spec_from_json
from tests.e2e.shell import HEDDLE, ROOT, environment, heddle, heddle_json, processes_of, started
from tests.helpers import eventually

EXAMPLES = ROOT / "examples"
TESTED = {
    "breakout.toml",  # tests/unit/test_learning_envs.py: this, both hoppers and pong
    "cartpole.toml",  # tests/e2e/test_run.py
    "cartpole_bc.toml",  # tests/e2e/test_offline.py
    "cartpole_dqn.toml",
    "cartpole_vtrace.toml",
    "catch.toml",
    "catch_env.py",
    "catch_jax.py",
    "catch_policy.py",
    "hopper.toml",
    "hopper_sac.toml",
    "longer.py",
    "longer.toml",
    "own_learner.py",
    "own_learner.toml",
    "own_trainer.py",
    "pendulum.toml",
    "pursuit.toml",
    "pendulum_sac.toml",
    "pong.toml",
    "race.toml",
    "race_env.py",
    "read_experience.py",
    "recall.toml",
    "recall_env.py",
    "signals.toml",
    "signals_env.py",
    "slurm.sbatch",
    "submit_and_follow.py",
    "waiting.toml",
    "waiting_env.py",
}


def copied(to: Path) -> Path:
    """A copy of examples/ to work in."""
    for path in EXAMPLES.iterdir():
        if path.is_file():
            shutil.copy(path, to)
    return to


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return copied(tmp_path)


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in which `heddle up` works, found from there; one for all tests that want one."""
    folder = copied(tmp_path_factory.mktemp("up"))
    with started("up", "--workers", "2", cwd=folder) as services:
        services.says("heddle enqueue")
        yield folder


def python(script: str, *arguments: str, cwd: Path, timeout_s: float = 120) -> str:
    """What a script prints."""
    done = subprocess.run(
        [sys.executable, script, *arguments],
        cwd=cwd,
        env=environment(),
        text=True,
        capture_output=True,
        timeout=timeout_s,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_no_example_is_without_a_test() -> None:
    assert {path.name for path in EXAMPLES.iterdir() if path.is_file()} == TESTED


def test_an_environment_of_ones_own_is_learned(folder: Path) -> None:
    done = heddle("run", "catch.toml", "-o", "json", cwd=folder)
    assert '"state": "completed"' in done.stdout
    path = next(folder.glob("runs/*/checkpoints/best.safetensors"))
    assert heddle_json("eval", str(path), "--episodes", "50", cwd=folder)["evaluations"][0]["return_mean"] > 0.6


def test_several_agents_are_trained_by_one_policy(folder: Path) -> None:
    smaller = ("--set", "env.num_envs=2", "--set", "budget.env_steps=4096", "--set", "trainer.passes=1")
    done = heddle("run", "pursuit.toml", *smaller, "-n", "1", "-o", "json", cwd=folder)
    told = json.loads(done.stdout)
    assert told["state"] == "completed" and told["adds_up"] and told["env_steps"] >= 4096
    assert math.isfinite(told["return"])  # of single agents, whose episodes have ended by now


def test_two_agents_with_a_policy_each_come_to_understand_each_other(folder: Path) -> None:
    done = heddle("run", "signals.toml", "-n", "1", "-o", "json", cwd=folder)
    assert "reached target_return" in done.stdout + done.stderr
    path = next(folder.glob("runs/*/checkpoints/best.safetensors"))
    told = heddle_json("eval", str(path), "--episodes", "32", cwd=folder)["evaluations"][0]
    assert told["return_mean"] > 15.0 and set(told["groups"]) == {"speaker", "listener"}
    assert "name a group" in heddle("policy", "export", str(path), *SAFE, cwd=folder, code=2).stderr
    heddle("policy", "export", str(path), *SAFE, "--group", "listener", cwd=folder)
    again = folder / "again.toml"
    text = (folder / "signals.toml").read_text(encoding="utf-8")
    again.write_text(text.replace("hidden = [16]", 'hidden = [16]\ninit = "one.safetensors"'), encoding="utf-8")
    heddle("validate", "again.toml", cwd=folder)


SAFE = ("--format", "safetensors", "--to", "one.safetensors")


def test_a_runner_wins_against_its_own_past(folder: Path) -> None:
    smaller = ("--set", "budget.env_steps=60_000", "-n", "1", "-o", "json")
    told = json.loads(heddle("run", "race.toml", *smaller, cwd=folder).stdout)
    assert told["state"] == "completed" and told["adds_up"]
    lines = next(folder.glob("runs/*/metrics.jsonl")).read_text(encoding="utf-8").splitlines()
    points = [json.loads(line) for line in lines]
    both = [(point["runner.return"], point["rival.return"]) for point in points if "runner.return" in point]
    assert all(own == -other for own, other in both)
    assert max(own for own, _ in both) > 0.2  # the past is worse than the present, while it learns
    best = load(next(folder.glob("runs/*/checkpoints/best.safetensors")))
    assert best.update >= points[-1]["update"] - 1  # against a past that gets better, the newest one is
    assert not any(name.startswith("rival.policy_loss") for point in points for name in point)


def test_a_policy_in_jax_is_learned_by_a_learner_in_jax(folder: Path) -> None:
    spec = ("--set", "policy.id=catch_jax:Net", "--set", "trainer.learner=catch_jax:Learner")
    done = heddle("run", "catch.toml", *spec, "-n", "1", "-o", "json", cwd=folder)
    assert '"state": "completed"' in done.stdout
    path = next(folder.glob("runs/*/checkpoints/best.safetensors"))
    assert heddle_json("eval", str(path), "--episodes", "50", cwd=folder)["evaluations"][0]["return_mean"] > 0.6


@pytest.mark.parametrize("memory", ["lstm", "gru"])
def test_what_only_memory_can_tell_is_learned_by_a_recurrent_policy(folder: Path, memory: str) -> None:
    done = heddle("run", "recall.toml", "--set", f"policy.id={memory}", "-o", "json", cwd=folder)
    assert "reached target_return" in done.stdout + done.stderr
    path = next(folder.glob("runs/*/checkpoints/best.safetensors"))
    assert heddle_json("eval", str(path), "--episodes", "100", cwd=folder)["evaluations"][0]["return_mean"] > 0.9


def test_what_only_memory_can_tell_is_not_learned_without_one(folder: Path) -> None:
    plain = ("policy.id=mlp", "policy.recurrent_size=128", "budget.env_steps=20_000")
    sets = [word for pair in plain for word in ("--set", pair)]
    told = json.loads(heddle("run", "recall.toml", *sets, "-o", "json", cwd=folder).stdout)
    assert told["env_steps"] >= 20_000 and told["return"] < 0.5  # one of four cues is guessed


def test_dqn_is_far_above_chance_after_a_fifth_of_its_run(folder: Path) -> None:
    short = ("--set", "budget.env_steps=20_000", "--set", "eval.every_updates=1000")
    told = json.loads(heddle("run", "cartpole_dqn.toml", *short, "-o", "json", cwd=folder).stdout)
    assert told["state"] == "completed" and told["adds_up"]
    assert told["return"] > 60  # of its last 100 episodes, drawn actions among them; a random policy gets 22


def test_vtrace_is_far_above_chance_after_a_tenth_of_its_run(folder: Path) -> None:
    short = ("--set", "budget.env_steps=40_960", "--set", "eval.every_updates=1000")
    told = json.loads(heddle("run", "cartpole_vtrace.toml", *short, "-o", "json", cwd=folder).stdout)
    assert told["state"] == "completed" and told["adds_up"]
    assert told["return"] > 60  # of its last 100 episodes; seeds 1 to 4 got 134, 107, 182, 154; a random policy gets 22
    newest = max(folder.glob("runs/*/checkpoints/checkpoint-*.safetensors"))
    assert heddle_json("eval", str(newest), "--episodes", "2", cwd=folder)["evaluations"][0]["episodes"] == 2


def test_simulators_far_away_are_waited_for_beside_each_other(folder: Path) -> None:
    done = heddle("run", "waiting.toml", "--set", "budget.env_steps=20_000", "-o", "json", cwd=folder)
    told = json.loads(done.stdout)
    assert (told["state"], told["adds_up"]) == ("completed", True)


def test_texts_and_sequences_are_read_by_a_module_of_ones_own(folder: Path) -> None:
    done = heddle("run", "longer.toml", "-o", "json", cwd=folder)
    returned = re.search(r'"return": (-?[\d.]+)', done.stdout)
    assert returned is not None
    assert float(returned[1]) > 7.0  # always the same answer is right in some 5 of 10


def test_continuous_actions_are_played_and_trained_without_a_barrier(folder: Path) -> None:
    done = heddle("run", "pendulum.toml", "--set", "budget.env_steps=4_096", "-o", "json", cwd=folder)
    told = json.loads(done.stdout)
    assert told["state"] == "completed" and told["adds_up"] and told["env_steps"] >= 4_096
    # Too short to learn; what it learned from moved its weights and statistics, and the best of it can be played
    best = load(next(folder.glob("runs/*/checkpoints/best.safetensors")))
    observation, action = (from_json(best.spaces[kind]) for kind in ("observation", "action"))
    first = make_policy(spec_from_json(best.spec_json).policy, observation, action, seed=1).get_weights()
    assert best.update >= 3
    assert [name for name, array in first.items() if np.array_equal(array, best.weights[name])] == []
    assert any(name.startswith("norm.") and name.endswith(".count") for name in best.weights)
    path = next(folder.glob("runs/*/checkpoints/best.safetensors"))
    mean = heddle_json("eval", str(path), "--episodes", "4", cwd=folder)["evaluations"][0]["return_mean"]
    assert -1_900 < mean < -100  # what Pendulum pays for 200 steps of anything


@pytest.mark.parametrize(
    ("spec", "steps"),
    [("cartpole_dqn", 3_000), ("pendulum_sac", 1_200), ("own_learner", 8_192)],
)
def test_every_learner_trains_and_what_it_saved_can_be_played(folder: Path, spec: str, steps: int) -> None:
    done = heddle("run", f"{spec}.toml", "--set", f"budget.env_steps={steps}", "-o", "json", cwd=folder)
    assert '"state": "completed"' in done.stdout
    newest = max(folder.glob("runs/*/checkpoints/checkpoint-*.safetensors"))
    assert heddle_json("eval", str(newest), "--episodes", "2", cwd=folder)["evaluations"][0]["episodes"] == 2


def test_a_policy_of_ones_own_is_learned(folder: Path) -> None:
    spec = (
        "--set",
        "policy.id=catch_policy:Net",
        "--set",
        "policy.kwargs={width = 24}",
        "--set",
        "budget.env_steps=20_000",
    )
    done = heddle("run", "catch.toml", *spec, "--workers", "1", "-o", "json", cwd=folder)
    returned = re.search(r'"return": (-?[\d.]+)', done.stdout)
    assert returned is not None
    assert float(returned[1]) > -0.4  # a random paddle catches one ball in five: -0.6


def test_sac_takes_a_gradient_step_for_each_step_of_hopper_once_it_begins(folder: Path) -> None:
    if find_spec("mujoco") is None:
        pytest.skip("mujoco is not installed")
    small = ("policy.hidden=[32,32]", "trainer.minibatch=16", "trainer.replay.samples_per_step=16", "eval.episodes=2")
    short = [*small, "budget.env_steps=640", "trainer.replay.learning_starts=512"]
    sets = [word for pair in short for word in ("--set", pair)]
    heddle("run", "hopper_sac.toml", *sets, "--workers", "1", "-o", "json", cwd=folder)
    lines = [json.loads(line) for line in next(folder.glob("runs/*/metrics.jsonl")).read_text().splitlines()]
    steps = [int(line["gradient_steps"]) for line in lines if "gradient_steps" in line]
    assert steps[:7] == [0] * 7
    assert set(steps[7:]) == {64}, "four environments of 16 steps each"


def test_the_client_submits_follows_and_waits(up: Path) -> None:
    out = python("submit_and_follow.py", cwd=up)
    assert "submitted from-python-" in out
    assert "completed" in out
    assert out.count("return") > 5
    assert "checkpoint runs/" in out


def test_a_tap_reads_experience_while_it_is_trained_on(up: Path) -> None:
    experiment = heddle("enqueue", "cartpole.toml", "--set", "budget.env_steps=50_000_000", cwd=up).stdout.strip()
    out = python("read_experience.py", experiment, cwd=up)
    assert out.count("obs (") == 20
    assert "missed " in out
    heddle("rm", "--force", experiment, cwd=up)


def test_a_trainer_of_ones_own_trains_to_the_end(folder: Path) -> None:
    with started("up", "--workers", "2", "--no-trainer", cwd=folder) as services:
        services.says("heddle enqueue")
        out = python("own_trainer.py", cwd=folder)
        experiment, state = out.splitlines()[-1].split()
        assert state == "completed"
        status = heddle_json("status", experiment, cwd=folder)
    assert status["accounting"]["batches"]["lost"] == status["accounting"]["batches"]["duplicated"] == 0
    assert status["metrics"]["return"] > -0.4
    assert "loss" in status["metrics"]


FAKE_SRUN = """#!/bin/bash
exec "$@"
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_the_slurm_script_trains_and_leaves_no_process(folder: Path) -> None:
    tools = folder / "bin"
    tools.mkdir()
    for name, text in (("srun", FAKE_SRUN), ("heddle", f'#!/bin/bash\nexec {" ".join(HEDDLE)} "$@"\n')):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    env = environment(
        extra={"SLURM_CPUS_PER_TASK": "2", "PATH": f"{tools}:{os.environ['PATH']}", "HEDDLE_BIND": "127.0.0.1"}
    )
    done = subprocess.run(
        ["bash", "slurm.sbatch", "catch.toml"], cwd=folder, env=env, text=True, capture_output=True, timeout=150
    )
    assert done.returncode == 0, done.stdout + done.stderr + (folder / "heddle-up.log").read_text()
    assert "completed" in done.stderr
    if Path("/proc").is_dir():
        eventually(lambda: not processes_of(folder), timeout_s=10)
