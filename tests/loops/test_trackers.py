"""Trackers on a real server with the real libraries: killed, frozen, away, and what they have in the end."""

import base64
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heddle.broker import Broker, keys
from heddle.broker.server import LocalServer
from heddle.cli.main import run
from heddle.cli.tracked import as_json, line_of, trackers_of
from heddle.clock import ManualClock
from heddle.consumers.curve_file import CURVE, ENDED, CurveFile
from heddle.consumers.tracking import make, tracker
from heddle.consumers.tracking.crew import Crew
from heddle.consumers.tracking.folder import CUT_SHORT, GRACE_S, RunFolder
from heddle.consumers.tracking.make import make_backend, subject_of
from heddle.consumers.tracking.tracker import Told, Tracker
from heddle.errors import Conflict, Gone
from heddle.spec import load_spec
from heddle.spec.tracking import Mlflow, Track, Wandb
from heddle.stop import StopFlag
from tests.e2e.shell import ROOT, Started, heddle, started
from tests.fixtures import on_valkey
from tests.helpers import eventually
from tests.tracking_kit import (
    Training,
    curve_in_mlflow,
    every_step,
    items_of_wandb,
    memory_at,
    mlflow_run,
    needs,
    rows_of_wandb,
    sessions_of_wandb,
    shown_by_tensorboard,
    steps_in_mlflow,
    written_for_tensorboard,
)
from tests.trainer_kit import SPEC

pytestmark = pytest.mark.timeout(400)
"""Loading MLflow or W&B alone takes a minute where many processes share the machine."""
SOAK = bool(os.environ.get("HEDDLE_SOAK"))
KILLS = 30 if SOAK else 1
COMMIT = "0123456789abcdef0123456789abcdef01234567"
soak = pytest.mark.skipif(not SOAK, reason="loads MLflow or W&B in processes again and again: HEDDLE_SOAK=1, make soak")


@pytest.fixture(autouse=True)
def somewhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow puts a run's files beside whoever asks it, where its store says nothing of them."""
    monkeypatch.chdir(tmp_path)


broker = on_valkey


