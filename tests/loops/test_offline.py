"""Offline runs against a broker: no workers, exact after a kill, and as good as who was recorded."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heddle.broker import Broker
from heddle.broker.server import LocalServer
from heddle.checkpoint import Checkpoint, newest
from heddle.cli.main import run
from heddle.client import Client
from heddle.consumers.data.source import DataSource
from heddle.consumers.data.store import read_manifest
from heddle.consumers.restoring import CheckpointMissing
from heddle.errors import DataError
from heddle.layout import Segments
from heddle.policies import make_policy
from heddle.spaces import to_json
from heddle.spec import load_spec
from tests.data_kit import ACTION, OBSERVATION, record_cartpole
from tests.fixtures import on_valkey
from tests.helpers import eventually
from tests.trainer_kit import InThread, start_process

SPACES = json.dumps({"observation": to_json(OBSERVATION), "action": to_json(ACTION)})

broker = on_valkey


def spec_of(folder: Path, **budget: Any) -> dict[str, Any]:
    return {
        "experiment": {"name": "clone", "seed": 1},
        "env": {"id": "CartPole-v1"},
        "policy": {"hidden": [32]},
        "data": {"path": str(folder)},
        "trainer": {"learner": "bc", "lr": 3e-3, "minibatch": 256, "device": "cpu"},
        "budget": budget,
    }


def submitted(broker: Broker, spec: dict[str, Any], url: str, name: str) -> str:
    return Client(broker, url).submit(spec, name=name, spaces=SPACES).id


def last(directory: Path) -> Checkpoint:
    found = newest(directory / "checkpoints")
    assert found is not None
    return found


def test_a_cloned_policy_keeps_the_pole_up_as_the_recorded_one_did(
    broker: Broker, valkey_server: LocalServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record_cartpole(tmp_path / "demos", episodes=20)
    experiment = submitted(broker, spec_of(tmp_path / "demos", passes=25), valkey_server.url, "clone")
    assert InThread(valkey_server.url, experiment, tmp_path / "run").join(60) == 0
    checkpoint = last(tmp_path / "run")
    manifest = read_manifest(tmp_path / "demos")
    assert checkpoint.env_steps == 25 * manifest.steps
    assert broker.experience.flow(experiment, 0).appended.batches == 0
    (path,) = [
        p for p in (tmp_path / "run" / "checkpoints").glob("checkpoint-*") if f"{checkpoint.update:012d}" in p.name
    ]
    assert run(["eval", str(path), "--episodes", "10", "-o", "json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)["evaluations"]
    assert told["return_mean"] >= 400, told


def test_values_are_learned_from_a_recording_as_well(
    broker: Broker, valkey_server: LocalServer, tmp_path: Path
) -> None:
    record_cartpole(tmp_path / "demos", episodes=5)
    spec = spec_of(tmp_path / "demos", passes=2) | {"policy": {"id": "q", "hidden": [32]}}
    spec["trainer"] = {"learner": "dqn", "minibatch": 64, "device": "cpu", "replay": {"learning_starts": 100}}
    experiment = submitted(broker, spec, valkey_server.url, "values")
    assert InThread(valkey_server.url, experiment, tmp_path / "run").join(60) == 0
    checkpoint, steps = last(tmp_path / "run"), read_manifest(tmp_path / "demos").steps
    assert checkpoint.env_steps == 2 * steps and broker.experiments.status(experiment).result["env_steps"] == 2 * steps
    fresh = make_policy(load_spec(spec).spec.policy, OBSERVATION, ACTION, seed=1).get_weights()
    trained = checkpoint.weights
    assert all(np.isfinite(trained[name]).all() for name in fresh)
    assert any((trained[name] != fresh[name]).any() for name in fresh if name.endswith("weight"))


def test_a_trainer_that_is_killed_makes_the_very_same_weights(
    broker: Broker, valkey_server: LocalServer, tmp_path: Path
) -> None:
    record_cartpole(tmp_path / "demos", episodes=10, files=3)
    spec = spec_of(tmp_path / "demos", updates=60)
    spec["trainer"]["learner"], spec["trainer"]["checkpoint_every"] = "tests.slow_learner:SlowBc", 3
    whole = submitted(broker, spec, valkey_server.url, "whole")
    assert InThread(valkey_server.url, whole, tmp_path / "whole").join(60) == 0
    killed = submitted(broker, spec, valkey_server.url, "killed")
    for number in range(int(os.environ.get("HEDDLE_SOAK", "0")) * 2 or 1):
        process = start_process(valkey_server.url, killed, tmp_path / "killed", ttl_ms=500)
        least = 10 + 20 * number
        eventually(
            lambda: (found := newest(tmp_path / "killed" / "checkpoints")) and found.update >= least,  # noqa: B023
            timeout_s=40,
            what="updates",
        )
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert process.stderr is not None
        process.stderr.close()
    assert InThread(valkey_server.url, killed, tmp_path / "killed").join(60) == 0
    one, other = last(tmp_path / "whole"), last(tmp_path / "killed")
    assert one.update == other.update == 60 and one.env_steps == other.env_steps
    for part in ("weights", "learner"):
        arrays, others = getattr(one, part), getattr(other, part)
        assert arrays.keys() == others.keys()
        assert all(arrays[name].tobytes() == others[name].tobytes() for name in arrays), part


def test_a_run_whose_checkpoints_or_files_are_not_the_ones_it_had_goes_no_further_and_keeps_its_curve(
    broker: Broker, valkey_server: LocalServer, tmp_path: Path
) -> None:
    # Given an offline run of which a trainer left in the middle
    record_cartpole(tmp_path / "demos", episodes=4)
    spec = spec_of(tmp_path / "demos", updates=1000)
    spec["trainer"]["learner"] = "tests.slow_learner:SlowBc"
    experiment = submitted(broker, spec, valkey_server.url, "clone")
    trainer = InThread(valkey_server.url, experiment, tmp_path / "run")
    eventually(lambda: (found := broker.events.metrics_newest(experiment)) and found.update >= 3, what="updates")
    assert trainer.leave() == 0
    told = broker.events.metrics_newest(experiment)
    # When another one looks for its checkpoints elsewhere
    with pytest.raises(CheckpointMissing, match="updates already, and there is no checkpoint in .*elsewhere"):
        InThread(valkey_server.url, experiment, tmp_path / "elsewhere").join(30)
    # Or at the right place, and the recording has more files than before
    record_cartpole(tmp_path / "demos", episodes=1, files=1)
    with pytest.raises(CheckpointMissing, match=r"was trained on files \w+, and .*demos holds files"):
        InThread(valkey_server.url, experiment, tmp_path / "run").join(30)
    # Then it says so, and what was told of the run stays
    assert broker.events.metrics_newest(experiment) == told
    assert not broker.experiments.status(experiment).ended


def test_a_recording_that_is_not_there_or_of_another_environment_is_named_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = '[experiment]\nname = "clone"\n[env]\nid = "{env}"\n[data]\npath = "demos"\n[trainer]\nlearner = "bc"\n'
    (tmp_path / "exp.toml").write_text(text.format(env="CartPole-v1") + "[budget]\nupdates = 3\n")
    assert run(["validate", "exp.toml"]) == 3
    assert "exp.toml:6:1  data.path = 'demos': demos holds no recorded experience" in capsys.readouterr().err
    record_cartpole(tmp_path / "demos", episodes=1, files=1)
    assert run(["validate", "exp.toml"]) == 0
    assert run(["validate", "exp.toml", "--set", "trainer.learner=vtrace"]) == 3
    assert "holds no log_prob of what was done" in capsys.readouterr().err
    (tmp_path / "exp.toml").write_text(text.format(env="Acrobot-v1") + "[budget]\nupdates = 3\n")
    assert run(["validate", "exp.toml"]) == 3
    assert "has obs as float32[4], here it is float32[6]" in capsys.readouterr().err


def test_a_recording_that_vanishes_fails_the_run_with_its_name(
    broker: Broker, valkey_server: LocalServer, tmp_path: Path
) -> None:
    experiment = submitted(broker, spec_of(tmp_path / "nowhere", updates=3), valkey_server.url, "clone")
    assert InThread(valkey_server.url, experiment, tmp_path / "run").join(30) == 1
    assert "nowhere holds no recorded experience" in broker.experiments.ctl(experiment).reason


def test_a_recording_that_is_away_for_a_moment_is_waited_for_and_one_that_stays_away_is_not(
    broker: Broker, valkey_server: LocalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_cartpole(recording := tmp_path / "demos", episodes=3)
    read, asked = DataSource.batch, []

    def failing(source: DataSource, number: int) -> Segments:
        asked.append(number)
        if len(asked) in (2, 3) or number == 3:
            raise DataError("cannot read part-1.parquet: Stale file handle")
        return read(source, number)

    monkeypatch.setattr(DataSource, "batch", failing)
    experiment = submitted(broker, spec_of(recording, updates=3), valkey_server.url, "clone")
    assert InThread(valkey_server.url, experiment, tmp_path / "run").join(60) == 0
    assert asked == [0, 1, 1, 1, 2]
    monkeypatch.setattr("heddle.consumers.offline.READ_PATIENCE_S", 0.0)
    again = submitted(broker, spec_of(recording, updates=4), valkey_server.url, "again")
    assert InThread(valkey_server.url, again, tmp_path / "again").join(60) == 1
    assert "update 4: cannot read part-1.parquet: Stale file handle" in broker.experiments.ctl(again).reason
