"""Everything killed with SIGKILL at once, the server too, again and again: the next start goes on where it was.

Each observation names the step that it was (`ledger_env`), and the learner remembers every step that it was trained on.
"""

import json
import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heddle import checkpoint as files
from heddle.broker import open_broker
from heddle.broker.server import find_running
from heddle.clock import SystemClock
from heddle.launch.cut_short import RUN_FILE
from tests.chaos.ledger_env import CHECKED
from tests.chaos.ledger_learner import NAME
from tests.chaos.manifest import Manifest, read_manifest
from tests.e2e.shell import heddle, heddle_json, process_of, processes_of, started
from tests.helpers import eventually

SOAK = bool(os.environ.get("HEDDLE_SOAK"))
KILLS = 20 if SOAK else 2
STEPS = 4_000 * KILLS
"""So many that no run is over before its last kill."""
LEVELS = ["strict", "fast"]
TAIL_UPDATES = 400
"""Updates that two seconds may hold, by far: what `fast` may forget."""
CLOCK = SystemClock()
pytestmark = pytest.mark.timeout(3_600 if SOAK else 400)


def spec(folder: Path, *, durability: str, steps: int) -> str:
    """Writes exp.toml; its name."""
    sections: dict[str, dict[str, Any]] = {
        "experiment": {"name": "whole"},
        "env": {"id": CHECKED, "num_envs": 4, "envs_per_shard": 2, "kwargs": {"step_s": 0.002}},
        "policy": {"hidden": [4]},
        "rollout": {"steps": 8, "max_policy_lag": 4},
        "trainer": {"learner": NAME, "batch_steps": 64, "minibatch": 8},
        "budget": {"env_steps": steps},
        "faults": {"lease_ttl": 1},
        "limits": {"durability": durability},
    }
    lines = []
    for section, content in sections.items():
        lines.append(f"[{section}]")
        lines += [f"{key} = {_toml(value)}" for key, value in content.items()]
    (folder / "exp.toml").write_text("\n".join(lines) + "\n")
    return "exp.toml"


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(inner)}" for key, inner in value.items()) + "}"
    return json.dumps(value)


def kill_all(folder: Path) -> None:
    """SIGKILL to everything that runs in `folder`, the server first, until nothing does."""
    server = process_of(folder, "-server")
    for pid in [server] if server is not None else []:
        os.kill(pid, signal.SIGKILL)
    while found := processes_of(folder):
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def newest(folder: Path) -> files.Checkpoint | None:
    """The newest whole checkpoint of the one experiment."""
    homes = list(folder.glob("runs/*/checkpoints"))
    return files.newest(homes[0]) if homes else None


def trained_past(folder: Path, update: int) -> None:
    """Wait until a checkpoint holds more than `update` updates."""
    eventually(
        lambda: (found := newest(folder)) is not None and found.update > update,
        timeout_s=60,
        every_s=0.02,
        what=f"an update above {update}",
    )


def manifest(folder: Path) -> Manifest:
    return read_manifest(files.listing(next(folder.glob("runs/*/checkpoints")))[0])


def curve(folder: Path, experiment: str) -> list[int]:
    """The updates of every point of the curve, in order."""
    url = find_running(folder / ".heddle")
    assert url is not None
    with open_broker(url, role="test") as broker:
        return [metric.update for metric in broker.events.metrics_read(experiment, count=100_000)]


def check_curve(updates: list[int], killed_at: list[int], *, may_forget: bool) -> None:
    """One point an update; what is missing went with the tail that the server lost when it was killed."""
    assert updates == sorted(set(updates)), "no update is told twice"
    missing = set(range(1, updates[-1] + 1)) - set(updates)
    if not may_forget:
        assert not missing
    assert all(any(at - TAIL_UPDATES < update <= at for at in killed_at) for update in missing), missing


def check_books(status: dict[str, Any], held: Manifest, *, may_forget: bool) -> None:
    """Everything that was accepted is accounted for, and the model holds each step at most once."""
    for counts in status["accounting"].values():
        assert counts["lost"] == counts["duplicated"] == counts["in_flight"] == 0, status["accounting"]
    assert held.repeats == 0 and held.problems == ()
    counted = sum(last - first + 1 for runs in held.runs.values() for first, last in runs)
    assert counted == held.steps
    if not may_forget:
        assert counted == status["accounting"]["steps"]["trained"]