@pytest.fixture(scope="session")
def store_made_before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MLflow's store with its tables, which take MLflow seconds to make."""
    needs("mlflow", "sqlalchemy")
    from mlflow.tracking import MlflowClient

    path = tmp_path_factory.mktemp("mlflow") / "ml.db"
    MlflowClient(tracking_uri=f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def store(store_made_before: Path, tmp_path: Path) -> str:
    """The address of an empty one."""
    shutil.copy(store_made_before, tmp_path / "ml.db")
    return f"sqlite:///{tmp_path}/ml.db"


@pytest.fixture
def training(broker: Broker) -> Training:
    return Training(broker)


def behind(training: Training) -> int | None:
    """How many entries the only tracker has not dealt with."""
    found = training.broker.trackers.all(training.id)
    return found[0].behind if found else None


def curve(updates: int, value: Callable[[int], float]) -> list[tuple[int, float]]:
    """(step, value) of updates 1 to that one."""
    return [(10 * update, value(update)) for update in range(1, updates + 1)]


class Feeding:
    """A tracker in a thread of this process.

    Attributes:
        told: how far it came; None while it runs.
    """

    def __init__(self, training: Training, kind: str, track: Track, *, directory: Path | None = None) -> None:
        backend = make_backend(kind, track, subject_of(training.broker, training.id))
        self.stop = StopFlag()
        self.tracker = Tracker(training.broker, training.id, backend, stop=self.stop, directory=directory)
        self.told: Told | None = None
        self.error: Exception | None = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.told = self.tracker.run()
        except (Conflict, Gone) as error:
            self.error = error

    def ends(self, timeout_s: float = 60.0) -> Told:
        """Wait until it has ended."""
        self.thread.join(timeout_s)
        assert self.told is not None, self.error
        return self.told

    def leaves(self) -> Told:
        """Ask it to end, and wait."""
        self.stop.drain("test")
        return self.ends()


def size_of(folder: Path) -> int:
    """Bytes of all event files in a folder."""
    return sum(path.stat().st_size for path in folder.glob("events.*"))


def has_grown(folder: Path, before: int) -> bool:
    """Whether points were written since there were so many bytes."""
    return size_of(folder) > before + 1000


def kill(one: Started) -> None:
    os.kill(one.pid, signal.SIGKILL)
    one.process.wait()


def test_tensorboard_has_every_point_once_however_often_the_tracker_is_killed(
    training: Training, valkey_server: LocalServer, tmp_path: Path
) -> None:
    needs("tensorboardX", "tensorboard")
    folder = tmp_path / "tb" / training.id
    chance = np.random.default_rng(7)
    # Given a tracker that is killed at some moment while points come, again and again
    for _ in range(KILLS):
        training.updates(20)
        before = size_of(folder)
        with started("track", training.id, "--tensorboard", "tb", cwd=tmp_path, url=valkey_server.url) as one:
            eventually(partial(has_grown, folder, before), timeout_s=90)
            training.updates(int(chance.integers(1, 40)))
            kill(one)
    # When the next one is left alone until the experiment is over
    training.updates(5)
    training.end()
    done = heddle("track", training.id, "--tensorboard", "tb", cwd=tmp_path, url=valkey_server.url, timeout_s=300)
    # Then no point is missing, and none is in the files twice
    assert f"tensorboard: {training.id} to {folder}" in done.stdout
    assert written_for_tensorboard(folder) == every_step(training.update)
    assert shown_by_tensorboard(folder) == [(10 * n, float(n)) for n in range(1, training.update + 1)]
    assert shown_by_tensorboard(folder, "system/rss_bytes") == curve(training.update, memory_at)
    assert behind(training) == 0


def test_a_frozen_tracker_holds_nothing_up_and_catches_up(
    training: Training, valkey_server: LocalServer, tmp_path: Path
) -> None:
    needs("tensorboardX", "tensorboard")
    folder = tmp_path / "tb" / training.id
    training.updates(3)
    with started("track", training.id, "--tensorboard", "tb", cwd=tmp_path, url=valkey_server.url) as one:
        eventually(lambda: len(written_for_tensorboard(folder)) == 3, timeout_s=60)
        # Given a tracker that is stopped
        os.kill(one.pid, signal.SIGSTOP)
        # When the trainer goes on
        training.updates(300)
        assert len(written_for_tensorboard(folder)) == 3
        os.kill(one.pid, signal.SIGCONT)
        # Then it has everything soon
        eventually(lambda: len(written_for_tensorboard(folder)) == 303, timeout_s=60)
        training.end()
        assert one.ends() == 0
    assert written_for_tensorboard(folder) == every_step(303)


def test_what_was_rolled_back_leaves_the_curves_of_tensorboard(training: Training, tmp_path: Path) -> None:
    needs("tensorboardX", "tensorboard")
    folder, track = tmp_path / training.id, Track(tensorboard=str(tmp_path))
    # Given a tracker that has updates which a new trainer takes back
    training.updates(10)
    feeding = Feeding(training, "tensorboard", track)
    eventually(lambda: len(written_for_tensorboard(folder)) == 10, timeout_s=30)
    training.roll_back(6)
    training.updates(3, value=-1.0)
    training.end()
    # Then TensorBoard draws what was measured anew, and nothing of what was not
    told = feeding.ends()
    assert (told.rolled_back, told.done) == (1, True)
    fresh = [(70, -1.0), (80, -1.0), (90, -1.0)]
    assert shown_by_tensorboard(folder) == [(10 * n, float(n)) for n in range(1, 7)] + fresh


def test_a_roll_back_that_no_tracker_saw_is_seen_by_the_next_one(training: Training, tmp_path: Path) -> None:
    needs("tensorboardX", "tensorboard")
    folder, track = tmp_path / training.id, Track(tensorboard=str(tmp_path))
    training.updates(10)
    feeding = Feeding(training, "tensorboard", track)
    eventually(lambda: len(written_for_tensorboard(folder)) == 10, timeout_s=30)
    feeding.leaves()
    training.roll_back(4)
    training.updates(1, value=-1.0)
    training.end()
    assert Feeding(training, "tensorboard", track).ends().rolled_back == 1
    assert shown_by_tensorboard(folder) == [(10, 1.0), (20, 2.0), (30, 3.0), (40, 4.0), (50, -1.0)]


def test_files_that_were_deleted_are_written_anew(training: Training, tmp_path: Path) -> None:
    needs("tensorboardX", "tensorboard")
    folder, track = tmp_path / training.id, Track(tensorboard=str(tmp_path))
    training.updates(5)
    feeding = Feeding(training, "tensorboard", track)
    eventually(lambda: behind(training) == 0, timeout_s=30)
    feeding.leaves()
    for path in folder.iterdir():
        path.unlink()
    training.end()
    Feeding(training, "tensorboard", track).ends()
    assert written_for_tensorboard(folder) == every_step(5)


def test_a_broker_that_forgot_the_group_has_nothing_written_twice(training: Training, tmp_path: Path) -> None:
    needs("tensorboardX", "tensorboard")
    folder, track = tmp_path / training.id, Track(tensorboard=str(tmp_path))
    training.updates(5)
    feeding = Feeding(training, "tensorboard", track)
    eventually(lambda: len(written_for_tensorboard(folder)) == 5, timeout_s=30)
    (group,) = training.broker.conn.main.xinfo_groups(keys.metrics(training.id))
    training.broker.conn.main.xgroup_destroy(keys.metrics(training.id), group["name"])
    training.updates(2)
    training.end()
    feeding.ends()
    assert written_for_tensorboard(folder) == every_step(7)


def test_what_the_stream_let_go_of_is_missed_and_counted(training: Training, tmp_path: Path) -> None:
    needs("tensorboardX", "tensorboard")
    folder, track = tmp_path / training.id, Track(tensorboard=str(tmp_path))
    training.updates(3)
    feeding = Feeding(training, "tensorboard", track)
    eventually(lambda: len(written_for_tensorboard(folder)) == 3, timeout_s=30)
    # Given that the stream is cut before the tracker reads on: in one step, as the cap does
    pipe = training.broker.conn.main.pipeline(transaction=True)
    for update in range(4, 9):
        pipe.xadd(keys.metrics(training.id), {"update": update, "values": json.dumps({"env_steps": update * 10})})
    pipe.xtrim(keys.metrics(training.id), maxlen=1, approximate=False)
    pipe.execute()
    training.end()
    assert feeding.ends().missed == 4
    assert written_for_tensorboard(folder, "rl/env_steps")[-1] == 80


@soak
def test_mlflow_has_every_point_once_with_a_kill_between(
    training: Training, valkey_server: LocalServer, tmp_path: Path, store: str
) -> None:
    checkpoints = tmp_path / "runs" / training.id / "checkpoints"
    checkpoints.mkdir(parents=True)
    (checkpoints / "best.safetensors").write_bytes(b"weights")
    # Given a tracker that is killed while it sends
    training.updates(5)
    with started("track", training.id, "--mlflow", store, cwd=tmp_path, url=valkey_server.url) as one:
        eventually(lambda: behind(training) == 0, timeout_s=100, what="MLflow made its tables and took the points")
        training.updates(40)
        kill(one)
    training.updates(3)
    training.end()
    heddle("track", training.id, "--mlflow", store, cwd=tmp_path, url=valkey_server.url, timeout_s=300)
    # Then
    assert steps_in_mlflow(store, training.id) == every_step(48)
    client, run = mlflow_run(store, training.id)
    assert run.info.status == "FINISHED"
    assert run.data.params["env.id"] == "CartPole-v1"
    assert run.data.tags["heddle.ended"] == "completed: budget used"
    assert [one.path for one in client.list_artifacts(run.info.run_id, "checkpoint")] == ["checkpoint/best.safetensors"]


def test_what_a_kill_left_half_sent_is_not_in_mlflow_twice_beside_values_spec_version_and_checkpoint(
    training: Training, store: str, tmp_path: Path
) -> None:
    track = Track(mlflow=Mlflow(uri=store))
    training.made_of(code="9.8.7", commit=f"{COMMIT}-dirty", toml='[env]\nid = "CartPole-v1"')
    (tmp_path / training.id / "checkpoints").mkdir(parents=True)
    (tmp_path / training.id / "checkpoints" / "best.safetensors").write_bytes(b"weights")
    training.updates(4)
    feeding = Feeding(training, "mlflow", track)
    eventually(lambda: behind(training) == 0, timeout_s=60)
    feeding.leaves()
    # Given that points arrived there, and the word that they did was lost
    client, run = mlflow_run(store, training.id)
    client.set_tag(run.info.run_id, "heddle.recorded", training.broker.events.metrics_read(training.id)[1].entry_id)
    training.broker.conn.main.xgroup_setid(keys.metrics(training.id), _group(training), "0")
    training.end()
    Feeding(training, "mlflow", track, directory=tmp_path).ends()
    # Then each is there once, with its value, of learning and of the machinery
    assert curve_in_mlflow(store, training.id, "rl/return") == curve(4, float)
    assert curve_in_mlflow(store, training.id, "system/rss_bytes") == curve(4, memory_at)
    # And what tells of the run: its spec, whose code it was, how it ended, and its checkpoint
    client, run = mlflow_run(store, training.id)
    assert run.info.status == "FINISHED"
    params = {"env.id": "CartPole-v1", "rollout.steps": "4", "faults.lease_ttl": "0.5", "trainer.minibatch": "8"}
    assert {name: run.data.params[name] for name in params} == params
    tags = {
        "heddle.code": "9.8.7",
        "heddle.commit": f"{COMMIT}-dirty",
        "mlflow.source.git.commit": COMMIT,
        "mlflow.note.content": '    [env]\n    id = "CartPole-v1"',
        "heddle.ended": "completed: budget used",
    }
    assert {name: run.data.tags[name] for name in tags} == tags
    assert [one.path for one in client.list_artifacts(run.info.run_id, "checkpoint")] == ["checkpoint/best.safetensors"]
    (tmp_path / "back").mkdir()
    kept = client.download_artifacts(run.info.run_id, "checkpoint/best.safetensors", str(tmp_path / "back"))
    assert Path(kept).read_bytes() == b"weights"


def _group(training: Training) -> str:
    (group,) = training.broker.conn.main.xinfo_groups(keys.metrics(training.id))
    return str(group["name"].decode())


def test_a_tracker_that_is_away_is_tried_again_and_then_has_everything(
    training: Training, tmp_path: Path, store_made_before: Path
) -> None:
    home = tmp_path / "not-there-yet"
    uri = f"sqlite:///{home}/ml.db"
    home.write_text("a file is no folder")
    training.updates(5)
    # Given MLflow's store, which cannot be opened
    feeding = Feeding(training, "mlflow", Track(mlflow=Mlflow(uri=uri)))
    eventually(lambda: feeding.tracker.told.trouble, timeout_s=60)
    training.updates(5)
    # When it can
    home.unlink()
    home.mkdir()
    shutil.copy(store_made_before, home)
    training.end()
    # Then
    told = feeding.ends(100)
    assert (told.trouble, told.done) == ("", True)
    assert steps_in_mlflow(uri, training.id) == every_step(10)


def test_wandb_offline_has_each_update_once_over_two_sessions_with_values_spec_version_and_checkpoint(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs("wandb")
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "staged"))
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cached"))
    track = Track(wandb=Wandb(project="p", mode="offline", dir=str(tmp_path)))
    training = Training(broker, experiment={"name": "told", "group": "arms", "tags": ["first", "second"]})
    training.made_of(code="9.8.7", commit=f"{COMMIT}-dirty", toml="[env]")
    (tmp_path / training.id / "checkpoints").mkdir(parents=True)
    (tmp_path / training.id / "checkpoints" / "best.safetensors").write_bytes(b"weights")
    training.updates(5)
    Feeding(training, "wandb", track, directory=tmp_path).leaves()
    training.updates(2)
    training.end()
    assert Feeding(training, "wandb", track, directory=tmp_path).ends().done
    # Then each update has its row, of learning and of the machinery, at the moment at which it was measured
    assert rows_of_wandb(tmp_path, training.id) == list(range(1, 8))
    sessions = sessions_of_wandb(tmp_path, training.id)
    rows = [items_of_wandb(row.item) for session in sessions for row in session["history"]]
    assert [(row["env_steps"], row["rl/return"]) for row in rows] == curve(7, float)
    assert [(row["env_steps"], row["system/rss_bytes"]) for row in rows] == curve(7, memory_at)
    measured = [float(one.entry_id.partition("-")[0]) / 1000 for one in broker.events.metrics_read(training.id)]
    assert [row["_timestamp"] for row in rows] == pytest.approx(measured, abs=1e-3)
    # And each session's run the spec, whose code it was, and where it belongs
    spec = json.loads(broker.experiments.spec(training.id).json)
    made_of = {"code": "9.8.7", "commit": f"{COMMIT}-dirty", "toml": "[env]"}
    for one in (session["run"][0] for session in sessions):
        config = items_of_wandb(one.config.update)
        assert {name: config[name] for name in spec} == spec and config["heddle"] == made_of
        assert (one.run_id, one.display_name, one.project) == (training.id, training.id, "p")
        assert (one.run_group, list(one.tags)) == ("arms", ["first", "second"])
    # And the last one how it ended, with the checkpoint
    first, last = sessions
    assert not first["artifact"]
    (artifact,) = last["artifact"]
    assert (artifact.name, artifact.type) == (f"checkpoint-{training.id}", "model")
    (file,) = artifact.manifest.contents
    assert (file.path, file.size) == ("best.safetensors", len(b"weights"))
    assert file.digest == base64.b64encode(hashlib.md5(b"weights", usedforsecurity=False).digest()).decode()
    summary = items_of_wandb(item for one in last["summary"] for item in one.update)
    assert summary["ended"] == "completed: budget used"
    assert [one.exit_code for one in last["exit"]] == [0]


