"""Origin: who submits, and which commit of their own code, so that a run can tell later what it was made of.

It never changes a repository, never waits long and never fails, and tells nothing of it but the commit.
"""

import getpass
import os
import subprocess
from pathlib import Path

LIMIT_S = 2.0
"""For each of two questions; a repository on a slow disk holds no submission up."""
DIRTY, UNSURE = "-dirty", "-unsure"
SHOWN = 12
"""So many characters tell commits apart where people read them."""
_ID_CHARS = frozenset("0123456789abcdef")
_QUIET = ("-c", "core.fsmonitor=false", "-c", "core.untrackedCache=false")
"""A repository may name a program that watches its files for whoever asks for its state; its filters may run still."""


def user() -> str:
    """Who submits, for showing; "" where nobody can tell."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


def commit_of(folder: Path) -> str:
    """The commit that `folder` is at, as 40 or 64 hex digits; "" for none.

    "-dirty" stands behind it where files that git tracks differ from it, "-unsure" where that was not found out in
    time. Files that git does not track count for nothing: every run leaves some.
    """
    told = _git(folder, "rev-parse", "--verify", "--quiet", "HEAD")
    commit = (told or "").strip()
    if len(commit) not in (40, 64) or not set(commit) <= _ID_CHARS:
        return ""
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    if changed is None:
        return f"{commit}{UNSURE}"
    return f"{commit}{DIRTY}" if changed else commit


def shortened(commit: str) -> str:
    """The same for people, in as many characters as they need; what somebody else wrote there as it is."""
    return f"{commit[:SHOWN]}{''.join(end for end in (DIRTY, UNSURE) if commit.endswith(end))}"


def _git(folder: Path, *words: str) -> str | None:
    """What git says; None where it is not there, refuses, or takes too long."""
    try:
        done = subprocess.run(  # noqa: S603  no shell, fixed words
            ["git", *_QUIET, "-C", os.fspath(folder), *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=LIMIT_S,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"},
            check=False,
        )
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return done.stdout.decode("ascii", "replace") if done.returncode == 0 else None
