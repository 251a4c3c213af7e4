"""The folder of a private run, removed by hand while the run lives: what comes to its path is never touched by it."""

import contextlib
import os
import shutil
import signal
from pathlib import Path

import pytest

from heddle.broker.server import find_running, is_running, start_server
from heddle.broker.server_folder import lock
from heddle.clock import ManualClock, SystemClock
from heddle.errors import Conflict, Gone
from heddle.launch.cut_short import CutShort, remembered, remove
from heddle.launch.local import Local, Setup
from heddle.stop import StopFlag
from tests.helpers import eventually


def run_in(folder: Path) -> Local:
    """The server of a `heddle run`, without its roles."""
    services = Local(Setup(url=None, folder=folder), stop=StopFlag())
    services.start_server()
    return services


def what_is_lost(services: Local) -> str:
    """What a look at everything says is gone; "" for nothing."""
    try:
        services.step()
    except Gone as error:
        return str(error)
    return ""


def test_the_end_of_a_run_whose_folder_was_removed_leaves_the_run_that_has_its_path_alone(tmp_path: Path) -> None:
    # Given a run whose folder was removed under it, and another one that took the path
    folder = tmp_path / "all" / "run"
    first = run_in(folder)
    shutil.rmtree(folder)
    second = run_in(folder)
    run = CutShort(folder, "b-1", "bb", "heddle run b.toml", tmp_path / "runs" / "b-1")
    try:
        with remembered(run):
            # When the first one ends well
            first.settled = True
            first.end()
            # Then the second one has its server, its note and its folder
            assert second.server is not None and second.server.is_running()
            assert find_running(folder) == second.url
            assert (folder / "run.json").exists()
    finally:
        second.settled = True
        second.end()
    # And takes them along at its own end
    assert list(tmp_path.iterdir()) == []


def test_a_run_whose_folder_was_removed_ends_as_any_other(tmp_path: Path) -> None:
    first = run_in(tmp_path / "all" / "run")
    shutil.rmtree(tmp_path / "all" / "run")
    first.end()
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_ends_without_its_folder_is_told_at_once_and_not_tried_again(tmp_path: Path) -> None:
    # Given a run whose folder was removed, and is another run's
    folder = tmp_path / "run"
    first = run_in(folder)
    shutil.rmtree(folder)
    second = run_in(folder)
    try:
        # When its server is killed
        assert first.server is not None
        os.kill(first.server.pid, signal.SIGKILL)
        server = first.server
        eventually(lambda: not server.is_running(), what="it has ended")
        # Then nothing is started there, and it says what is lost
        said = eventually(lambda: what_is_lost(first), what="it is to be started again")
        assert "run was removed while its server ran, and what that held is lost" in said
        assert find_running(folder) == second.url
    finally:
        first.end()
        second.end()


def test_a_folder_in_which_another_server_was_started_meanwhile_is_not_removed(tmp_path: Path) -> None:
    with start_server(tmp_path / "run"):
        remove(tmp_path / "run")
        assert is_running(tmp_path / "run")


def test_a_folder_that_its_run_removes_while_another_waits_for_it_is_not_taken(tmp_path: Path) -> None:
    # Given a run that holds its folder, and removes it while another one waits for it
    folder, holds = tmp_path / "run", contextlib.ExitStack()
    folder.mkdir()
    holds.enter_context(lock(folder, SystemClock()))

    class Ending(ManualClock):
        def sleep(self, seconds: float) -> None:
            shutil.rmtree(folder)
            holds.close()

    # Then the other one does not get what nobody would find
    with pytest.raises(Conflict, match="was removed just now"), lock(folder, Ending()):
        pass
