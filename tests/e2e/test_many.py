"""Many environments in one experiment are planned, claimed and played, and every step of each is counted once.

HEDDLE_SOAK=1 plays 10,000 of them.
"""

import os
from itertools import accumulate
from pathlib import Path

import pytest

from heddle.broker.server import start_server
from tests.e2e.shell import heddle_json

SOAK = bool(os.environ.get("HEDDLE_SOAK"))
pytestmark = pytest.mark.skipif(not SOAK, reason="many environments for a minute: HEDDLE_SOAK=1, make soak")

ENVS, STEPS, UPDATES, EPISODE, PER_SHARD = 10_000, 16, 3, 20, 64
CROWD = f"""
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv


class Crowd(VectorEnv):
    metadata = {{"autoreset_mode": AutoresetMode.SAME_STEP}}

    def __init__(self, num_envs, env_index):
        self.num_envs, self.first = num_envs, env_index
        self.single_observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.single_action_space = spaces.Discrete(2)
        self.steps = np.zeros(num_envs, np.int64)

    def reset(self, *, seed=None, options=None):
        self.steps[:] = 0
        return self.shown(), {{}}

    def step(self, actions):
        over = self.steps + 1 == {EPISODE}
        self.steps = np.where(over, 0, self.steps + 1)
        return self.shown(), np.ones(self.num_envs), over, np.zeros(self.num_envs, bool), {{}}

    def shown(self):
        return np.stack([self.first + np.arange(self.num_envs), self.steps], axis=1).astype(np.float32) / {ENVS}
"""
SPEC = f"""
[experiment]
name = "crowd"
[env]
id = "crowd:Crowd"
num_envs = {ENVS}
vector = true
[policy]
hidden = [8]
[rollout]
steps = {STEPS}
sync = true
[trainer]
passes = 1
minibatch = 16_384
[budget]
updates = {UPDATES}
"""


def test_ten_thousand_environments_play_in_one_experiment_and_every_count_is_exact(tmp_path: Path) -> None:
    (tmp_path / "crowd.py").write_text(CROWD)
    (tmp_path / "exp.toml").write_text(SPEC)
    # When all of them play for some updates, each of which waits for every shard
    with start_server(tmp_path / "broker") as server:
        done = heddle_json("run", "exp.toml", "-n", "2", cwd=tmp_path, url=server.url)
        shards = heddle_json("shards", done["experiment"], cwd=tmp_path, url=server.url)["shards"]
    # Then every environment has its place in one shard
    assert done["state"] == "completed"
    assert [shard["shard"] for shard in shards] == list(range(-(-ENVS // PER_SHARD)))
    sizes = [shard["num_envs"] for shard in shards]
    assert [shard["first_env"] for shard in shards] == [0, *accumulate(sizes)][:-1]
    assert sum(sizes) == ENVS
    # And each has played every update, in steps, batches and episodes
    steps, batches = done["accounting"]["steps"], done["accounting"]["batches"]
    assert done["updates"] == UPDATES
    assert steps["trained"] == ENVS * STEPS * UPDATES
    assert batches["trained"] == len(shards) * UPDATES
    assert done["result"]["episodes"] == ENVS * (STEPS * UPDATES // EPISODE)
    assert done["return"] == EPISODE
    # And what a shard says of itself adds up to the books: its last batch may have come when it was over
    assert all(shard["steps"] == shard["seq"] * shard["num_envs"] * STEPS for shard in shards)
    assert {shard["seq"] for shard in shards} <= {UPDATES, UPDATES + 1}
    assert sum(shard["steps"] for shard in shards) == steps["appended"] == steps["trained"] + steps["stale"]
    assert sum(shard["seq"] for shard in shards) == batches["appended"] == batches["trained"] + batches["stale"]
    assert done["adds_up"]
    for counts in (steps, batches):
        assert all(counts[what] == 0 for what in counts if what not in ("appended", "trained", "stale"))
