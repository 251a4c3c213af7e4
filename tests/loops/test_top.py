"""`heddle top` on a real server: in a real terminal with real keys, as lines, and once."""

import json
import os
import pty
import re
import select
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from heddle.broker import Broker, keys, open_broker
from heddle.broker.pools import WorkerBeat
from heddle.broker.server import LocalServer, start_server
from heddle.cli.main import run
from tests.broker_kit import claim_next
from tests.helpers import eventually
from tests.trainer_kit import run_well, submit

ROOT = Path(__file__).resolve().parents[2]
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture
def broker(valkey_server: LocalServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    monkeypatch.setenv("HEDDLE_REDIS_URL", valkey_server.url)
    with open_broker(valkey_server.url, role="test") as connected:
        yield connected


@pytest.fixture
def experiment(broker: Broker) -> str:
    made = submit(broker)
    broker.conn.main.hset(keys.status(made), "state", "running")
    broker.events.metrics_add(made, 1, {"return": 12.5, "env_steps": 64.0, "lag_mean": 1.5})
    broker.pools.heartbeat(WorkerBeat("host-1w1-aa", host="host", pid=17, state="idle"), ttl_ms=600_000)
    return made


class Screen:
    """A process in a terminal of 80 by 24."""

    def __init__(self, *arguments: str) -> None:
        self.master, slave = pty.openpty()
        termios.tcsetwinsize(slave, (24, 80))
        self.before: list[Any] = termios.tcgetattr(slave)
        self.slave = slave
        environment = {**os.environ, "TERM": "xterm-256color", "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "heddle", "top", "--interval", "0.2", *arguments]
        self.process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment)
        self.raw = ""

    def text(self) -> str:
        """Everything that was written so far, without colours."""
        while select.select([self.master], [], [], 0.01)[0]:
            self.raw += os.read(self.master, 65_536).decode("utf-8", "replace")
        return ESCAPE.sub("", self.raw)

    def press(self, keys: str) -> None:
        self.text()
        self.raw = ""
        os.write(self.master, keys.encode())

    def shows(self, words: str) -> None:
        eventually(lambda: words in self.text(), timeout_s=60, what=words)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self.slave)


@pytest.fixture
def screen(broker: Broker, experiment: str) -> Iterator[Screen]:
    shown = Screen()
    yield shown
    shown.close()


def test_keys_of_a_real_terminal_open_pause_scale_and_quit_and_leave_it_as_it_was(
    screen: Screen, broker: Broker, experiment: str
) -> None:
    # Given the list of experiments on a screen of its own
    screen.shows(experiment)
    screen.shows("12.5")
    assert "\x1b[?1049h" in screen.raw
    # When keys are pressed, then what they say is done
    screen.press("p")
    eventually(lambda: broker.experiments.ctl(experiment).command == "pause", timeout_s=30)
    screen.shows("p lets it go on")
    eventually(lambda: "paused" in screen.text(), timeout_s=30)
    screen.press("p")
    eventually(lambda: broker.experiments.ctl(experiment).command == "run", timeout_s=30)
    screen.press("n12\r")
    eventually(lambda: broker.pools.pool().desired == 12, timeout_s=30)
    screen.press("\r")
    screen.shows("appended 0 = trained 0")
    screen.press("\x1b")
    screen.shows("sorted by newest")
    screen.press("w\r")
    screen.shows("pid 17 on host")
    # When it is quit, then the terminal is as it was
    screen.press("qq")
    assert screen.process.wait(30) == 0
    screen.text()
    assert "\x1b[?1049l" in screen.raw and "\x1b[?25h" in screen.raw
    assert termios.tcgetattr(screen.slave) == screen.before


def test_ctrl_c_ends_it_and_gives_the_terminal_back(screen: Screen, experiment: str) -> None:
    screen.shows(experiment)
    screen.press("\x03")
    assert screen.process.wait(30) == 0
    assert termios.tcgetattr(screen.slave) == screen.before


