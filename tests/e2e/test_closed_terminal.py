"""A terminal that is closed, a pipe whose reader has seen enough: one gentle wish to end, and no error."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from heddle.broker.server import start_server
from tests.e2e.shell import HEDDLE, ROOT, environment, heddle, processes_of
from tests.e2e.terminal import on_a_terminal

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc"),
]

CARTPOLE = str(ROOT / "examples" / "cartpole.toml")
ENDLESS = ("--set", "budget.env_steps=50_000_000", "--set", "trainer.passes=4")
WAYS = [pytest.param(True, id="with-SIGHUP"), pytest.param(False, id="writes-fail")]


def checkpoints(folder: Path) -> list[Path]:
    """Of every run there."""
    return list(folder.glob("runs/*/checkpoints/*.safetensors"))


def has_learned(folder: Path) -> bool:
    """There is a checkpoint to go on from, and something to draw."""
    return bool(checkpoints(folder)) and any(
        '"return"' in one.read_text() for one in folder.glob("runs/*/metrics.jsonl")
    )


def check_ended_gently(folder: Path) -> None:
    """As after one Ctrl-C."""
    (run,) = (folder / "runs").iterdir()
    assert json.loads((run / "ended.json").read_text())["state"] == "stopped"
    assert (run / "curve.png").is_file()
    assert sorted(path.name for path in folder.iterdir() if path.name != "runs") == []
    assert processes_of(folder) == {}


@pytest.mark.parametrize("controls", WAYS)
def test_a_run_whose_terminal_is_closed_ends_as_by_one_interrupt(controls: bool, tmp_path: Path) -> None:
    with on_a_terminal("run", CARTPOLE, *ENDLESS, "--workers", "1", cwd=tmp_path, controls=controls) as run:
        run.waits_for(lambda: has_learned(tmp_path))
        run.close()
        assert run.ends() == 130
    check_ended_gently(tmp_path)


def test_a_run_whose_reader_leaves_ends_as_by_one_interrupt(tmp_path: Path) -> None:
    command = [*HEDDLE, "run", CARTPOLE, *ENDLESS, "--workers", "1"]
    reading, writing = os.pipe()
    errors = tmp_path.parent / f"{tmp_path.name}.err"
    with errors.open("wb") as file:
        run = subprocess.Popen(command, cwd=tmp_path, env=environment(), stdout=writing, stderr=file)
    os.close(writing)
    with open(reading, "rb") as output:  # noqa: PTH123  a descriptor
        while not has_learned(tmp_path):
            assert output.readline()  # until it has seen enough, as `head` has
    try:
        assert run.wait(120) == 130
    finally:
        run.kill()
        run.wait()
    assert b"Traceback" not in errors.read_bytes()
    assert b"refused" not in errors.read_bytes()
    (ended,) = tmp_path.glob("runs/*/ended.json")
    assert json.loads(ended.read_text())["state"] == "stopped"
    assert not (tmp_path / ".heddle").exists()


@pytest.mark.parametrize("controls", WAYS)
def test_services_whose_terminal_is_closed_end_and_keep_what_they_hold(controls: bool, tmp_path: Path) -> None:
    with on_a_terminal("up", "--workers", "1", cwd=tmp_path, controls=controls) as up:
        up.waits_for(lambda: "heddle enqueue" in up.said)
        experiment = heddle("enqueue", CARTPOLE, *ENDLESS, cwd=tmp_path).stdout.strip()
        up.waits_for(lambda: checkpoints(tmp_path))
        up.close()
        assert up.ends() == 0
    assert processes_of(tmp_path) == {}
    assert (tmp_path / ".heddle" / "appendonlydir").is_dir()
    # What it held goes on the next time
    with on_a_terminal("up", "--workers", "1", cwd=tmp_path) as again:
        again.waits_for(lambda: f"goes on  {experiment}" in again.said)
        again.close()
        assert again.ends() == 0


FOLLOWERS = {
    "enqueue": (("enqueue", CARTPOLE, "--no-check", "--follow"), "cartpole"),
    "enqueue-live": (("enqueue", CARTPOLE, "--no-check", "--follow"), "Ctrl-C stops following"),
    "logs": (("logs", "--follow", "--grep", "nobody says this"), "waiting for one"),
    "top": (("top",), "cartpole"),
    "top-lines": (("top", "--plain"), "cartpole"),
}


@pytest.mark.parametrize("which", FOLLOWERS)
def test_who_only_looks_on_ends_quietly_with_its_terminal(which: str, tmp_path: Path) -> None:
    arguments, shown = FOLLOWERS[which]
    with start_server(tmp_path / "server") as server:
        heddle("enqueue", CARTPOLE, "--no-check", "--name", "cartpole-too", cwd=tmp_path, url=server.url)
        with on_a_terminal(*arguments, cwd=tmp_path, controls=False, url=server.url) as looking:
            looking.waits_for(lambda: shown in looking.said)
            looking.close()
            assert looking.ends() == 0