@soak
def test_wandb_offline_has_a_row_for_each_update_once_with_a_kill_between(
    training: Training, valkey_server: LocalServer, tmp_path: Path
) -> None:
    needs("wandb")
    words = ("track", training.id, "--wandb", "p", "--wandb-mode", "offline")
    home = tmp_path / "runs"
    # Given a tracker that is killed with rows that W&B has not written yet
    training.updates(30)
    with started(*words, cwd=tmp_path, url=valkey_server.url) as one:
        eventually(lambda: len(rows_of_wandb(home, training.id)) >= 20, timeout_s=240)
        training.updates(30)
        kill(one)
    on_disk = len(rows_of_wandb(home, training.id))
    training.updates(3)
    training.end()
    done = heddle(*words, cwd=tmp_path, url=valkey_server.url, timeout_s=300)
    # Then the run's files together have every row, and none twice
    assert f"wandb: {training.id} to p, offline" in done.stdout
    assert on_disk < 63
    assert rows_of_wandb(home, training.id) == list(range(1, 64))


def test_one_tracker_that_is_away_keeps_no_other_from_going_on_and_tells_no_credential(
    training: Training, valkey_server: LocalServer, tmp_path: Path
) -> None:
    needs("mlflow", "tensorboardX", "tensorboard")
    # Given a spec with two trackers, one of which cannot be reached, and credentials in the environment
    away = {"MLFLOW_TRACKING_URI": "http://anna:hunter2@127.0.0.1:9", "WANDB_API_KEY": "k" * 40}
    where = {"tensorboard": "tb", "mlflow": {"experiment": "x"}}
    other = Training(training.broker, experiment={"name": "other"}, track=where)
    other.updates(5)
    with started("track", other.id, cwd=tmp_path, url=valkey_server.url, extra=away) as one:
        # Then the other one has its points, and says so when it is told to end
        eventually(lambda: len(written_for_tensorboard(tmp_path / "tb" / other.id)) == 5, timeout_s=60)
        one.says("mlflow takes nothing, trying on", timeout_s=100)
        one.interrupt()
        assert one.ends() == 130
    assert "the same command goes on from here" in one.output()
    # And nobody learns the credentials
    everything = one.output() + _all_of(other.broker)
    assert "trouble" in everything
    assert "hunter2" not in everything and "anna" not in everything and "kkkkkkkk" not in everything


