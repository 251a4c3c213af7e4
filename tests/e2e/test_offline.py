"""Recording and training offline from the command line, as a user does it."""

import json
import shutil
from pathlib import Path

import pytest

from heddle.consumers.data.store import read_manifest
from tests.data_kit import record_cartpole
from tests.e2e.shell import ROOT, heddle, heddle_json, started
from tests.helpers import eventually


def test_run_trains_from_a_recording_in_one_terminal_without_a_worker_and_says_offline(tmp_path: Path) -> None:
    record_cartpole(tmp_path / "demos", episodes=5)
    (tmp_path / "exp.toml").write_text(
        '[experiment]\nname = "clone"\n[env]\nid = "CartPole-v1"\n[data]\npath = "demos"\n'
        '[trainer]\nlearner = "bc"\n[budget]\npasses = 3\n'
    )
    done = heddle("run", "exp.toml", "-o", "json", cwd=tmp_path)
    told = json.loads(done.stdout)
    assert (told["state"], told["adds_up"], told["restarts"]) == ("completed", True, [])
    assert told["env_steps"] == 3 * read_manifest(tmp_path / "demos").steps
    assert "offline" in done.stderr


@pytest.mark.timeout(600)
def test_the_example_clones_a_policy_from_the_recording_of_its_training(tmp_path: Path) -> None:
    for name in ("cartpole.toml", "cartpole_bc.toml"):
        shutil.copy(ROOT / "examples" / name, tmp_path)
    with started("up", "--workers", "2", cwd=tmp_path) as services:
        services.says("heddle enqueue")
        teacher = heddle("enqueue", "cartpole.toml", "--set", "budget.env_steps=40_000", cwd=tmp_path).stdout.strip()
        words = ("record-experience", teacher, "--to", "demos", "-o", "json")
        recorded = json.loads(heddle(*words, cwd=tmp_path, timeout_s=400).stdout)
        assert recorded["done"]
        # What was played before the recorder came, 2 x 32 steps a batch, is missed, and counted.
        assert abs(recorded["steps"] + 64 * recorded["missed"] - 40_000) < 2_000
        less = ("--set", "data.min_return=150", "--set", "budget.passes=10")
        pupil = heddle("enqueue", "cartpole_bc.toml", *less, cwd=tmp_path).stdout.strip()
        eventually(
            lambda: "offline" in heddle("status", pupil, cwd=tmp_path).stdout, timeout_s=60, every_s=0.5, what="offline"
        )
        (told,) = heddle_json("wait", pupil, "--timeout", "5m", cwd=tmp_path)["experiments"]
    assert told["state"] == "completed"
    assert told["result"]["eval_return"] > 100
