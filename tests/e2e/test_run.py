"""`heddle run` and `heddle demo` as a person uses them, with real processes, signals and a server of their own."""

import json
import os
import signal
from pathlib import Path

import pytest

from heddle.broker.server import find_running
from heddle.client import connect
from tests.e2e.shell import ROOT, heddle, process_of, processes_of, started
from tests.helpers import eventually

pytestmark = pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")

SHORT = ("--set", "budget.env_steps=8_000", "--set", "eval.every_updates=10", "--set", "eval.episodes=4")
ENDLESS = ("--set", "budget.env_steps=50_000_000", "--set", "trainer.passes=4")
CARTPOLE = str(ROOT / "examples" / "cartpole.toml")


def left_over(folder: Path) -> list[str]:
    """What a run left in its folder, besides checkpoints and the logs of the test."""
    return sorted(path.name for path in folder.iterdir() if path.name != "runs" and path.suffix != ".out")


def test_run_trains_from_one_file_and_leaves_only_checkpoints(tmp_path: Path) -> None:
    done = heddle("run", CARTPOLE, *SHORT, "-o", "json", cwd=tmp_path)
    result = json.loads(done.stdout)
    assert result["state"] == "completed"
    assert result["env_steps"] >= 8_000
    assert result["adds_up"]
    for counts in result["accounting"].values():
        assert counts["lost"] == counts["duplicated"] == counts["in_flight"] == 0
    assert result["return"] > 15
    assert "redis-cli" in done.stderr
    assert Path(tmp_path, result["result"]["checkpoint"]).is_file()
    assert left_over(tmp_path) == []
    assert processes_of(tmp_path) == {}


def test_run_says_how_it_ended_and_what_to_do_next(tmp_path: Path) -> None:
    out = heddle("run", CARTPOLE, *SHORT, "--workers", "1", cwd=tmp_path).stdout
    for part in (
        "ended",
        "completed",
        "return",
        "steps/s",
        "lost 0, duplicated 0",
        "checkpoint",
        "next:",
        "heddle eval",
    ):
        assert part in out
    evaluated = next(line.split() for line in out.splitlines() if line.strip().startswith("heddle eval"))
    shown = json.loads(heddle(*evaluated[1:3], "--episodes", "3", "-o", "json", cwd=tmp_path).stdout)
    (shown,) = shown["evaluations"]
    assert shown["episodes"] == 3
    assert shown["return_mean"] > 5


def test_one_interrupt_ends_gently_with_a_checkpoint_to_go_on_from(tmp_path: Path) -> None:
    with started("run", CARTPOLE, *ENDLESS, cwd=tmp_path) as run:
        eventually(lambda: "return" in run.output() and "steps 0/" not in run.output().splitlines()[-1], timeout_s=60)
        eventually(lambda: list(tmp_path.glob("runs/*/checkpoints/*.safetensors")), timeout_s=60)
        run.interrupt()
        assert run.ends() == 130
    out = run.output()
    assert "interrupted" in out
    assert "lost 0, duplicated 0" in out
    assert "Traceback" not in out
    assert processes_of(tmp_path) == {}
    assert left_over(tmp_path) == []
    (experiment,) = (path.name for path in (tmp_path / "runs").iterdir())
    # However far it came: what a run continues counts towards its budget.
    used = int(out.rpartition("\nsteps ")[2].split()[0].replace(",", ""))
    more = ("--set", f"budget.env_steps={used + 8_000}", *SHORT[2:])
    resumed = heddle("run", CARTPOLE, *more, "--resume", experiment, "-o", "json", cwd=tmp_path)
    assert json.loads(resumed.stdout)["state"] == "completed"


def test_two_interrupts_end_at_once_and_leave_no_process(tmp_path: Path) -> None:
    with started("run", CARTPOLE, *ENDLESS, cwd=tmp_path) as run:
        eventually(lambda: list(tmp_path.glob("runs/*/checkpoints/*.safetensors")), timeout_s=60)
        run.interrupt()
        run.says("stopping")
        run.interrupt()
        assert run.ends(timeout_s=8) == 130
    assert eventually(lambda: not processes_of(tmp_path), timeout_s=3)
    assert left_over(tmp_path) == []
    assert "Traceback" not in run.output()


