"""Two groups with a policy each, workers and trainer killed: each agent's steps are in its own group, once."""

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heddle import checkpoint as files
from heddle.checkpoint import Checkpoint
from tests.chaos.ledger_agents import LEFT, NAME, RIGHT
from tests.chaos.ledger_learner import NAME as LEARNER
from tests.e2e.shell import heddle, heddle_json, processes_of, started
from tests.helpers import eventually

KILLS = 40 if os.environ.get("HEDDLE_SOAK") else 3
SPEC = f"""
[experiment]
name = "groups"
[env]
id = "{NAME}"
agents = 2
num_envs = 4
envs_per_shard = 2
kwargs = {{ step_s = 0.002 }}
deterministic = false
[policy]
hidden = [4]
[[policy.groups]]
name = "one"
agents = ["{LEFT}"]
[[policy.groups]]
name = "other"
agents = ["{RIGHT}"]
[rollout]
steps = 8
max_policy_lag = 4
[trainer]
learner = "{LEARNER}"
batch_steps = 64
minibatch = 8
[budget]
env_steps = 1_000_000_000
[faults]
lease_ttl = 1
barren_deaths = 100
"""
pytestmark = pytest.mark.timeout(3_600 if KILLS > 3 else 600)


def newest(folder: Path) -> Checkpoint | None:
    """The newest whole checkpoint of the one experiment."""
    homes = list(folder.glob("runs/*/checkpoints"))
    return files.newest(homes[0]) if homes else None


def trained_past(folder: Path, update: int) -> Checkpoint:
    """The first checkpoint found above `update`."""

    def later() -> Checkpoint | None:
        found = newest(folder)
        return found if found is not None and found.update > update else None

    found = eventually(later, timeout_s=180, what=f"an update above {update}")
    assert found is not None
    return found


def check_ledgers(checkpoint: Checkpoint) -> int:
    """Each group holds steps of its own agents alone, each ledger's from its first to its last; how many in all."""
    steps = 0
    for parity, group in enumerate(("one", "other")):
        meta: dict[str, Any] = checkpoint.learner_meta["groups"][group]
        assert meta["problems"] == [] and meta["repeats"] == 0
        table = checkpoint.learner[f"{group}/intervals"]
        assert len(table) and (table[:, 0] % 2 == parity).all()
        ledgers = {(env, nonce): (first, last) for env, nonce, first, last, _ in table.tolist()}
        assert len(ledgers) == len(table), "no ledger has a hole"
        assert all(first == 0 for first, _ in ledgers.values()), "none begins in the middle"
        steps += int((table[:, 3] - table[:, 2] + 1).sum())
    assert steps == checkpoint.env_steps
    return steps


def kill(folder: Path, words: str, rng: np.random.Generator) -> None:
    """SIGKILL to one of the processes whose command holds `words`, once there is one."""

    def found() -> list[int]:
        return sorted(pid for pid, command in processes_of(folder).items() if words in command)

    pids = eventually(found, timeout_s=60, what=words)
    os.kill(int(rng.choice(pids)), signal.SIGKILL)


def test_whoever_is_killed_each_group_has_learned_each_step_of_its_own_agents_once(tmp_path: Path) -> None:
    (tmp_path / "exp.toml").write_text(SPEC)
    rng = np.random.default_rng(3)
    # Given a run of two groups
    with started("up", "--workers", "2", cwd=tmp_path) as up:
        up.says("next ")
        experiment = heddle("enqueue", "exp.toml", cwd=tmp_path, timeout_s=240).stdout.split()[0]
        at = trained_past(tmp_path, 0).update
        # When its workers and its trainer are killed in turn, each time after some updates
        for number in range(KILLS):
            at = trained_past(tmp_path, at + int(rng.integers(2, 6))).update
            kill(tmp_path, "heddle trainer" if number % 2 else "heddle worker ", rng)
            checkpoint = newest(tmp_path)
            assert checkpoint is not None
            # Then at every moment the checkpoint's counter is what its groups hold
            check_ledgers(checkpoint)
        trained_past(tmp_path, at + 3)
        heddle("stop", experiment, cwd=tmp_path)
        heddle("wait", experiment, "--for", "stopped", cwd=tmp_path)
        status = heddle_json("status", experiment, cwd=tmp_path)
        up.interrupt()
        assert up.ends() == 0
    # And in the end the books balance, and the groups hold all that was trained
    for counts in status["accounting"].values():
        assert counts["lost"] == counts["duplicated"] == counts["in_flight"] == 0, status["accounting"]
    last = newest(tmp_path)
    assert last is not None
    assert check_ledgers(last) == status["accounting"]["steps"]["trained"]
