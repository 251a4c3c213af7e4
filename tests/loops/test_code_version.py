"""The commit of a submitter's own code, from the folder it was submitted in to every place that tells of the run."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from heddle.broker import Broker, keys
from heddle.broker.server import LocalServer
from heddle.cli.plot import _difference_table
from heddle.cli.series import find, grouped, told_differences
from heddle.client import Client
from heddle.consumers.curve_file import ORIGIN, CurveFile, read_origin
from heddle.consumers.tracking.folder import RunFolder
from heddle.consumers.tracking.make import make_backend, subject_of
from heddle.consumers.tracking.tensorboard import TensorBoard
from heddle.spec.tracking import Track
from heddle.version import __version__
from tests.fixtures import on_valkey
from tests.helpers import eventually
from tests.loops.test_cli_broker import SPEC, Say, client, say
from tests.tracking_kit import needs
from tests.trainer_kit import Fleet, saved, submit, trainers
from tests.unit.test_origin import git, repository

__all__ = ["client", "repository", "say"]
pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="there is no git here")

broker = on_valkey
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def made_of(broker: Broker, commit: str) -> str:
    """An experiment that was submitted from there."""
    made = submit(broker)
    broker.conn.main.hset(keys.spec(made), mapping={"code": __version__, "commit": commit})
    return made


def test_status_tells_which_commit_an_experiment_was_submitted_from(
    say: Say, broker: Broker, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a folder in a repository, with a change
    commit = git(repository, "rev-parse", "HEAD").strip()
    (repository / "arms.py").write_text("two\n")
    monkeypatch.chdir(repository / "experiments")
    Path("exp.toml").write_text('[experiment]\nname = "on"\n[env]\nid = "CartPole-v1"\n[budget]\nenv_steps = 1000\n')
    # When an experiment is submitted there, as one and as a sweep
    one = say("enqueue", "exp.toml", "--no-check")[1].strip()
    swept = say("enqueue", "exp.toml", "--no-check", "--seeds", "2", "--name", "swept")[1].split()
    # Then status tells of both, with Heddle's own version beside
    for experiment in (one, *swept):
        told = json.loads(say("status", experiment, "-o", "json")[1])
        assert (told["code"], told["commit"]) == (__version__, f"{commit}-dirty")
    shown = say("status", one)[1]
    assert f"heddle {__version__}, own commit {commit[:12]}-dirty" in shown


def test_an_experiment_that_was_submitted_where_there_is_no_repository_has_none_and_says_nothing_of_it(
    say: Say, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    made = client.submit(SPEC).id
    assert json.loads(say("status", made, "-o", "json")[1])["commit"] == ""
    assert "commit" not in say("status", made)[1]


def test_a_trainer_leaves_it_in_its_checkpoints_and_in_the_runs_folder(
    broker: Broker, valkey_server: LocalServer, tmp_path: Path
) -> None:
    made = made_of(broker, f"{COMMIT}-dirty")
    fleet = Fleet(broker, made).claim_all()
    with trainers(valkey_server.url, tmp_path / made) as begin:
        begin(made)
        version = fleet.version()
        for shard in fleet.claims:
            fleet.give(shard, version)
        fleet.version(version + 1)
        found: Any = eventually(lambda: saved(tmp_path / made), timeout_s=60, what="a checkpoint")
        eventually(lambda: (tmp_path / made / ORIGIN).exists(), timeout_s=60, what="the folder's word")
    expected = {"code": __version__, "commit": f"{COMMIT}-dirty"}
    assert found.extra["origin"] == expected
    assert read_origin(tmp_path / made) == expected
    assert (subject := RunFolder(tmp_path / made).subject).commit == f"{COMMIT}-dirty" and subject.code == __version__


def test_compared_runs_tell_the_versions_in_which_they_differ_side_by_side_and_stay_one_setting(
    broker: Broker, client: Client, tmp_path: Path
) -> None:
    # Given two seeds of a setting from two commits, one of them only as a folder
    one = made_of(broker, COMMIT)
    broker.events.metrics_add(one, 1, {"return": 1.0, "env_steps": 8.0})
    home = tmp_path / "pole-1a2b3c"
    spec = broker.experiments.spec(one).json
    file = CurveFile(home, spec, {"code": __version__, "commit": f"{COMMIT[::-1]}-dirty"})
    file.add(1, {"return": 2.0, "env_steps": 8.0}, entry="1-0")
    file.close()
    series = [find(one, client), find(str(home), client)]
    # Then the row of commits is what differs
    assert told_differences(series) == {"commit": [COMMIT, f"{COMMIT[::-1]}-dirty"]}
    assert _difference_table(series)[1] == [("commit", COMMIT[:12], f"{COMMIT[::-1][:12]}-dirty")]
    assert len(grouped(series)) == 1
    assert told_differences(series[:1]) == told_differences([series[0], series[0]]) == {}


def test_trackers_and_recordings_are_told_it(
    say: Say, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs("tensorboardX", "tensorboard")
    made = made_of(broker, COMMIT)
    texts: dict[str, str] = {}
    monkeypatch.setattr(TensorBoard, "_text", lambda _, tag, markdown: texts.update({tag: markdown}))
    subject = subject_of(broker, made)
    make_backend("tensorboard", Track(tensorboard=str(tmp_path / "tb")), subject).open()
    assert texts["code version"] == f"heddle {__version__}, commit {COMMIT}"
    assert subject.origin == {"code": __version__, "commit": COMMIT, "toml": ""}
    # And a recording's provenance
    Fleet(broker, made).claim_all().give(0, 1)
    assert say("record-experience", made, "--to", "to", "--no-follow")[0] == 0
    told = json.loads(say("data", "show", "to", "-o", "json")[1])["provenance"]
    assert (told["code"], told["commit"]) == (__version__, COMMIT)
    assert f"by Heddle {__version__}, commit {COMMIT[:12]}" in say("data", "show", "to")[1]
