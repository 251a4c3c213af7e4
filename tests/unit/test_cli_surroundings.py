"""Where a command finds itself does not matter: without a folder, a reader, standard streams, room or rights there is
one line, or nothing, and the right exit code."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from heddle.cli.options import folder_to_fill
from heddle.errors import UsageError
from heddle.launch.process import HEDDLE as HEDDLE_CHILD

HEDDLE = f"{shlex.quote(sys.executable)} -m heddle"


def shell(line: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """What a line of bash came to."""
    return subprocess.run(
        ["bash", "-c", line], cwd=cwd, capture_output=True, text=True, env=os.environ, timeout=110, check=False
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One with a spec in it."""
    (tmp_path / "exp.toml").write_text('[experiment]\nname = "a"\n[env]\nid = "CartPole-v1"\n[budget]\nenv_steps = 9\n')
    return tmp_path


def test_a_reader_that_has_read_enough_is_no_error(folder: Path) -> None:
    done = shell(f"{HEDDLE} plan exp.toml --no-check | head -1; exit ${{PIPESTATUS[0]}}", folder)
    assert done.stdout.startswith("experiment.name")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_standard_streams_may_be_closed(folder: Path, closed: str) -> None:
    done = shell(f"{HEDDLE} plan exp.toml --no-check {closed}", folder)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_behind_the_output_is_told_as_such(folder: Path) -> None:
    done = shell(f"{HEDDLE} plan exp.toml --no-check > /dev/full", folder)
    assert done.returncode == 1
    assert done.stderr == "heddle: the system refused something: No space left on device  (-v shows where)\n"


def test_a_working_directory_that_was_deleted_is_told_as_such(folder: Path) -> None:
    done = shell(f"mkdir gone; cd gone; rmdir ../gone; {HEDDLE} ls 2>&1", folder)
    assert done.returncode == 2
    assert done.stdout.splitlines()[-1].startswith("heddle: the working directory is gone")


@pytest.mark.parametrize(
    "command", ["run exp.toml --no-check", "up", "trainer --redis-url redis://127.0.0.1:1", "demo"]
)
def test_what_cannot_hold_checkpoints_is_refused_before_anything_is_started(
    folder: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from heddle.cli import cli

    monkeypatch.chdir(folder)
    result = CliRunner().invoke(cli, [*command.split(), "--dir", "exp.toml/runs"])
    assert isinstance(result.exception, UsageError)
    assert "nothing can be kept in exp.toml/runs: exp.toml is no folder" in str(result.exception)
    assert [path.name for path in folder.iterdir()] == ["exp.toml"]


def test_a_folder_to_fill_is_one_that_can_be_made_and_written(folder: Path) -> None:
    assert folder_to_fill(str(folder), "--dir") == folder
    assert folder_to_fill(str(folder / "a" / "b"), "--dir") == folder / "a" / "b"
    (folder / "dangling").symlink_to(folder / "nowhere")
    with pytest.raises(UsageError, match="dangling is no folder"):
        folder_to_fill(str(folder / "dangling" / "b"), "--dir")
    locked = folder / "locked"
    locked.mkdir(mode=0o500)
    if not os.access(locked, os.W_OK):  # root may write everywhere
        with pytest.raises(UsageError, match="locked may not be written"):
            folder_to_fill(str(locked / "b"), "--dir")
    assert sorted(path.name for path in folder.iterdir()) == ["dangling", "exp.toml", "locked"]


@pytest.mark.parametrize(
    "argv", [[sys.executable, "-m", "heddle"], list(HEDDLE_CHILD)], ids=["python -m heddle", "a process of ours"]
)
def test_modules_in_the_users_folder_hide_none_of_the_library(folder: Path, argv: list[str]) -> None:
    # Given files named as modules that everything needs, and an environment beside them
    for name in ("random", "queue", "secrets", "numpy", "copy", "tempfile", "socket"):
        (folder / f"{name}.py").write_text("raise RuntimeError('the wrong one')\n")
    (folder / "mine.py").write_text("import gymnasium\n\ndef make():\n    return gymnasium.make('CartPole-v1')\n")
    # Then Heddle runs, and finds the environment
    command = [*argv, "validate", "exp.toml", "--set", "env.id=mine:make"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=110, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "valid" in done.stdout