def test_a_broker_that_is_away_is_told_and_outlasted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a screen on a server of its own
    first = start_server(tmp_path, durability="fast")
    monkeypatch.setenv("HEDDLE_REDIS_URL", first.url)
    with open_broker(first.url, role="test") as connected:
        made = submit(connected)
    shown = Screen()
    try:
        shown.shows(made)
        # When the server ends, then that is said; when it is back, the screen goes on
        first.stop()
        shown.shows("last seen")
        second = start_server(tmp_path, durability="fast")
        assert second.url == first.url
        try:
            shown.press("")
            shown.shows("fast")
        finally:
            second.stop()
    finally:
        shown.close()


def test_once_prints_tables_and_json_and_ends(experiment: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["top", "--once"]) == 0
    out = capsys.readouterr().out
    assert experiment in out and "12.5" in out and "pool default: 1 workers" in out and "host-1w1-aa" in out
    assert run(["top", "-o", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    (one,) = told["experiments"]
    assert (one["experiment"], one["return"], one["lag_mean"], one["state"]) == (experiment, 12.5, 1.5, "waiting")
    assert told["pools"][0]["alive"] == 1 and told["broker"]["durability"] == "memory"
    assert run(["top", "nobody"]) == 4


def test_a_slow_shard_and_who_plays_it_are_named_by_top_and_by_status(
    broker: Broker, experiment: str, capsys: pytest.CaptureFixture[str]
) -> None:
    # Given a run whose updates wait for one shard
    owner = claim_next(broker, "w-slow").lease.shard
    epoch = run_well(broker, experiment, "w-slow")
    waits = {"rollout_seconds": 0.3, "append_seconds": 0.0, "queue_seconds": 0.7, "update_seconds": 0.1}
    waits |= {"wait_seconds": 0.9, "longest_shard": float(owner), "longest_rollout_seconds": 1.1}
    for update in range(2, 8):
        broker.events.metrics_add(experiment, update, waits)
    said = f"shard {owner} takes 1.10 s to play a batch, the mean is 0.30 s, played by w-slow"
    # Then every way of asking says so
    assert run(["status", experiment]) == 0
    out = capsys.readouterr().out
    assert said in out and f"heddle why {experiment}" in out
    assert run(["top", "--once"]) == 0
    out = capsys.readouterr().out
    assert said in out and f"slow shard {owner}" in out
    named = [{"shard": owner, "worker": "w-slow", "seconds": 1.1, "mean_seconds": 0.3}]
    assert run(["status", experiment, "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["slow_shards"] == named
    assert run(["top", "-o", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["experiments"]
    assert row["slow_shards"] == named
    assert run(["shards", experiment]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "1.10 s to play a batch" in line]
    assert [line.split()[0] for line in lines] == [str(owner)]
    # And when the trainer is gone, then that is who is waited for
    assert broker.seats.release_seat(experiment, epoch)
    assert run(["top", "-o", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["experiments"]
    assert (row["slow_shards"], row["state"]) == ([], "waiting")
    assert run(["top", "--once"]) == 0
    out = capsys.readouterr().out
    assert "for trainer" in out and "slow shard" not in out
    assert broker.seats.claim_seat(experiment, "t-2", ttl_ms=600_000) is not None
    # And none is named when it is another one each time
    for update in range(8, 58):
        broker.events.metrics_add(experiment, update, waits | {"longest_shard": float(update)})
    assert run(["status", experiment, "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["slow_shards"] == []


def test_where_the_output_is_no_terminal_it_is_lines(experiment: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with out.open("wb") as output:
        command = [sys.executable, "-m", "heddle", "top", "--interval", "0.2"]
        process = subprocess.Popen(command, stdout=output, stderr=output, env={**os.environ, "PYTHONPATH": str(ROOT)})
    try:
        eventually(lambda: out.read_text().count(f"{experiment} waiting") >= 2, timeout_s=60)
    finally:
        process.kill()
        process.wait()
    assert "\x1b" not in out.read_text() and "return 12.5" in out.read_text()