def test_a_killed_launcher_takes_every_process_with_it_and_the_next_run_goes_on(tmp_path: Path) -> None:
    spec = (CARTPOLE, "--set", "budget.env_steps=40_000")
    with started("run", *spec, cwd=tmp_path) as run:
        eventually(lambda: list(tmp_path.glob("runs/*/checkpoints/*.safetensors")), timeout_s=60)
        os.kill(run.pid, signal.SIGKILL)
        run.ends()
    eventually(lambda: not processes_of(tmp_path), timeout_s=15, what="everybody ends with the launcher")
    done = heddle("run", *spec, "-o", "json", cwd=tmp_path)
    assert "going on with" in done.stderr
    result = json.loads(done.stdout)
    assert result["state"] == "completed"
    assert result["accounting"]["batches"]["lost"] == result["accounting"]["batches"]["duplicated"] == 0
    assert left_over(tmp_path) == []


def test_a_run_that_was_killed_behind_its_end_is_told_as_ended_and_the_same_command_says_that_it_begins_anew(
    tmp_path: Path,
) -> None:
    # Given a run that ended while its launcher did not look, and was killed then with everybody
    with started("run", CARTPOLE, *SHORT, "--workers", "1", cwd=tmp_path) as run:
        eventually(lambda: list(tmp_path.glob("runs/*/checkpoints/*.safetensors")), timeout_s=120)
        os.kill(run.pid, signal.SIGSTOP)
        url = find_running(tmp_path / ".heddle" / "run")
        assert url is not None
        with connect(url) as client:
            eventually(lambda: client.experiments()[0].state == "completed", timeout_s=200)
            (first,) = (status.experiment for status in client.experiments())
        os.kill(run.pid, signal.SIGKILL)
        run.ends()
    eventually(lambda: not processes_of(tmp_path), timeout_s=30, what="everybody ends with the launcher")
    # Then nobody is told to go on with it
    told = heddle("ls", cwd=tmp_path, code=5).stderr
    assert f"{first} ended: completed: used env_steps 8000; its results are in runs/{first}" in told
    assert f"heddle plot runs/{first}, heddle eval runs/{first}" in told and "cut short" not in told
    # And the same command names it before it trains another one
    done = heddle("run", CARTPOLE, *SHORT, "--workers", "1", "-o", "json", cwd=tmp_path, timeout_s=400)
    result = json.loads(done.stdout)
    assert f"{first} ended: completed: used env_steps 8000; " in done.stderr
    assert "this run begins anew" in done.stderr
    assert result["state"] == "completed" and result["experiment"] != first
    assert left_over(tmp_path) == []


@pytest.mark.parametrize("role", ["coordinator", "trainer", "server"])
def test_a_run_goes_on_when_a_role_is_killed(role: str, tmp_path: Path) -> None:
    words = {"coordinator": "heddle coordinator", "trainer": "heddle trainer", "server": "unixsocket"}[role]
    with started("run", CARTPOLE, "--set", "budget.env_steps=40_000", cwd=tmp_path) as run:
        eventually(lambda: list(tmp_path.glob("runs/*/checkpoints/*.safetensors")), timeout_s=60)
        pid = server_of(tmp_path) if role == "server" else process_of(tmp_path, words)
        assert pid is not None, processes_of(tmp_path)
        os.kill(pid, signal.SIGKILL)
        assert run.ends(timeout_s=120) == 0, run.output()[-3000:]
    out = run.output()
    assert "completed" in out
    assert f"{role} ended with signal SIGKILL" in out
    assert "duplicated 0" in out
    if role != "server":  # the last two seconds of a killed `fast` server may be gone, and are counted
        assert "lost 0" in out
    assert processes_of(tmp_path) == {}


def server_of(folder: Path) -> int | None:
    """Pid of the server of a run in `folder`."""
    entries = list(folder.glob(".heddle/*/server.json"))
    return int(json.loads(entries[0].read_text())["pid"]) if entries else None


def test_the_demo_heals_and_learns(tmp_path: Path) -> None:
    done = heddle("demo", cwd=tmp_path, timeout_s=180, code=None)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr
    for part in (
        "SIGKILL to worker",
        "back on worker",
        "over 100 fresh episodes, at least 475",
        "lost 0, duplicated 0",
    ):
        assert part in done.stdout
    assert len(done.stdout.partition("next:")[2].strip().splitlines()) == 3
    (picture,) = tmp_path.glob("runs/*/curve.png")
    assert picture.stat().st_size > 10_000
    assert processes_of(tmp_path) == {}
    assert left_over(tmp_path) == []
