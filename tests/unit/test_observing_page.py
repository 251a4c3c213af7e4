"""What docs/observing.md shows can be typed as it stands."""

import importlib
import re
import shlex
from pathlib import Path

import click
import pytest

from heddle.cli.root import all_commands
from heddle.cli.top.screens import HELP

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "observing.md").read_text(encoding="utf-8")


def shell_lines() -> list[str]:
    """Every line of a shell block that calls heddle."""
    blocks = re.findall(r"```sh\n(.*?)```", TEXT, flags=re.DOTALL)
    lines = [line.strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line.startswith("heddle ")]


@pytest.mark.parametrize("line", shell_lines())
def test_its_commands_exist_with_their_options(line: str) -> None:
    words = shlex.split(line.partition(" #")[0])[1:]
    entry = all_commands()[words[0]]
    command = getattr(importlib.import_module(entry.module), entry.attribute)
    if isinstance(command, click.Group):
        command = command.commands[words[1]]
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    assert {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)} <= known


def test_no_shell_line_is_left_out() -> None:
    blocks = re.findall(r"```sh\n(.*?)```", TEXT, flags=re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line.strip()]
    assert lines == [*shell_lines()] != []


def test_its_keys_are_those_of_the_help() -> None:
    shown = " ".join(re.findall(r"^\| ([^|]+) \| [^|]+ \|$", TEXT, flags=re.MULTILINE))
    for keys, _ in HELP[:9]:
        assert set(keys.replace("enter", "").replace("space", "").replace("tab", "").split()) <= set(
            shown.replace(",", " ").split()
        ), keys