class Places:
    """Where a run stood at each kill.

    Attributes:
        killed_at: the update after the newest checkpoint's, for each kill.
    """

    def __init__(self, folder: Path) -> None:
        self.killed_at: list[int] = []
        self._folder = folder
        self._rng = np.random.default_rng(5)

    def train_on(self) -> None:
        """Wait for some updates more."""
        before = newest(self._folder)
        trained_past(self._folder, (before.update if before else 0) + int(self._rng.integers(2, 8)))

    def kill(self) -> None:
        """Everything, at any moment."""
        CLOCK.sleep(float(self._rng.uniform(0.0, 0.3)))
        kill_all(self._folder)
        found = newest(self._folder)
        assert found is not None
        self.killed_at.append(found.update + 1)


def on_each_level(play: Callable[[str, Path], None], folder: Path) -> None:
    """With both durabilities at once, each in a folder of its own: mostly processes are waited for."""
    for level in LEVELS:
        (folder / level).mkdir()
    with ThreadPoolExecutor(len(LEVELS)) as pool:
        for future in [pool.submit(play, level, folder / level) for level in LEVELS]:
            future.result()


def test_services_killed_with_their_server_go_on_where_every_experiment_was(tmp_path: Path) -> None:
    on_each_level(services_go_on, tmp_path)


def test_a_run_killed_with_its_server_goes_on_by_the_same_command(tmp_path: Path) -> None:
    on_each_level(a_run_goes_on, tmp_path)


NOTED = {"begun": False, "noted": True}
"""Moments before the first checkpoint: a worker is there, the experiment maybe not; what runs there is written down."""


@pytest.mark.parametrize("noted", NOTED.values(), ids=NOTED)
def test_a_run_killed_before_its_first_checkpoint_is_completed_by_the_same_command(tmp_path: Path, noted: bool) -> None:
    command = ("run", spec(tmp_path, durability="strict", steps=1_000), "--workers", "1")
    note = tmp_path / ".heddle" / "run" / RUN_FILE
    # Given a run of which everything was killed before anything was trained
    with started(*command, cwd=tmp_path):
        eventually(lambda: process_of(tmp_path, " heddle worker "), timeout_s=60, every_s=0.02, what="a worker")
        if noted:
            eventually(note.exists, timeout_s=60, every_s=0.01, what="a note of what runs there")
        kill_all(tmp_path)
    assert newest(tmp_path) is None
    if noted:
        assert "go on: heddle run exp.toml --workers 1" in heddle("ls", cwd=tmp_path, code=5).stderr
    # When the same command is typed, then it goes on with that experiment to its end, each step trained once
    done = heddle(*command, "-o", "json", cwd=tmp_path, timeout_s=180)
    result = json.loads(done.stdout)
    assert not noted or f"going on with {result['experiment']}, which was not over" in done.stderr
    assert (result["state"], len(list(tmp_path.glob("runs/*")))) == ("completed", 1)
    check_books(result, manifest(tmp_path), may_forget=False)
    assert not (tmp_path / ".heddle").exists()


def services_go_on(durability: str, folder: Path) -> None:
    """`up` again, as often as everything was killed."""
    places = Places(folder)
    file = spec(folder, durability=durability, steps=10**9)
    # Given services with an experiment, killed with everything
    with started("up", "--workers", "2", "--durability", durability, cwd=folder) as up:
        up.says("next ")
        experiment = heddle("enqueue", file, cwd=folder).stdout.split()[0]
        places.train_on()
        places.kill()
    for kill in range(1, KILLS + 1):
        told = heddle("ls", cwd=folder, code=5).stderr
        assert "`heddle up` goes on with the experiments that its broker here held" in told
        # When they are started again, then it is where it was, and goes on
        with started("up", "--workers", "2", cwd=folder) as up:
            up.says(f"goes on  {experiment}")
            (listed,) = heddle_json("ls", cwd=folder)["experiments"]
            assert listed["experiment"] == experiment
            assert listed["state"] not in ("completed", "stopped", "failed")
            places.train_on()
            if kill < KILLS:
                places.kill()
                continue
            # and at the end the curve is one line and the books are right
            heddle("stop", experiment, cwd=folder)
            heddle("wait", experiment, "--for", "stopped", cwd=folder)
            status = heddle_json("status", experiment, cwd=folder)
            assert (status["state"], status["durability"]) == ("stopped", durability)
            check_curve(curve(folder, experiment), places.killed_at, may_forget=durability != "strict")
            up.interrupt()
            assert up.ends() == 0
    check_books(status, manifest(folder), may_forget=durability != "strict")


