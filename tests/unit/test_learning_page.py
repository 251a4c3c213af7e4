"""What docs/learning.md shows can be typed as it stands."""

import importlib
import re
import shlex
from pathlib import Path

import click
import pytest

from heddle.cli.root import all_commands
from heddle.spec import load_spec

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "learning.md").read_text(encoding="utf-8")


def typed() -> list[str]:
    """Every line of a shell block that calls heddle, without its comment."""
    blocks = re.findall(r"```(?:sh|console|bash)\n(.*?)```", TEXT, flags=re.DOTALL)
    lines = [line.strip() for block in blocks for line in block.splitlines()]
    return [line.partition(" #")[0] for line in lines if line.startswith("heddle ")]


def specs() -> list[str]:
    """Every TOML block that is a whole spec."""
    blocks: list[str] = re.findall(r"```toml\n(.*?)```", TEXT, flags=re.DOTALL)
    return [block for block in blocks if "[experiment]" in block]


@pytest.mark.parametrize("text", specs(), ids=range(len(specs())))
def test_its_specs_are_valid(text: str) -> None:
    assert load_spec(text).spec.experiment.name in text


@pytest.mark.parametrize("line", typed())
def test_its_commands_exist_with_their_options(line: str) -> None:
    words = shlex.split(line)[1:]
    entry = all_commands()[words[0]]
    command = getattr(importlib.import_module(entry.module), entry.attribute)
    if isinstance(command, click.Group):
        command = command.commands[words[1]]
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    assert {word.partition("=")[0] for word in words if word.startswith("-")} <= known
