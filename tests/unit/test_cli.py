"""The command line: help, exit codes, one line for each error."""

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from heddle.checkpoint import BEST, file_name
from heddle.cli.evaluate import find_checkpoint
from heddle.cli.main import message_of, run
from heddle.cli.root import all_commands, cli
from heddle.errors import Conflict, EnvError, HeddleError, MissingExtra, NotFound

HEAVY = ("torch", "gymnasium", "pyarrow", "redis", "pydantic", "numpy", "rich")


def every_command() -> Iterator[tuple[str, click.Command]]:
    """Path and command of every leaf."""
    for name, entry in all_commands().items():
        command = getattr(importlib.import_module(entry.module), entry.attribute)
        if isinstance(command, click.Group):
            yield from ((f"{name} {child}", command.commands[child]) for child in command.commands)
        yield name, command


@pytest.fixture(autouse=True)
def no_broker_around(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty folder and no broker in the environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEDDLE_REDIS_URL", raising=False)


@pytest.mark.parametrize("path", [path for path, _ in every_command()])
def test_every_command_has_help_with_an_example(path: str) -> None:
    done = CliRunner().invoke(cli, [*path.split(), "--help"])
    assert done.exit_code == 0
    assert "Example" in done.output
    assert f"heddle {path.split()[0]}" in done.output


@pytest.mark.parametrize(
    "path",
    [
        "ls",
        "status",
        "shards ls",
        "shards release",
        "batches ls",
        "batches show",
        "workers ls",
        "wait",
        "policy pull",
        "eval",
        "validate",
        "plan",
        "enqueue",
        "run",
    ],
)
def test_every_command_that_reads_can_answer_in_json(path: str) -> None:
    done = CliRunner().invoke(cli, [*path.split(), "--help"])
    assert "table|wide|json|jsonl|name" in done.output


def test_help_names_every_command() -> None:
    done = subprocess.run([sys.executable, "-m", "heddle", "--help"], text=True, capture_output=True, check=True)
    assert all(f"  {name} " in done.stdout for name in all_commands())


HELP_THEN_MODULES = f"""
import sys
from heddle.cli import main
try:
    main(["--help"])
except SystemExit:
    print(*(set(sys.modules) & set({HEAVY})))
"""


def test_help_loads_no_heavy_library() -> None:
    done = subprocess.run([sys.executable, "-c", HELP_THEN_MODULES], text=True, capture_output=True, check=True)
    assert done.stdout.splitlines()[-1].strip() == ""


def test_short_help_fits_on_one_line() -> None:
    assert all(len(entry.short_help) < 80 for entry in all_commands().values())


@pytest.mark.parametrize(
    "arguments", [["no-such-command"], ["run"], ["wait", "x", "--for", "happiness"], ["ls", "-o", "xml"]]
)
def test_wrong_usage_is_exit_code_2(arguments: list[str]) -> None:
    assert run(arguments) == 2


@pytest.mark.parametrize(
    "arguments",
    [["ls"], ["status", "x"], ["workers", "ls"], ["coordinator"], ["worker"], ["trainer", "x"], ["workers", "start"]],
)
def test_without_a_broker_the_three_ways_on_are_told(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 5
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert all(way in lines[0] for way in ("--redis-url", "HEDDLE_REDIS_URL", "heddle up"))


def test_a_broker_that_does_not_answer_is_one_line_and_exit_code_5(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ls", "--redis-url", "redis://:secret@127.0.0.1:1/0"]) == 5
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert "127.0.0.1:1" in lines[0]
    assert "secret" not in lines[0]


def test_verbose_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ls", "-v", "--redis-url", "redis://127.0.0.1:1/0"]) == 5
    assert "Traceback" in capsys.readouterr().err
    assert run(["-v", "ls", "--redis-url", "redis://127.0.0.1:1/0"]) == 5
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code"),
    [(Conflict("taken"), 8), (NotFound("no such"), 4), (KeyboardInterrupt(), 130), (ValueError("oops"), 1)],
)
def test_every_error_becomes_one_line_and_its_exit_code(
    error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_arguments: object, **_more: object) -> None:
        raise error

    monkeypatch.setattr(cli, "main", fail)
    assert run(["ls"]) == code
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    assert "Traceback" not in said


def test_an_error_of_several_lines_is_shown_as_one() -> None:
    assert message_of(HeddleError("a\n  b")) == ["heddle: a b"]
    assert message_of(EnvError("raised\nthings", value="x:y"))[0].count("\n") == 0


def test_training_without_torch_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    for arguments in (["run", "exp.toml"], ["demo"], ["up"]):
        assert run(arguments) == MissingExtra.exit_code
        assert "pip install 'heddle-rl[torch]'" in capsys.readouterr().err


LOOK_THEN_IMPORT = """
from heddle.checkpoint import BEST, file_name
from heddle.cli.evaluate import find_checkpoint
from heddle.cli.main import look_in_working_directory
look_in_working_directory()
import my_things
print(my_things.answer)
"""


def test_modules_in_the_working_directory_can_be_imported(tmp_path: Path) -> None:
    (tmp_path / "my_things.py").write_text("answer = 42\n")
    safe = [sys.executable, "-P", "-c", LOOK_THEN_IMPORT]
    done = subprocess.run(safe, cwd=tmp_path, text=True, capture_output=True, check=True)
    assert done.stdout.strip() == "42"


def test_eval_of_a_run_without_a_best_checkpoint_plays_its_newest(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "exp-1"
    (folder / "checkpoints").mkdir(parents=True)
    for epoch, update in ((1, 9), (2, 3), (2, 10)):
        (folder / "checkpoints" / file_name(epoch, update)).touch()
    assert find_checkpoint(folder).name == file_name(2, 10)
    (folder / "checkpoints" / BEST).touch()
    assert find_checkpoint(folder).name == BEST
