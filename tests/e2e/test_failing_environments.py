"""An environment that fails although batches come: how often it may, what the run does then, and how it goes on."""

import json
import re
from pathlib import Path

import pytest

from tests.e2e.shell import heddle, processes_of

SPEC = """
[experiment]
name = "frail"
[env]
id = "frail_env:Frail"
num_envs = 2
isolation = "{isolation}"
kwargs = {{ flag = "{flag}", crashes = {crashes} }}
[rollout]
steps = 8
sync = true
[trainer]
minibatch = 16
[budget]
env_steps = 800
[faults]
lease_ttl = 1
env_failures = {failures}
on_quarantine = "{on_quarantine}"
"""

FRAIL = """
import os
import signal

import gymnasium, numpy as np
from gymnasium import spaces


class Frail(gymnasium.Env):
    # its episodes have 50 steps; while the file of that name is there, none of them gets beyond the 40th

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, flag, crashes, **_):
        self.flag, self.crashes = flag, crashes

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.n = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.n += 1
        if self.n == 40 and os.path.exists(self.flag):
            if self.crashes:
                os.kill(os.getpid(), signal.SIGSEGV)
            raise RuntimeError("the gripper slipped")
        return np.zeros(2, np.float32), 1.0, False, self.n == 50, {}
"""
LINE = 1 + FRAIL.splitlines().index('            raise RuntimeError("the gripper slipped")')


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the environment, which is broken."""
    (tmp_path / "frail_env.py").write_text(FRAIL)
    (tmp_path / "broken").touch()
    return tmp_path


def write(
    folder: Path, *, failures: int, on_quarantine: str = "continue", isolation: str = "inline", crashes: bool = False
) -> str:
    filled = SPEC.format(
        isolation=isolation,
        flag=folder / "broken",
        crashes=str(crashes).lower(),
        failures=failures,
        on_quarantine=on_quarantine,
    )
    (folder / "exp.toml").write_text(filled)
    return str(folder / "exp.toml")


def test_a_worker_that_an_environment_crashes_although_it_had_given_batches_counts_like_an_error(folder: Path) -> None:
    spec = write(folder, failures=1, on_quarantine="fail", crashes=True)
    done = heddle("run", spec, cwd=folder, code=1, timeout_s=90)
    assert re.search(r"ended +failed: .*shard [01].*: its worker ended with signal SIGSEGV at frail_env", done.stdout)


@pytest.mark.parametrize("isolation", ["inline", "process"])
def test_a_run_can_fail_at_the_first_error_of_an_environment_although_it_had_given_batches(
    isolation: str, folder: Path
) -> None:
    # Given a spec that puts up with no failure, and an environment that fails at its 40th step, after four batches
    spec = write(folder, failures=1, on_quarantine="fail", isolation=isolation)
    # When it is run
    done = heddle("run", spec, cwd=folder, code=1, timeout_s=90)
    # Then the run ends there, and says what failed, where and how to get there again
    told = re.search(r"shard 0 is quarantined: (.*)", done.stdout)
    assert told is not None, done.stdout
    assert re.search(r"environment [01] \(number [01] of shard 0\)", told[1])
    assert "the gripper slipped" in told[1]
    assert f"frail_env.py:{LINE}" in told[1]
    assert re.search(r"seed \d+, episode 1, step 40, last actions .*policy version \d+", told[1])
    assert "Traceback" not in done.stdout + done.stderr
    assert list((folder / "runs").glob("*/checkpoints/*.safetensors")), "the checkpoint of what was trained is kept"
    (ended,) = (folder / "runs").glob("*/ended.json")
    kept = json.loads(ended.read_text())
    assert kept["state"] == "failed" and "the gripper slipped" in kept["reason"]
    assert processes_of(folder) == {}


def test_an_environment_that_fails_again_and_again_between_batches_ends_the_run_which_goes_on_once_it_is_mended(
    folder: Path,
) -> None:
    # Given an environment of which no episode gets to its end, though it gives batches every time
    spec = write(folder, failures=2)
    # When it is run
    failed = json.loads(heddle("run", spec, "-o", "json", cwd=folder, code=1, timeout_s=90).stdout)
    # Then it is set aside after the second time, and with it every shard
    assert "every train shard is quarantined" in failed["reason"]
    assert "the gripper slipped" in failed["reason"]
    # And once it is mended the run goes on where it was
    (folder / "broken").unlink()
    again = heddle("run", spec, "--resume", failed["experiment"], "-o", "json", cwd=folder, timeout_s=90)
    assert json.loads(again.stdout)["state"] == "completed"
