"""Trackers beside whole runs: fed by `run` and by `up`, killed on the way, late, and what they have in the end."""

import json
import os
import signal
from pathlib import Path

from tests.e2e.shell import heddle, heddle_json, process_of, started
from tests.helpers import eventually
from tests.tracking_kit import needs, shown_by_tensorboard, written_for_tensorboard

SPEC = """
[experiment]
name = "told"
[env]
id = "CartPole-v1"
num_envs = 4
envs_per_shard = 2
[rollout]
steps = 16
sync = true
[trainer]
learner = "ppo"
passes = 2
[budget]
env_steps = {steps}
[track]
{track}
"""


def a_spec(folder: Path, *, steps: int, track: str = 'tensorboard = "tb"') -> None:
    (folder / "exp.toml").write_text(SPEC.format(steps=steps, track=track))


def kill_tracker(folder: Path) -> None:
    pid = eventually(lambda: process_of(folder, "heddle track"), timeout_s=30)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


def measured(folder: Path, experiment: str) -> list[tuple[int, float]]:
    """(steps, return) of every update, as the run left them."""
    lines = [json.loads(line) for line in (folder / "runs" / experiment / "metrics.jsonl").read_text().splitlines()]
    return [(int(one["env_steps"]), one["return"]) for one in lines if "return" in one]


def assert_told(folder: Path, experiment: str) -> None:
    """TensorBoard draws every update that was measured, each once."""
    expected, shown = measured(folder, experiment), shown_by_tensorboard(folder / "tb" / experiment)
    assert [step for step, _ in shown] == [step for step, _ in expected]
    assert [round(value, 3) for _, value in shown] == [round(value, 3) for _, value in expected]
    assert written_for_tensorboard(folder / "tb" / experiment) == [step for step, _ in expected]


def test_a_run_and_its_tracker_end_together_with_everything_though_the_tracker_was_killed(tmp_path: Path) -> None:
    needs("tensorboardX", "tensorboard")
    a_spec(tmp_path, steps=6_400)
    # Given a run whose tracker is killed while points come
    with started("run", "exp.toml", "--workers", "2", cwd=tmp_path) as run:
        eventually(lambda: list(tmp_path.glob("tb/*/events.*")), timeout_s=120, what="the tracker writes")
        kill_tracker(tmp_path)
        # Then the run goes on, and ends well
        assert run.ends(timeout_s=240) == 0, run.output()
    assert "restarting trackers, because trackers ended with signal SIGKILL" in run.output()
    assert "has not everything" not in run.output()
    # And its curve is whole
    (home,) = (tmp_path / "runs").iterdir()
    assert_told(tmp_path, home.name)
    assert len(measured(tmp_path, home.name)) >= 90


def test_a_run_says_which_tracker_lacks_what_and_the_command_that_it_prints_brings_it(tmp_path: Path) -> None:
    needs("tensorboardX", "tensorboard")
    # Given a folder of event files that cannot be made
    a_spec(tmp_path, steps=640)
    (tmp_path / "tb").write_text("a file is no folder")
    with started("run", "exp.toml", "--workers", "1", cwd=tmp_path) as run:
        # When the run is over, and nobody wants to wait for the tracker
        run.says("its trackers have 25 s for what is left", timeout_s=120)
        run.interrupt()
        run.interrupt()
        assert run.ends(timeout_s=120) == 0, run.output()
    (home,) = (tmp_path / "runs").iterdir()
    said = run.output()
    assert "tensorboard has not everything: cannot write event files" in said
    assert f"\n  heddle track runs/{home.name}\n" in said
    # Then its server is gone, and what was printed gives the tracker everything all the same
    (tmp_path / "tb").unlink()
    done = heddle("track", f"runs/{home.name}", cwd=tmp_path)
    assert f"tensorboard: {home.name} to {tmp_path}/tb/{home.name}: 10 points" in done.stdout
    assert_told(tmp_path, home.name)
    # And again it is no second time
    again = heddle_json("track", f"runs/{home.name}", cwd=tmp_path)
    assert [(one["points"], one["done"]) for one in again["trackers"]] == [(0, True)]
    assert_told(tmp_path, home.name)


def test_up_feeds_the_trackers_of_what_is_enqueued_and_those_of_what_ended_before(tmp_path: Path) -> None:
    needs("tensorboardX", "tensorboard")
    a_spec(tmp_path, steps=6_400)
    with started("up", "--workers", "2", cwd=tmp_path) as services:
        services.says("heddle enqueue")
        # Given an experiment whose tracker is killed on the way
        first = heddle("enqueue", "exp.toml", cwd=tmp_path).stdout.split()[0]
        eventually(lambda: list(tmp_path.glob(f"tb/{first}/events.*")), timeout_s=120, what="the tracker writes")
        kill_tracker(tmp_path)
        heddle("wait", first, "--timeout", "200", cwd=tmp_path, timeout_s=240)
        # Then another one brings the rest
        eventually(lambda: f"tensorboard: {first} to" in services.output(), timeout_s=60, what="it is through")
        assert_told(tmp_path, first)
        # And services that end while a tracker is away
        tb = tmp_path / "tb"
        tb.rename(tmp_path / "before")
        tb.write_text("a file is no folder")
        second = heddle("enqueue", "exp.toml", cwd=tmp_path).stdout.split()[0]
        heddle("wait", second, "--timeout", "200", cwd=tmp_path, timeout_s=240)
        services.interrupt()
        assert services.ends(timeout_s=90) in (0, 130), services.output()
    # When they are started again
    tb.unlink()
    (tmp_path / "before").rename(tb)
    with started("up", "--workers", "0", cwd=tmp_path) as services:
        eventually(lambda: f"tensorboard: {second} to" in services.output(), timeout_s=90, what="it is through")
    # Then it has that one too, and the first one is as it was
    assert_told(tmp_path, second)
    assert_told(tmp_path, first)
