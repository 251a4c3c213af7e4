"""What the README shows can be typed as it stands."""

import ast
import re

import pytest

from heddle.broker import keys
from heddle.spec import load_spec
from tests.typed import ROOT, wrong_with

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"```{language}\n(.*?)```", TEXT, flags=re.DOTALL)


def test_its_spec_is_valid() -> None:
    (toml,) = blocks("toml")
    spec = load_spec(toml).spec
    assert (spec.experiment.name, spec.rollout.sync) == ("cartpole", True)


def test_no_block_of_it_is_of_a_language_that_no_test_here_knows() -> None:
    fences = re.findall(r"^```(\w*)\n.*?^```$", TEXT, flags=re.DOTALL | re.MULTILINE)
    assert set(fences) == {"", "toml", "python", "dockerfile"}


def test_its_container_goes_on_from_what_our_image_is() -> None:
    (shown,) = blocks("dockerfile")
    ours = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8")
    assert "heddle:local" in (ROOT / "deploy" / "compose.yaml").read_text(encoding="utf-8")
    for fact in ("/usr/local/bin/python", "uv pip install", "USER 1000"):
        assert fact in shown and fact in ours


def test_its_python_submits_a_valid_spec_in_under_15_lines() -> None:
    (code,) = blocks("python")
    tree = ast.parse(code)
    given = next(node for node in ast.walk(tree) if isinstance(node, ast.Dict))
    spec = load_spec(ast.literal_eval(given)).spec
    assert spec.budget.env_steps == 50_000
    assert spec.rollout.sync, "a newcomer's first spec loses nothing as stale"
    assert len([line for line in code.splitlines() if line.strip()]) < 15


def listed() -> list[list[str]]:
    """Every command in the table of commands, as words."""
    rows = re.findall(r"^\| (?:see|ask why|steer|compare|keep) \| (.*) \|$", TEXT, flags=re.MULTILINE)
    assert len(rows) == 5
    return [code.split() for row in rows for code in re.findall(r"`([^`]+)`", row)]


@pytest.mark.parametrize("words", listed(), ids=" ".join)
def test_its_table_names_commands_that_exist_with_their_options(words: list[str]) -> None:
    assert wrong_with(["heddle", *words]) is None


def test_its_keys_are_those_of_the_broker() -> None:
    shown = re.findall(r"redis-cli \w+ +'?(heddle:[^' ]+)'?", TEXT)
    names = {
        keys.ctl("E", 0),
        keys.flow("E", 0),
        keys.shard("E", 0, 0),
        keys.due("E", 0),
        keys.experience("E", 0),
        keys.metrics("E"),
        keys.LOG,
        keys.PRINTS,
    }
    assert set(shown) == names


def test_every_file_it_links_to_is_there() -> None:
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", TEXT) if "://" not in link]
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
