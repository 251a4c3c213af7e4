"""A trial: whatever user code does, hang in native code or crash its process, becomes one error, and nothing stays."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from heddle.errors import HeddleError, SpecError
from heddle.launch.check import check_all, see_spaces
from heddle.launch.checked import Checked
from heddle.launch.trial import TRIES, RemoteTraceback
from heddle.spec import LoadedSpec, load_spec
from tests.helpers import eventually, is_alive

CODE = """
import ctypes, os, subprocess, sys
import gymnasium, numpy as np


def make(how):
    if how == "hangs":
        with open("pids", "w") as out:
            out.write(f"{os.getpid()} {subprocess.Popen(['sleep', '600']).pid}")
        lock = ctypes.create_string_buffer(128)
        libc = ctypes.PyDLL(None)
        libc.pthread_mutex_init(lock, None)
        while True:
            libc.pthread_mutex_lock(lock)
    if how == "crashes":
        ctypes.string_at(0)
    if how == "exits":
        os._exit(3)
    if how.startswith("is killed"):
        with open("killed", "a") as out:
            print(file=out)
        if len(open("killed").readlines()) <= int(how.split()[-1]):
            os.kill(os.getpid(), 9)
    if how == "raises":
        raise RuntimeError("no licence")
    print("chatter")
    return gymnasium.make("CartPole-v1")
"""


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder of its own, with an environment that does as it is told."""
    (tmp_path / "told_env.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("heddle.launch.check.LEAST_S", 5.0)  # for what hangs: all else has time on a busy machine
    monkeypatch.setattr("heddle.launch.trial.SPARE_S", 3.0)
    return tmp_path


def loaded(how: str) -> LoadedSpec:
    """A spec whose environment does `how` when it is made."""
    timeout_s = 0.1 if how == "hangs" else 10.0
    text = f'[experiment]\nname = "a"\n[env]\nid = "told_env:make"\nkwargs = {{how = "{how}"}}\n'
    return load_spec(f"{text}step_timeout = {timeout_s}\nreset_timeout = {timeout_s}\n[budget]\nenv_steps = 10_000\n")


def test_each_spec_of_several_is_tried_whatever_becomes_of_the_one_before(here: Path) -> None:
    hung, crashed, fine, ended, raised = check_all([loaded(how) for how in ("hangs", "crashes", "", "exits", "raises")])
    assert isinstance(fine, Checked)
    assert fine.needed.train_shards > 0
    said = [str(one) for one in (hung, crashed, ended, raised) if isinstance(one, SpecError)]
    assert all(":4" in line and "env.id = 'told_env:make': was not made" in line for line in said[:3])
    assert "within 5 s; it was at told_env.py:14" in said[0]
    assert "its process ended with signal SIGSEGV; it was at told_env.py:16" in said[1]
    assert "its process ended with exit code 3" in said[2]
    assert "RuntimeError: no licence at told_env.py:25" in said[3]
    # Then nothing of the one that hung is left, and the traceback of the one that raised can be shown
    if sys.platform.startswith("linux"):
        pids = [int(word) for word in (here / "pids").read_text().split()]
        eventually(lambda: not any(is_alive(pid) for pid in pids), timeout_s=10.0)
    assert isinstance(raised, HeddleError)
    assert raised.__cause__ is not None and isinstance(raised.__cause__.__cause__, RemoteTraceback)
    assert "told_env.py" in str(raised.__cause__.__cause__)


def test_a_child_that_something_else_kills_says_nothing_about_its_spec_and_is_followed_by_another(here: Path) -> None:
    first, killed, last = check_all([loaded(""), loaded("is killed 2"), loaded("")])
    assert isinstance(first, Checked)
    assert isinstance(killed, Checked)
    assert isinstance(last, Checked)
    # But one that is killed every time ends, too
    (here / "killed").unlink()
    killed, last = check_all([loaded("is killed 99"), loaded("")])
    assert "its process ended with signal SIGKILL" in str(killed)
    assert len((here / "killed").read_text().splitlines()) == TRIES
    assert isinstance(last, Checked)


def test_outside_the_main_thread_too_what_hangs_is_ended() -> None:
    said: list[str] = []

    def look() -> None:
        try:
            see_spaces(loaded("hangs").spec)
        except SpecError as error:
            said.append(str(error))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join(60.0)
    assert len(said) == 1
    assert "was not made and played for a few steps within 5 s" in said[0]


def test_what_user_code_prints_is_no_part_of_the_answer_for_programs(here: Path) -> None:
    (here / "exp.toml").write_text(loaded("").toml)
    command = [sys.executable, "-m", "heddle", "validate", "exp.toml", "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ, timeout=110, check=False)
    assert done.returncode == 0
    assert "chatter" not in done.stdout
    assert "chatter" in done.stderr
