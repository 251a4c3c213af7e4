"""What users' code prints, wherever it runs, is in the log that everybody reads, and in the JSON of a service."""

import json
from pathlib import Path

import pytest

from heddle.broker.server import start_server
from tests.e2e.shell import heddle, started
from tests.helpers import eventually

pytestmark = pytest.mark.skipif(not Path("/proc").is_dir(), reason="children are looked for in /proc")

CODE = """
import os
import gymnasium


class Arm(gymnasium.Wrapper):
    def reset(self, **kwargs):
        print("arm is at rest", flush=True)
        os.write(2, b"motor says hello\\n")
        return super().reset(**kwargs)


def make(env_index):
    return Arm(gymnasium.make("CartPole-v1"))
"""
LEARNER = """
from heddle.consumers.learners.none import NoLearner


class Loud(NoLearner):
    def update(self, *args, **kwargs):
        print("gradients look fine", flush=True)
        return super().update(*args, **kwargs)
"""
SPEC = """
[experiment]
name = "arms"
[env]
id = "arms:make"
num_envs = 2
envs_per_shard = 1
{how}
[policy]
hidden = [8]
[rollout]
steps = 16
[trainer]
learner = "loud:Loud"
[budget]
env_steps = 100_000_000
"""


def heard(*, cwd: Path, url: str) -> dict[str, set[str]]:
    """What the log has of user code, by who printed it, "trainer" or "worker"; {} before there is an experiment."""
    asked = heddle("logs", "arms", "--role", "user", "-n", "1000", "-o", "json", cwd=cwd, url=url, code=None)
    if asked.returncode == 4:
        return {}
    lines = json.loads(asked.stdout)["lines"]
    found: dict[str, set[str]] = {}
    for line in lines:
        found.setdefault("trainer" if line["worker"] == "trainer" else "worker", set()).add(line["message"])
    return found


def hears_all(*, cwd: Path, url: str) -> bool:
    found = heard(cwd=cwd, url=url)
    environments = {"arm is at rest", "motor says hello"} <= found.get("worker", set())
    return environments and "gradients look fine" in found.get("trainer", set())


def written(folder: Path, how: str) -> None:
    (folder / "arms.py").write_text(CODE)
    (folder / "loud.py").write_text(LEARNER)
    (folder / "exp.toml").write_text(SPEC.format(how=how))


def test_environments_in_a_child_and_a_learner_are_heard_in_a_run(tmp_path: Path) -> None:
    written(tmp_path, 'isolation = "process"')
    with (
        start_server(tmp_path / "broker") as server,
        started("run", "exp.toml", "--no-check", "-n", "1", cwd=tmp_path, url=server.url) as run,
    ):
        eventually(lambda: hears_all(cwd=tmp_path, url=server.url), timeout_s=90, every_s=0.5)
        run.says("motor says hello", timeout_s=30)
        run.interrupt()
        assert run.ends(timeout_s=90) == 130


def test_prints_in_a_supervised_worker_say_which_shard_was_played_where_that_is_known(tmp_path: Path) -> None:
    # Given a worker that plays two shards in its own process
    written(tmp_path, "")
    with (
        start_server(tmp_path / "broker") as server,
        started("run", "exp.toml", "--no-check", "-n", "1", cwd=tmp_path, url=server.url) as run,
    ):
        told: dict[str, set[int | None]] = {}

        def look() -> bool:
            asked = heddle(
                "logs", "arms", "--role", "user", "-n", "1000", "-o", "json", cwd=tmp_path, url=server.url, code=None
            )
            for line in json.loads(asked.stdout)["lines"] if asked.returncode == 0 else []:
                if line["worker"] != "trainer":
                    told.setdefault(line["message"], set()).add(line["shard"])
                    assert (line["shard"] is None) == (line["epoch"] is None)
            return told.get("arm is at rest", set()) >= {0, 1} and "motor says hello" in told

        # Then a line that Python code printed says which, and of one that native code did nobody knows
        eventually(look, timeout_s=90, every_s=0.5)
        assert told["arm is at rest"] == {0, 1} and told["motor says hello"] == {None}
        run.interrupt()
        assert run.ends(timeout_s=90) == 130


