"""The section of docs/learning.md on environments, and its examples: every spec is one that Heddle takes."""

import re
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from heddle.launch.trying import see_spaces, try_out
from heddle.spec import load_spec
from heddle.spec.variants import mix

ROOT = Path(__file__).resolve().parents[2]
SECTION = re.search(r"^## Environments\n(.*?)(?=^## |\Z)", (ROOT / "docs/learning.md").read_text(), re.M | re.S)
NEEDS = {"ALE/": ("ale_py", "cv2"), "MinAtar/": ("minatar",), "Hopper": ("mujoco",), "envpool:": ("envpool",)}


def blocks() -> list[dict[str, Any]]:
    assert SECTION is not None
    return [tomllib.loads(block) for block in re.findall(r"```toml\n(.*?)```", SECTION[1], re.S)]


def is_installed(id: str) -> bool:
    return all(find_spec(module) for begin, modules in NEEDS.items() if id.startswith(begin) for module in modules)


@pytest.mark.parametrize("place", range(4))
def test_each_spec_of_the_section_is_taken(place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    raw = blocks()[place]
    sections: dict[str, Any] = {"experiment": {"name": "docs"}, "budget": {"env_steps": 1000}}
    spec = load_spec({**sections, **raw, "trainer": {"minibatch": 8}}).spec
    if not is_installed(spec.env.id):
        pytest.skip(f"{spec.env.id} is not installed")
    see_spaces(spec)
    if spec.env.variants:
        assert mix(spec, 0, spec.env.num_envs) == "easy 6, short 2"


def test_the_section_has_four_specs() -> None:
    assert len(blocks()) == 4


@pytest.mark.parametrize("name", ["breakout", "hopper", "hopper_sac", "pong"])
def test_each_example_is_taken(name: str) -> None:
    spec = load_spec(ROOT / "examples" / f"{name}.toml").spec
    if not is_installed(spec.env.id):
        pytest.skip(f"{spec.env.id} is not installed")
    assert try_out(spec).needed.batch_bytes < spec.limits.batch_bytes
