"""The specs that docs/learning.md shows are valid."""

import re

import pytest

from heddle.spec import load_spec
from tests.typed import ROOT

TEXT = (ROOT / "docs" / "learning.md").read_text(encoding="utf-8")


def specs() -> list[str]:
    """Every TOML block that is a whole spec."""
    blocks: list[str] = re.findall(r"```toml\n(.*?)```", TEXT, flags=re.DOTALL)
    return [block for block in blocks if "[experiment]" in block]


@pytest.mark.parametrize("text", specs(), ids=range(len(specs())))
def test_its_specs_are_valid(text: str) -> None:
    assert load_spec(text).spec.experiment.name in text
