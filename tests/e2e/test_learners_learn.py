"""The examples of learners reach what their first lines say, less a margin for other seeds. HEDDLE_SOAK=1 runs them."""

import os
import shutil
from pathlib import Path

import pytest

from tests.e2e.shell import ROOT, heddle, heddle_json

SOAK = bool(os.environ.get("HEDDLE_SOAK"))


@pytest.mark.skipif(not SOAK, reason="minutes each; HEDDLE_SOAK=1 runs them")
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    ("spec", "at_least"), [("cartpole_vtrace", 400.0), ("cartpole_dqn", 300.0), ("pendulum_sac", -300.0)]
)
def test_the_best_policy_of_a_run_is_good(tmp_path: Path, spec: str, at_least: float, seed: int) -> None:
    shutil.copy(ROOT / "examples" / f"{spec}.toml", tmp_path)
    heddle("run", f"{spec}.toml", "--set", f"experiment.seed={seed}", cwd=tmp_path, timeout_s=1_500)
    best = next(tmp_path.glob("runs/*/checkpoints/best.safetensors"))
    assert heddle_json("eval", str(best), "--episodes", "50", cwd=tmp_path)["evaluations"][0]["return_mean"] >= at_least
