"""The tree is as ARCHITECTURE.md says, and light things stay light."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "gymnasium", "pyarrow", "redis", "pydantic")


def loaded_after(statement: str) -> set[str]:
    """Top-level names of the modules that a fresh interpreter holds after `statement`."""
    code = f"import sys\n{statement}\nprint(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


def test_import_heddle_loads_no_heavy_library() -> None:
    assert loaded_after("import heddle").isdisjoint(HEAVY)


def test_help_loads_no_heavy_library() -> None:
    statement = "from click.testing import CliRunner\nfrom heddle.cli import cli\n"
    statement += "assert CliRunner().invoke(cli, ['--help']).exit_code == 0"
    assert loaded_after(statement).isdisjoint(HEAVY)


def test_a_worker_with_a_numpy_policy_never_loads_torch() -> None:
    modules = ("heddle.producers.worker", "heddle.producers.player", "heddle.policies", "heddle.launch.supervisor")
    assert "torch" not in loaded_after(f"import {', '.join(modules)}")


def test_what_steps_environments_in_a_child_loads_neither_arrow_nor_torch() -> None:
    assert loaded_after("import heddle.producers.isolation.serve").isdisjoint({"pyarrow", "torch"})


def test_architecture_names_every_package_and_only_what_exists() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    packages = {path.parent.relative_to(ROOT).as_posix() for path in (ROOT / "heddle").rglob("__init__.py")}
    missing = {package for package in packages if f"{package}/" not in text}
    assert not missing
    named = re.findall(r"`(heddle/[\w/]+(?:\.py|\.lua|/))`", text)
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_every_decision_page_is_listed() -> None:
    index = (ROOT / "docs/decisions/README.md").read_text()
    pages = sorted(path.name for path in (ROOT / "docs/decisions").glob("0*.md"))
    assert pages
    assert [page for page in pages if page not in index] == []
