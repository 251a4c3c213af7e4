"""Short runs that a learner which is broken does not get through: each bound lies well above what chance reaches.

Longer ones are in test_learners_learn.py.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.shell import ROOT, heddle

pytestmark = pytest.mark.timeout(900)

MOUNTAIN_CAR = """
[experiment]
name = "mountain-car"
seed = 1
[env]
id = "MountainCar-v0"
num_envs = 8
[rollout]
steps = 128
sync = true
[trainer]
learner = "ppo"
minibatch = 256
[budget]
env_steps = 20_480
"""


def told(folder: Path, spec: str, **sets: Any) -> dict[str, Any]:
    """What a run says in the end."""
    words = [word for key, value in sets.items() for word in ("--set", f"{key.replace('__', '.')}={value}")]
    found: dict[str, Any] = json.loads(
        heddle("run", spec, *words, "-n", "1", "-o", "json", cwd=folder, timeout_s=600).stdout
    )
    assert found["state"] == "completed" and found["adds_up"]
    return found


def test_ppo_on_hopper_is_far_above_chance_after_a_twentieth_of_its_run(tmp_path: Path) -> None:
    pytest.importorskip("mujoco")
    shutil.copy(ROOT / "examples" / "hopper.toml", tmp_path)
    run = told(tmp_path, "hopper.toml", budget__env_steps=40_960, eval__every_updates=1_000)
    assert run["return"] > 120.0  # of its last 100 episodes; seeds 1 and 2 got 224 and 234, a random policy gets 20


def test_ppo_on_breakout_is_far_above_chance_after_a_twentieth_of_its_run(tmp_path: Path) -> None:
    pytest.importorskip("minatar")
    shutil.copy(ROOT / "examples" / "breakout.toml", tmp_path)
    run = told(tmp_path, "breakout.toml", budget__env_steps=40_960)
    assert run["return"] > 1.2  # of its last 100 episodes; seed 1 got 3.3, a random policy gets 0.5


def test_plain_ppo_fails_on_mountain_car_as_it_should(tmp_path: Path) -> None:
    # Its reward says nothing before the first success, which chance does not bring within 200 steps
    (tmp_path / "mountain_car.toml").write_text(MOUNTAIN_CAR, encoding="utf-8")
    assert told(tmp_path, "mountain_car.toml")["return"] == -200.0


def test_sac_on_pendulum_swings_it_up_before_half_of_its_run_is_over(tmp_path: Path) -> None:
    shutil.copy(ROOT / "examples" / "pendulum_sac.toml", tmp_path)
    run = told(tmp_path, "pendulum_sac.toml", budget__env_steps=4_000, eval__every_updates=1_000)
    assert run["eval_return"] > -600.0  # a random policy gets -1,200, a good one -150
