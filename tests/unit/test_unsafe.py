"""Nothing in heddle/ may run code out of bytes, a string or a shell: the lint rule, and that it bites."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "tests/ruff-unsafe.toml"

PLANTS = [
    "import pickle",
    "from pickle import loads",
    "from _pickle import loads",
    "import dill",
    "import cloudpickle",
    "import joblib",
    "import jsonpickle",
    "import marshal",
    "import shelve",
    "import yaml",
    "import torch\ntorch.load('x')",
    "from torch import load\nload('x')",
    "import torch\ntorch.save({}, 'x')",
    "import numpy as np\nnp.load('x', allow_pickle=True)",
    "print(eval('1'))",
    "exec('1')",
    "import os\nos.system('ls')",
    "import os\nos.popen('ls')",
    "import subprocess\nsubprocess.run('ls', shell=True)",
    "import subprocess\nsubprocess.Popen('ls', shell=True)",
    "import subprocess\nsubprocess.getoutput('ls')",
    "from multiprocessing import Pipe",
    "from multiprocessing.connection import Client",
    "from concurrent.futures import ProcessPoolExecutor",
    "import runpy",
]
# Where pyproject.toml lifts other bans.
LENIENT = ("heddle/broker/x.py", "heddle/batch.py", "heddle/cli/x.py", "heddle/policies/torch_x.py")


def lint(*args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """ruff with the rules, from the root of the project."""
    argv = [sys.executable, "-m", "ruff", "check", "--no-cache", "--ignore-noqa", "--config", str(RULES), *args]
    return subprocess.run(argv, cwd=ROOT, input=stdin, text=True, capture_output=True, check=False)


def test_nothing_in_the_package_unpickles_evaluates_or_asks_a_shell() -> None:
    done = lint("heddle")
    assert done.returncode == 0, done.stdout


def test_every_way_to_run_code_out_of_data_is_found_wherever_it_is_planted(tmp_path: Path) -> None:
    for number, plant in enumerate(PLANTS):
        (tmp_path / f"plant_{number}.py").write_text(plant + "\n")
    done = lint("--output-format", "concise", str(tmp_path))
    missed = [plant for number, plant in enumerate(PLANTS) if f"plant_{number}.py:" not in done.stdout]
    assert not missed


@pytest.mark.parametrize("path", LENIENT)
def test_files_that_may_use_a_library_may_still_not_unpickle(path: str) -> None:
    done = lint("--stdin-filename", path, "-", stdin="import pickle\n\npickle.loads(b'')\n")
    assert (done.returncode, "TID251" in done.stdout, "S301" in done.stdout) == (1, True, True), done.stdout


def test_make_lint_runs_the_rule() -> None:
    assert f"--ignore-noqa --config {RULES.relative_to(ROOT)} heddle" in (ROOT / "Makefile").read_text()