def _all_of(broker: Broker) -> str:
    """Everything in the broker that is text."""
    main, found = broker.conn.main, []
    for key in main.scan_iter():
        kind = main.type(key)
        found.append(str(main.hgetall(key) if kind == b"hash" else main.xrange(key) if kind == b"stream" else key))
    return "".join(found)


@pytest.mark.parametrize("uri", ["http://anna:hunter2@host:5000", "https://anna@host"])
def test_a_spec_with_a_password_is_refused_without_showing_it(
    uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = '[experiment]\nname = "a"\n[env]\nid = "CartPole-v1"\n[budget]\nenv_steps = 9\n'
    (tmp_path / "exp.toml").write_text(f'{text}[track]\nmlflow = "{uri}"\n')
    assert run(["validate", str(tmp_path / "exp.toml")]) == 3
    said = capsys.readouterr()
    assert "MLFLOW_TRACKING_PASSWORD" in said.err + said.out
    assert "hunter2" not in said.err + said.out and "anna" not in said.err + said.out


def test_a_key_in_a_spec_is_refused_without_showing_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = '[experiment]\nname = "a"\n[env]\nid = "CartPole-v1"\n[budget]\nenv_steps = 9\n'
    (tmp_path / "exp.toml").write_text(f'{text}[track.wandb]\nproject = "p"\napi_key = "hunter2"\n')
    assert run(["validate", str(tmp_path / "exp.toml")]) == 3
    said = capsys.readouterr()
    assert "environment" in said.err + said.out and "hunter2" not in said.err + said.out


@pytest.mark.parametrize(
    ("option", "value", "extra"),
    [("--tensorboard", "tb", "tensorboard"), ("--wandb", "p", "wandb"), ("--mlflow", "sqlite:///m.db", "mlflow")],
)
def test_a_missing_library_is_told_with_what_to_install(
    training: Training,
    valkey_server: LocalServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    option: str,
    value: str,
    extra: str,
) -> None:
    monkeypatch.setitem(make.LIBRARIES, extra, "no_library_of_this_name")
    code = run(["track", training.id, option, value, "--redis-url", valkey_server.url])
    assert code == 2
    assert f"tracking with {extra} needs an optional dependency: pip install 'heddle-rl[{extra}]'" in (
        capsys.readouterr().err
    )


def test_an_experiment_without_trackers_is_told_how_to_name_one(
    training: Training, valkey_server: LocalServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["track", training.id, "--redis-url", valkey_server.url]) == 2
    assert "names no tracker: give --tensorboard DIR" in capsys.readouterr().err


def test_the_log_and_status_tell_of_a_trackers_start_its_death_and_its_trouble(
    training: Training, tmp_path: Path
) -> None:
    needs("tensorboardX", "tensorboard")
    home, broker = tmp_path / "tb", training.broker
    track = Track(tensorboard=str(home))
    backend = make_backend("tensorboard", track, subject_of(broker, training.id))
    name = Tracker(broker, training.id, backend, stop=StopFlag())._name
    training.updates(2)

    def told() -> list[tuple[str, str]]:
        events = broker.events.find(lambda one: one.role == "tracker", count=50)
        return [(event.level, event.message) for event in events if event.experiment == training.id]

    def lines() -> list[str]:
        return [line_of(one, broker.conn.now_ms()) for one in trackers_of(broker, training.id)]

    def shown() -> dict[str, Any]:
        (one,) = trackers_of(broker, training.id)
        return as_json(one, broker.conn.now_ms())

    # Given one that was killed: it said that it feeds the tracker, and nothing since
    assert broker.trackers.claim(training.id, name, "dead-1", told={"kind": "tensorboard"}, ttl_ms=1) is None
    eventually(lambda: "the last process ended without a word" in lines()[0], timeout_s=30)
    assert (shown()["fed_by"], shown()["done"]) == ("", False)
    # When another one comes, whose folder is a file
    home.write_text("no folder")
    feeding = Feeding(training, "tensorboard", track)
    eventually(lambda: feeding.tracker.told.trouble, timeout_s=60)
    # Then the log says both, and status what is wrong now
    assert ("warning", "tensorboard: goes on for tracker=dead-1, which ended without a word") in told()
    eventually(lambda: "takes nothing: " in lines()[0], timeout_s=30)
    assert shown()["trouble"] and shown()["fed_by"] not in ("", "dead-1")
    assert any(level == "warning" and "takes nothing, trying on" in message for level, message in told())
    # And when it can be written, that it is fed, and has everything
    home.unlink()
    eventually(lambda: any(message.startswith("feeds tensorboard") for _, message in told()), timeout_s=60)
    training.end()
    said = feeding.ends(60)
    assert told()[-1][1].endswith("has everything points=2") and "has everything" in lines()[0]
    # And programs are told of it as `track -o json` tells, with who feeds it beside
    assert shown() == {**asdict(said), "fed_by": "", "behind": 0}


def test_two_processes_never_feed_one_tracker(
    training: Training, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs("tensorboardX", "tensorboard")
    monkeypatch.setattr(tracker, "TTL_MS", 900)
    track = Track(tensorboard=str(tmp_path))
    training.updates(2)
    first = Feeding(training, "tensorboard", track)
    eventually(lambda: behind(training) == 0, timeout_s=30)
    # When a second one comes
    second = Feeding(training, "tensorboard", track)
    second.thread.join(30)
    # Then it is told who does it already, and the first goes on
    assert isinstance(second.error, Conflict) and "already" in str(second.error)
    training.updates(2)
    training.end()
    assert first.ends().points == 4


def a_folder(home: Path, updates: int, *, ended: bool = True) -> CurveFile:
    """A run's folder, as its trainer leaves it."""
    file = CurveFile(home, load_spec({**SPEC, "trainer": {}, "track": {"tensorboard": "tb"}}).spec.canonical_json())
    for update in range(1, updates + 1):
        file.add(update, {"return": float(update), "env_steps": 10.0 * update}, entry=f"{1000 + update}-0")
    if ended:
        file.end("completed", "budget used", {"return": 3.0})
    file.close()
    return file


def test_the_folder_of_a_run_gives_a_tracker_what_the_broker_would_and_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    needs("tensorboardX", "tensorboard")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEDDLE_REDIS_URL", raising=False)
    where = tmp_path / "tb" / "pole-1a2b3c"
    # Given a run that was cut short, its broker gone
    file = a_folder(Path("runs/pole-1a2b3c"), 6, ended=False)
    assert run(["track", "runs/pole-1a2b3c"]) == 0
    assert written_for_tensorboard(where) == every_step(6)
    # When it went on elsewhere: some was rolled back and measured anew
    file.forget(above=4)
    file.add(5, {"return": -1.0, "env_steps": 50.0}, entry="2000-0")
    file.end("completed", "budget used", {})
    # Then its id alone finds the folder, and the curve is what was measured
    assert run(["track", "pole-1a2b3c", "-o", "json"]) == 0
    said = capsys.readouterr().out
    (told,) = json.loads(said[said.index("{") :])["trackers"]
    assert (told["points"], told["rolled_back"], told["done"]) == (1, 1, True)
    assert shown_by_tensorboard(where) == [(10 * n, float(n)) for n in range(1, 5)] + [(50, -1.0)]


WRITER = """
import sys
from pathlib import Path
from heddle.consumers.curve_file import CurveFile
file = CurveFile(Path(sys.argv[1]), Path(sys.argv[1], "spec.json").read_text().strip())
for line in sys.stdin:
    what, *numbers = line.split()
    if what == "add":
        file.add(int(numbers[0]), {"return": float(numbers[1]), "env_steps": 10.0 * int(numbers[0])}, entry=numbers[2])
    elif what == "forget":
        file.forget(above=int(numbers[0]))
    else:
        file.end("completed", "budget used", {})
    print("done", flush=True)
"""


class Writer:
    """A trainer's process, as far as its curve file goes."""

    def __init__(self, home: Path) -> None:
        command = [sys.executable, "-c", WRITER, str(home)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def does(self, what: str) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


def test_the_folder_of_a_run_that_goes_on_is_followed_through_a_restart_to_its_end(tmp_path: Path) -> None:
    needs("tensorboardX", "tensorboard")
    home = tmp_path / "runs" / "pole-1a2b3c"
    where = tmp_path / "tb" / "pole-1a2b3c"
    # Given a run whose trainer is at work, and no broker
    a_folder(home, 2, ended=False)
    first = Writer(home)
    first.does("add 3 3.0 1003-0")
    told: list[Told] = []
    crew = Crew(
        lambda: RunFolder(home),
        "pole-1a2b3c",
        {"tensorboard": lambda: make_backend("tensorboard", Track(tensorboard="tb"), RunFolder(home).subject)},
        StopFlag(),
    )
    thread = threading.Thread(target=lambda: told.extend(crew.run()))
    thread.start()
    eventually(lambda: written_for_tensorboard(where) == every_step(3), timeout_s=60)
    # When that is killed and another one takes some back and goes on
    first.kill()
    second = Writer(home)
    second.does("forget 2")
    second.does("add 3 -1.0 2000-0")
    second.does("add 4 4.0 2001-0")
    shown = [(10, 1.0), (20, 2.0), (30, -1.0), (40, 4.0)]
    eventually(lambda: shown_by_tensorboard(where) == shown, timeout_s=60)
    assert thread.is_alive() and not told, "it goes on"
    # Then its end ends the tracker, with all of it
    second.does("end")
    thread.join(60)
    second.kill()
    assert told and (told[0].done, told[0].points, told[0].rolled_back) == (True, 5, 1)
    assert RunFolder(home).status("pole-1a2b3c").state == "completed"


def test_a_run_whose_trainer_is_gone_has_a_while_to_go_on_and_is_then_cut_short(tmp_path: Path) -> None:
    a_folder(tmp_path, 2, ended=False)
    clock = ManualClock()
    folder = RunFolder(tmp_path, clock=clock)
    assert folder.status("x").ended, "nobody was seen at work"
    writer = Writer(tmp_path)
    writer.does("add 3 3.0 1003-0")
    assert not folder.status("x").ended
    writer.kill()
    clock.advance(GRACE_S - 1)
    assert not folder.status("x").ended
    clock.advance(1.0)
    assert (folder.status("x").ended, folder.status("x").reason) == (True, CUT_SHORT)


def test_a_run_that_goes_on_after_its_end_is_not_over(tmp_path: Path) -> None:
    a_folder(tmp_path, 2)
    assert RunFolder(tmp_path).status("x").state == "completed"
    writer = Writer(tmp_path)
    writer.does("add 3 3.0 1003-0")
    assert RunFolder(tmp_path).status("x").state == "running"
    writer.kill()
    assert RunFolder(tmp_path).status("x").reason == CUT_SHORT


def test_a_last_word_that_is_only_half_written_is_none_yet(tmp_path: Path) -> None:
    # Given a run that goes on, and the file of its end as an older version begins to write it
    file = a_folder(tmp_path, 1, ended=False)
    file.add(2, {"return": 2.0}, entry="1002-0")
    (tmp_path / ENDED).write_text("")
    # Then it goes on until that word is there
    assert RunFolder(tmp_path).status("x").state == "running"
    file.end("completed", "budget used", {})
    assert RunFolder(tmp_path).status("x").state == "completed"


def test_a_folder_that_is_removed_while_it_is_followed_is_told_as_gone(tmp_path: Path) -> None:
    home = tmp_path / "pole-1a2b3c"
    a_folder(home, 1)
    followed = RunFolder(home)
    shutil.rmtree(home)
    with pytest.raises(Gone, match=CURVE):
        followed.read("x", "tensorboard", count=1, block_ms=0)


def test_a_folder_without_ids_of_entries_is_refused_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "pole-1a2b3c"
    a_folder(home, 1).add(2, {"return": 1.0})
    assert run(["track", str(home), "--tensorboard", str(tmp_path / "tb")]) == 4
    assert "was left by an older version, which kept too little for trackers" in capsys.readouterr().err


def test_an_experiment_that_is_removed_ends_its_trackers(training: Training, tmp_path: Path) -> None:
    needs("tensorboardX", "tensorboard")
    training.updates(2)
    feeding = Feeding(training, "tensorboard", Track(tensorboard=str(tmp_path)))
    eventually(lambda: behind(training) == 0, timeout_s=30)
    training.broker.experiments.remove(training.id, force=True)
    feeding.thread.join(30)
    assert isinstance(feeding.error, Gone)
    assert not [key for key in training.broker.conn.main.scan_iter() if training.id.encode() in key]


def test_a_spec_without_trackers_reads_as_it_did_before_there_were_any() -> None:
    from heddle.spec import load_spec

    text = '[experiment]\nname = "a"\n[env]\nid = "CartPole-v1"\n[budget]\nenv_steps = 9\n'
    assert "track" not in load_spec(text).spec.canonical_json()
    tracked = load_spec(text + '[track]\ntensorboard = "tb"\nwandb = "p"\nmlflow = "sqlite:///m.db"\n').spec
    assert tracked.track == Track(tensorboard="tb", wandb=Wandb(project="p"), mlflow=Mlflow(uri="sqlite:///m.db"))
    assert '"tensorboard":"tb"' in tracked.canonical_json()