def test_a_service_says_everything_as_json_with_experiment_worker_shard_and_epoch(tmp_path: Path) -> None:
    written(tmp_path, 'stepping = "processes"\nprocesses = 1')
    with start_server(tmp_path / "broker") as server:
        as_json = {"HEDDLE_LOG": "json"}
        with started("up", "-n", "1", cwd=tmp_path, url=server.url, extra=as_json, errors_apart=True) as up:
            experiment = heddle("enqueue", "exp.toml", "--no-check", cwd=tmp_path, url=server.url).stdout.strip()
            eventually(lambda: hears_all(cwd=tmp_path, url=server.url), timeout_s=90, every_s=0.5)
            up.says("gradients look fine", timeout_s=30)
            up.says("motor says hello", timeout_s=30)
            up.interrupt()
            up.ends(timeout_s=90)
        told = [json.loads(line) for line in up.output().splitlines()]
    printed = [line for line in told if line["logger"] == "heddle.printed"]
    (arm, *_) = [line for line in printed if line["message"] == "motor says hello"]
    (learner, *_) = [line for line in printed if line["message"] == "gradients look fine"]
    (claim, *_) = [line for line in told if line["message"].startswith("claimed shard=")]
    assert arm["experiment"] == learner["experiment"] == claim["experiment"] == experiment
    claims = [line for line in told if line["message"].startswith("claimed shard=")]
    assert (arm["worker"], arm["shard"], arm["epoch"]) in {(c["worker"], c["shard"], c["epoch"]) for c in claims}
    assert {"heddle.coordinator", "heddle.supervisor", "heddle.trainers", "heddle.trainer"} <= {
        line["logger"] for line in told
    }
    # And so is every other line, not these alone
    bound = {"heddle.worker": ("worker",), "heddle.trainer": ("experiment",)}
    assert not [line for line in told if any(not line.get(name) for name in bound.get(line["logger"], ()))]
    about = [line for line in told if "shard=" in line["message"]]
    assert about and not [line for line in about if not {"experiment", "shard", "epoch"} <= line.keys()]


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_worker_and_a_trainer_that_nobody_supervises_are_heard_too(tmp_path: Path, form: str) -> None:
    written(tmp_path, 'isolation = "process"' if form == "json" else "")
    as_form = {"HEDDLE_LOG": form}
    with start_server(tmp_path / "broker") as server:
        url = server.url
        experiment = heddle("enqueue", "exp.toml", "--no-check", cwd=tmp_path, url=url).stdout.strip()
        with (
            started("coordinator", cwd=tmp_path, url=url),
            started("worker", cwd=tmp_path, url=url, extra=as_form) as worker,
            started("trainer", experiment, cwd=tmp_path, url=url, extra=as_form) as trainer,
        ):
            eventually(lambda: printed(cwd=tmp_path, url=url), timeout_s=90, every_s=0.5)
            worker.says("arm is at rest", timeout_s=30)
            trainer.says("gradients look fine", timeout_s=30)


def printed(*, cwd: Path, url: str) -> bool:
    """What Python code prints is there; what native code does only where its environments are in a child."""
    found = heard(cwd=cwd, url=url)
    return "arm is at rest" in found.get("worker", set()) and "gradients look fine" in found.get("trainer", set())


HANGS = """
import os
import threading
import gymnasium


class Arm(gymnasium.Wrapper):
    def step(self, action):
        if "HANGS" in os.environ:  # in a worker, and not where the trainer looks at its spaces
            print("reaching for the cup", end="")
            threading.Event().wait()
        return super().step(action)


def make(env_index):
    return Arm(gymnasium.make("CartPole-v1"))
"""


@pytest.mark.parametrize("form", ["text", "json"])
def test_the_last_words_of_an_environment_that_hangs_are_told_when_its_worker_is_ended_for_it(
    tmp_path: Path, form: str
) -> None:
    # Given a worker that nobody supervises, and an environment that begins a line and never comes back
    written(tmp_path, "step_timeout = 1")
    (tmp_path / "arms.py").write_text(HANGS)
    with start_server(tmp_path / "broker") as server:
        url = server.url
        experiment = heddle("enqueue", "exp.toml", "--no-check", cwd=tmp_path, url=url).stdout.strip()
        with (
            started("coordinator", cwd=tmp_path, url=url),
            started("trainer", experiment, cwd=tmp_path, url=url),
            started("worker", cwd=tmp_path, url=url, extra={"HEDDLE_LOG": form, "HANGS": "1"}) as worker,
        ):
            # When its watchdog ends it
            assert worker.ends(timeout_s=90) == 70
            # Then what was begun is in its output and in the log
            assert "reaching for the cup" in worker.output()
            assert "reaching for the cup" in heard(cwd=tmp_path, url=url)["worker"]
