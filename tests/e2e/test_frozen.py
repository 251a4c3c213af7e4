"""`up` with a frozen worker: its own end and its murder take everybody along, and the next `up` is whole at once."""

import os
import signal
import sys
from pathlib import Path

import pytest

from heddle.broker.pools import WorkerInfo
from heddle.broker.server import find_running
from heddle.client import connect
from heddle.states.judgement import Judgement
from heddle.states.look import look_at_pool
from tests.e2e.shell import processes_of, started
from tests.helpers import eventually

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere nobody wakes a stopped process")

Row = tuple[WorkerInfo, Judgement]


def rows(folder: Path) -> list[Row]:
    """The list of workers, as `heddle workers ls` shows it."""
    with connect(find_running(folder / ".heddle")) as client:
        return look_at_pool(client.broker, "default")[1]


def two_alive(folder: Path) -> list[Row]:
    """The whole list, once two of it are alive."""

    def look() -> list[Row]:
        found = rows(folder)
        return found if sum(info.alive for info, _ in found) == 2 else []

    return eventually(look, timeout_s=60, every_s=0.1, what="two workers are alive")


def test_a_killed_up_takes_a_frozen_worker_along_and_the_next_one_ends_with_one_at_once(tmp_path: Path) -> None:
    # Given services with a frozen worker, killed by SIGKILL
    with started("up", "--workers", "2", "--no-trainer", cwd=tmp_path) as up:
        up.says("next  ")
        first = two_alive(tmp_path)
        os.kill(first[0][0].beat.pid, signal.SIGSTOP)
        os.kill(up.pid, signal.SIGKILL)
        # Then nobody is left, the frozen one neither
        eventually(lambda: not processes_of(tmp_path), timeout_s=20, what="everybody is gone")
    # When they are started anew, the pool is at its size, and the dead stand last, with nobody in their place
    with started("up", "--workers", "2", "--no-trainer", cwd=tmp_path) as up:
        up.says("next  ")
        listed = two_alive(tmp_path)
        assert [judged.state for _, judged in listed[2:]] == ["dead", "dead"]
        assert {info.beat.pid for info, _ in listed[2:]} == {info.beat.pid for info, _ in first}
        assert {judged.do for _, judged in listed[2:]} == {"its supervisor is gone as well"}
        # And Ctrl-C does not wait for the grace of one that is frozen: it is woken
        os.kill(listed[0][0].beat.pid, signal.SIGSTOP)
        up.interrupt()
        assert up.ends(timeout_s=25) == 0
        assert "grace is over" not in up.output()
    assert not processes_of(tmp_path)
