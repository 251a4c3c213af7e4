"""What docs/observing.md shows to be typed is run, and its keys are those of the program."""

import re

from heddle.cli.top.screens import HELP
from tests.typed import ROOT, shell_lines

PAGE = ROOT / "docs" / "observing.md"
TEXT = PAGE.read_text(encoding="utf-8")


def heddle_lines() -> list[str]:
    """Every line of a shell block that calls heddle."""
    return [line for line in shell_lines(PAGE) if re.match(r"(?:[A-Z_]+=\S+ )*heddle ", line)]


def test_no_shell_line_is_left_out() -> None:
    others = [line for line in shell_lines(PAGE) if line not in heddle_lines()]
    assert len(heddle_lines()) > 20
    assert [line for line in others if not line.startswith("curl ") and "# needs Docker" not in line] == []


def test_its_keys_are_those_of_the_help() -> None:
    shown = " ".join(re.findall(r"^\| ([^|]+) \| [^|]+ \|$", TEXT, flags=re.MULTILINE))
    for keys, _ in HELP[:9]:
        assert set(keys.replace("enter", "").replace("space", "").replace("tab", "").split()) <= set(
            shown.replace(",", " ").split()
        ), keys
