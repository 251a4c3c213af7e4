"""Which commit of their own code a submitter's folder is at: what git says of it, within bounds, and never an error."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from heddle import origin
from heddle.clock import SystemClock
from heddle.origin import commit_of, shortened

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="there is no git here")
IDENTITY = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}


def git(folder: Path, *words: str) -> str:
    env = {**os.environ, **IDENTITY}
    return subprocess.run(["git", "-C", folder, *words], env=env, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """One with a file at its first commit, and a folder in it."""
    folder = tmp_path / "repository"
    (folder / "experiments").mkdir(parents=True)
    git(folder, "init", "-q")
    (folder / "arms.py").write_text("one\n")
    git(folder, "add", "arms.py")
    git(folder, "commit", "-q", "-m", "first")
    return folder


def test_a_folder_of_a_repository_is_at_its_commit_and_dirty_where_a_tracked_file_differs(repository: Path) -> None:
    commit = git(repository, "rev-parse", "HEAD").strip()
    (repository / "experiments" / "runs").mkdir()
    (repository / "experiments" / "runs" / "metrics.jsonl").write_text("{}\n")
    assert commit_of(repository / "experiments") == commit
    (repository / "arms.py").write_text("two\n")
    assert commit_of(repository / "experiments") == f"{commit}-dirty"
    assert shortened(f"{commit}-dirty") == f"{commit[:12]}-dirty"
    git(repository, "commit", "-q", "-a", "-m", "second")
    assert commit_of(repository) == git(repository, "rev-parse", "HEAD").strip() != commit


def test_where_there_is_no_repository_no_commit_no_folder_or_no_git_there_is_none(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    empty = tmp_path / "empty"
    empty.mkdir()
    assert commit_of(empty) == "", "no repository"
    git(empty, "init", "-q")
    assert commit_of(empty) == "", "no commit"
    assert commit_of(tmp_path / "gone") == "", "no folder"
    monkeypatch.setenv("PATH", str(empty))
    assert commit_of(repository) == "", "no git"


def test_a_git_that_does_not_answer_costs_a_bounded_time_and_what_it_has_said_is_kept(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a git that tells the commit and hangs when it is to look at the files
    commit = git(repository, "rev-parse", "HEAD").strip()
    slow = tmp_path / "bin" / "git"
    slow.parent.mkdir()
    slow.write_text(f'#!/bin/sh\ncase "$*" in *status*) exec "{shutil.which("sleep")}" 600;; *) echo {commit};; esac\n')
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", str(slow.parent))
    monkeypatch.setattr(origin, "LIMIT_S", 1.0)
    began = SystemClock().monotonic()
    # Then the commit is told, and that nobody knows about the files
    assert commit_of(repository) == f"{commit}-unsure"
    assert SystemClock().monotonic() - began < 60.0
    assert shortened(f"{commit}-unsure") == f"{commit[:12]}-unsure"


def test_a_program_that_the_repository_names_is_not_run(tmp_path: Path, repository: Path) -> None:
    trap = tmp_path / "trap"
    trap.write_text(f"#!/bin/sh\ntouch {tmp_path}/sprung\n")
    trap.chmod(0o755)
    git(repository, "config", "core.fsmonitor", str(trap))
    (repository / "arms.py").write_text("two\n")
    assert commit_of(repository).endswith("-dirty")
    assert not (tmp_path / "sprung").exists()
