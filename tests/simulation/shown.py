"""Bugs that a test shows: the test passes as the code is shipped, and fails in a copy of it with the bug planted.

It never changes the working tree. The copy holds `heddle/`, edited; all else in it is a link.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.simulation.bugs import bugs, named
from tests.simulation.mutate import ROOT, Bug, edited

TREE = ROOT.parent
LINKED = ("tests", "examples", "benchmarks", "deploy", "docs", "pyproject.toml", "README.md")
TIMEOUT_S = 600
FAILED, PASSED = 1, 0


def shown() -> list[str]:
    """Names of the bugs that a test shows."""
    return [bug.name for bug in bugs() if bug.shown]


def shows(name: str) -> str:
    """What its test says of a planted bug: "" when it fails as it must, else what it did instead."""
    bug = named(name)
    with TemporaryDirectory() as folder:
        plant(bug, Path(folder))
        argv = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", bug.shown]
        env = {**os.environ, "PYTHONPATH": folder}
        done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, timeout=TIMEOUT_S)
    if done.returncode == FAILED:
        return ""
    said = "passes" if done.returncode == PASSED else f"ends with {done.returncode}: {done.stdout[-300:]}"
    return f"{bug.shown} {said}"


def plant(bug: Bug, folder: Path) -> None:
    """A tree in `folder` that has the bug. Raises NotThere."""
    for name in LINKED:
        if (TREE / name).exists():
            (folder / name).symlink_to(TREE / name)
    shutil.copytree(ROOT, folder / "heddle")  # compiled files, too: an edited one is newer than its own
    for edit in bug.edits:
        path = folder / "heddle" / edit.file
        path.write_text(edited(edit, path.read_text()))
