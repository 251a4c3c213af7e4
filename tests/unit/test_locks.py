"""Locks that are a process's alone: whoever is left of it, fork or not, holds none."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from heddle.consumers.curve_file import CurveFile, is_written
from heddle.locks import take
from tests.e2e.shell import ROOT

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")

PARENT = """
import os, sys
from pathlib import Path
from heddle.consumers.curve_file import CurveFile
file = CurveFile(Path(sys.argv[1]), "{}")
file.add(1, {"return": 1.0})
if os.fork() == 0:
    if sys.argv[2] == "collects":
        file.close()
        del file
    print("forked", flush=True)
    sys.stdin.read()  # lives on, whatever becomes of its parent
    os._exit(0)
while True:
    os.wait()
"""


@contextmanager
def parent_with_a_fork(home: Path, what: str) -> Iterator["subprocess.Popen[str]"]:
    """A process that has a run's folder open, once a fork of it is there; the fork ends with us."""
    command = [sys.executable, "-c", PARENT, str(home), what]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=env) as parent:
        try:
            assert parent.stdout is not None and parent.stdout.readline() == "forked\n"
            yield parent
        finally:
            parent.kill()


def test_a_fork_that_lives_on_holds_no_lock_of_its_parent(tmp_path: Path) -> None:
    with parent_with_a_fork(tmp_path, "lives on") as parent:
        assert is_written(tmp_path)
        parent.kill()
        parent.wait()
        assert parent.stdin is not None and parent.stdout is not None
        assert not is_written(tmp_path)
        parent.stdin.close()
        assert parent.stdout.read() == "", "the fork was there until now"


def test_a_fork_that_closes_and_collects_a_lock_leaves_it_to_its_parent(tmp_path: Path) -> None:
    with parent_with_a_fork(tmp_path, "collects"):
        assert is_written(tmp_path)


def test_whoever_closes_a_lock_lets_go_of_it_also_where_another_process_got_what_it_opened(tmp_path: Path) -> None:
    # Given a process that was started past Python's forks and has open what we locked
    held = take(os.open(tmp_path, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
    with pytest.raises(BlockingIOError):
        take(os.open(tmp_path, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
    command = ["/bin/sh", "-c", "read nothing"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[held.descriptor]) as other:
        # When it is closed, then others may have it
        held.close()
        take(os.open(tmp_path, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB).close()
        assert other.poll() is None
        held.close()


def test_who_drops_the_file_of_a_run_without_a_word_holds_its_folder_no_more(tmp_path: Path) -> None:
    file = CurveFile(tmp_path, "{}")
    file.add(1, {"return": 1.0})
    assert is_written(tmp_path)
    del file
    assert not is_written(tmp_path)