def a_run_goes_on(durability: str, folder: Path) -> None:
    """`run` again, as often as everything was killed."""
    places = Places(folder)
    command = ("run", spec(folder, durability=durability, steps=STEPS), "--workers", "2")
    # Given a run of which everything was killed
    for _ in range(KILLS - 1):
        with started(*command, cwd=folder):
            places.train_on()
            places.kill()
        experiment = next(folder.glob("runs/*")).name
        told = heddle("ls", cwd=folder, code=5).stderr
        at = places.killed_at[-1] - 1
        assert f"{experiment} was cut short at update {at} " in told
        assert "go on: heddle run exp.toml --workers 2 (drop it: rm -r .heddle/run)" in told
    # When the command that was named is typed, then it goes on to its end, each step trained once
    done = heddle(*command, "-o", "json", cwd=folder, timeout_s=180)
    assert f"going on with {experiment}, which was not over" in done.stderr
    result = json.loads(done.stdout)
    assert (result["experiment"], result["state"]) == (experiment, "completed")
    assert result["updates"] > places.killed_at[-1]
    check_books(result, manifest(folder), may_forget=durability != "strict")
    assert not (folder / ".heddle").exists()


def test_a_server_without_persistence_that_is_killed_comes_back_empty_and_runs_go_on_at_their_checkpoints(
    tmp_path: Path,
) -> None:
    file = spec(tmp_path, durability="memory", steps=10**9)
    with started("up", "--workers", "1", "--durability", "memory", "--no-trainer", cwd=tmp_path) as up:
        # Given somebody who plays, trains and follows an experiment on a server that keeps nothing
        up.says("next ")
        with started("enqueue", file, "--follow", cwd=tmp_path, errors_apart=True) as follower:
            experiment = follower.says("\n").split()[0]
            with started("trainer", experiment, cwd=tmp_path) as trainer:
                trained_past(tmp_path, 2)
                # When the server is killed
                server = process_of(tmp_path, "-server")
                assert server is not None
                os.kill(server, signal.SIGKILL)
                # Then another one is started, and who needs what it held ends and says why
                up.says("restarted the server because server ended with")
                assert trainer.ends() in (4, 8), "told by a command, or by the keeper of its seat"
                assert follower.ends() == 4
        gone = f"no experiment '{experiment}'"
        for told in (trainer.output(), follower.log.with_suffix(".err").read_text()):
            assert gone in told and "Traceback" not in told
        assert f"{gone}: it was removed, or the broker lost what it held" in trainer.output()
        empty = "no experiments: this broker has none (durability memory: all is lost when it ends, and it started "
        assert heddle("ls", cwd=tmp_path).stdout.startswith(empty)
        before = manifest(tmp_path)
        # and a new one goes on at the checkpoint, each step trained once
        again = heddle("enqueue", file, "--resume", experiment, cwd=tmp_path).stdout.split()[0]
        assert again != experiment
        with started("trainer", again, cwd=tmp_path) as trainer:
            home = tmp_path / "runs" / again / "checkpoints"
            eventually(
                lambda: (found := files.newest(home)) is not None and found.update > before.update + 2, timeout_s=90
            )
            heddle("stop", again, cwd=tmp_path)
            assert trainer.ends() == 0
        held = read_manifest(files.listing(home)[0])
        assert before.runs.keys() < held.runs.keys(), "what it had learned is in the model, and more"
        assert held.repeats == 0 and held.problems == () and held.steps > before.steps
        up.interrupt()
        assert up.ends() == 0
