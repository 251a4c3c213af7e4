"""Folders of isolated environments whose worker could not remove them: gone when its supervisor has ended."""

import os
import signal
import tempfile
from pathlib import Path

import pytest

from tests.e2e.shell import started
from tests.helpers import eventually
from tests.loops.test_supervisor import OTHERWISE, FakeBroker, Running

HANGS = """
    import os, signal, subprocess, sys, time
    from heddle.producers.isolation.home import HOME_ENV, Home
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    homes = [Home() for _ in range(3)]
    for home in homes:
        (home.work / "file").write_text("what an environment wrote")
    subprocess.Popen(["sleep", "1000"], env={**os.environ, HOME_ENV: str(homes[0].path)}, start_new_session=True)
    (homes[0].path.parent.parent / f"ready-{os.getpid()}").touch()
    time.sleep(1000)
"""


@pytest.fixture(autouse=True)
def temporary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder for temporary files, of this process and of those that it starts."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def ready(folder: Path) -> set[int]:
    """Pids of workers that have their homes."""
    return {int(path.name.partition("-")[2]) for path in folder.glob("ready-*")}


def homes(folder: Path) -> list[Path]:
    return list(folder.glob("heddle-*/env-*"))


def left_running(folder: Path) -> list[int]:
    """Processes with a home below `folder` in their environment."""
    found, word = [], f"HEDDLE_ENV_HOME={folder}".encode()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and word in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")
@pytest.mark.parametrize("requests", [1, 2])
def test_of_workers_that_hang_and_are_killed_at_the_end_nothing_is_left(requests: int, temporary: Path) -> None:
    running = Running(FakeBroker(), HANGS, wants=2, way=OTHERWISE, grace_s=0.5)
    eventually(lambda: len(ready(temporary)) == 2, timeout_s=60)
    assert len(homes(temporary)) == 6
    assert left_running(temporary)
    for _ in range(requests):
        running.stop.request("SIGINT")
    running.end()
    assert homes(temporary) == []
    assert list(temporary.glob("heddle-*")) == []
    assert left_running(temporary) == []


def test_of_a_worker_that_dies_its_homes_go_and_those_of_its_neighbour_stay(temporary: Path) -> None:
    running = Running(FakeBroker(), HANGS, wants=2, way=OTHERWISE, grace_s=0.5)
    eventually(lambda: len(ready(temporary)) == 2, timeout_s=60)
    before = set(homes(temporary))
    os.kill(running.pids()[0], signal.SIGKILL)
    eventually(lambda: len(before & set(homes(temporary))) == 3, timeout_s=60, what="the homes of one are gone")
    eventually(lambda: len(ready(temporary)) == 3, timeout_s=60, what="another one has come")
    assert len(before & set(homes(temporary))) == 3
    running.end()
    assert homes(temporary) == []


SPEC = """
[experiment]
name = "slow"
[env]
id = "slow_env:make"
isolation = "process"
"""
SLOW = """
import pathlib, time

def make():
    pathlib.Path("making").touch()
    time.sleep(1000)
"""


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGHUP, -signal.SIGHUP), (signal.SIGINT, 130)]
)
def test_of_a_spec_that_is_tried_out_when_the_signal_comes_nothing_is_left(
    number: signal.Signals, code: int, temporary: Path
) -> None:
    (temporary / "slow_env.py").write_text(SLOW)
    (temporary / "exp.toml").write_text(SPEC)
    with started("validate", "exp.toml", cwd=temporary, extra={"TMPDIR": str(temporary)}) as trying:
        eventually(lambda: homes(temporary) and left_running(temporary), timeout_s=60)
        trying.process.send_signal(number)
        assert trying.ends() == code
    assert list(temporary.glob("heddle-*")) == []
    assert left_running(temporary) == []
    assert "Traceback" not in trying.output()
