"""Where a command finds itself does not matter: without a folder, a reader, standard streams, room or rights there is
one line, or nothing, and the right exit code."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from heddle.cli.main import run
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


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
def test_a_folder_in_which_nothing_can_be_made_is_refused_whatever_its_rights_say() -> None:
    with pytest.raises(UsageError, match=r"nothing can be kept in /proc/nope: .*; name another with --dir"):
        folder_to_fill("/proc/nope", "--dir")


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("eval NAME", 2),
        ("record NAME", 2),
        ("plot NAME", 2),
        ("compare NAME NAME", 2),
        ("track NAME", 2),
        ("data show NAME", 1),
        ("data to-minari NAME --to x", 1),
        ("policy export NAME --format safetensors --to x", 2),
        ("validate NAME", 4),
        ("plan NAME", 4),
        ("run NAME", 4),
        ("enqueue NAME", 4),
        ("run exp.toml --no-check --dir NAME", 2),
        ("up --dir NAME", 2),
    ],
)
def test_a_name_longer_than_any_file_has_is_told_in_one_short_line(
    folder: Path, command: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    assert run(command.replace("NAME", "a" * 5_000).split()) == code
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and "system refused" not in told
    assert "aaa..." in told and "5,0" in told and len(told) < 600
    assert [path.name for path in folder.iterdir()] == ["exp.toml"]


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
