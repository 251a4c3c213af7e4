"""A trainer with a replay buffer that is killed at any moment: what the next one finds is what the marks cover."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from heddle.broker import Broker
from heddle.broker.server import LocalServer
from heddle.checkpoint import Checkpoint
from heddle.consumers.learners import make_learner
from heddle.consumers.training import LEARNER_FILES
from tests.fixtures import on_valkey
from tests.helpers import eventually
from tests.trainer_kit import ENVS, STEPS, Fleet, saved, start_process, submit

TRAINER = {
    "learner": "dqn",
    "minibatch": 8,
    "replay": {"capacity": "64KiB", "learning_starts": 16, "samples_per_step": 2.0, "prioritised": True},
}

broker = on_valkey


def buffered(checkpoint: Checkpoint, home: Path, fleet: Fleet) -> Counter[tuple[int, int]]:
    """(shard, seq) -> steps in the buffer that this checkpoint names, loaded as a trainer does it."""
    setting = fleet.setting
    learner: Any = make_learner(setting.spec, setting.policy, device=torch.device("cpu"), seed=0)
    learner.open(home / LEARNER_FILES)
    learner.load(checkpoint.learner, checkpoint.learner_meta)
    replay = learner.replay
    rows = replay._ring.step_rows()
    assert len(rows) == replay.num_steps
    assert (replay._ring.tree.get(rows) > 0).all(), "each step has the priority that the trainer knew"
    return Counter((int(shard), int(seq)) for shard, seq in replay._ring.leaves["obs"][rows][:, :2].tolist())


def covered(checkpoint: Checkpoint) -> Counter[tuple[int, int]]:
    """What the marks of a checkpoint say was trained on."""
    marks = {int(name.partition("/")[2]): int(mark[2]) for name, mark in checkpoint.marks.items()}
    return Counter({(shard, seq): ENVS * STEPS for shard, last in marks.items() for seq in range(1, last + 1)})


def latest(fleet: Fleet, at_least: int) -> int:
    """The latest policy, once it is at least so high; the trainer loads torch first."""
    policies = fleet.broker.policies
    return eventually(
        lambda: (found := policies.latest(fleet.experiment)) >= at_least and found, timeout_s=60, what=f"{at_least}"
    )


@pytest.mark.parametrize("wait_for_update", [False, True])
def test_after_a_kill_the_buffer_holds_what_the_marks_cover_and_in_the_end_everything_once(
    valkey_server: LocalServer, broker: Broker, tmp_path: Path, wait_for_update: bool, plane: str
) -> None:
    # Given a trainer that replays, and workers that give one batch after another
    home = tmp_path / "home"
    experiment = submit(
        broker,
        rollout={"sync": False, "plane": plane},
        policy={"id": "q", "hidden": [4]},
        trainer={**TRAINER, "checkpoint_every": 2},
    )
    fleet = Fleet(broker, experiment).claim_all()
    running = [first := start_process(valkey_server.url, experiment, home)]
    try:
        version = 0
        for _ in range(5):
            version = latest(fleet, version + 1)
            for shard in fleet.claims:
                fleet.give(shard, version)
        # When it is killed some time after it took the last batches
        eventually(lambda: saved(home) is not None, timeout_s=60, what="a checkpoint")
        if wait_for_update:
            eventually(lambda: latest(fleet, version + 1), timeout_s=60, what="an update")
        first.kill()
        first.communicate()
        # Then the buffer of the newest checkpoint is what its marks cover
        checkpoint = saved(home)
        assert checkpoint is not None
        assert buffered(checkpoint, home, fleet) == covered(checkpoint)
        # And the next trainer goes on with it: in the end every batch is in there, once
        running.append(second := start_process(valkey_server.url, experiment, home))
        version = latest(fleet, checkpoint.policy_version + 1)
        eventually(lambda: fleet.flow().entries == 0, timeout_s=60, what="all batches are trained on and acked")
        second.terminate()
        _, errors = second.communicate(timeout=60)
        assert second.returncode == 0, errors.decode()
    finally:
        for process in running:
            if process.poll() is None:
                process.kill()
        fleet.end()
    assert (fleet.flow().mapped > 0) == (plane == "shm")
    checkpoint = saved(home)
    assert checkpoint is not None
    assert buffered(checkpoint, home, fleet) == covered(checkpoint) == Counter(dict.fromkeys(fleet.gave, ENVS * STEPS))
    fleet.check_balance()
