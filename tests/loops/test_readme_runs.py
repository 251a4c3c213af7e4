"""What the README shows runs as it stands, with smaller budgets: its spec and its Python, beside `heddle up`."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.shell import ROOT, environment, heddle, heddle_json, started

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def block(language: str, budget: str) -> str:
    """The README's block of a language, with `budget` in the place of what is too much for a test."""
    (found,) = re.findall(rf"```{language}\n(.*?)```", TEXT, flags=re.DOTALL)
    assert budget in found
    return str(found).replace(budget, "1_024")


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Path]:
    """A folder in which `heddle up` works."""
    with started("up", "--workers", "1", cwd=tmp_path) as services:
        services.says("heddle enqueue")
        yield tmp_path


def untrained(folder: Path, experiment: str) -> int:
    """Stale batches beyond the one that each shard may have under way when the budget is used up."""
    told = heddle_json("status", experiment, cwd=folder)
    assert told["state"] == "completed", told
    stale: int = told["accounting"]["batches"]["stale"]
    return stale - int(sum(told["shards"].values()))


def test_its_spec_and_its_python_train_to_the_end_and_lose_nothing_on_the_way(up: Path) -> None:
    # Given the README's spec in a file
    (up / "exp.toml").write_text(block("toml", "100_000"), encoding="utf-8")
    # When it is handed to the fleet, then the Python as it stands
    first = heddle("enqueue", "exp.toml", "--wait", cwd=up).stdout.split()[0]
    script = block("python", "50_000")
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=up, env=environment(), text=True, capture_output=True, timeout=100
    )
    # Then both were trained, on every batch but those that came after the last update
    assert done.returncode == 0, done.stdout + done.stderr
    *updates, checkpoint = done.stdout.splitlines()
    assert len(updates) > 1 and (up / checkpoint).is_file()
    second = Path(checkpoint).parent.parent.name
    assert second != first
    assert max(untrained(up, one) for one in (first, second)) <= 0
