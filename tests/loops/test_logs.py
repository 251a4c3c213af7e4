"""`heddle logs`: the lines that are asked for, oldest first, and those that come while it follows."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from heddle.broker import Broker, keys, open_broker
from heddle.broker.lines import PRINTED, Line
from heddle.broker.server import LocalServer
from heddle.cli.main import run
from tests.broker_kit import next_ms
from tests.helpers import eventually
from tests.trainer_kit import submit


@pytest.fixture
def broker(valkey_server: LocalServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    monkeypatch.setenv("HEDDLE_REDIS_URL", valkey_server.url)
    with open_broker(valkey_server.url, role="test") as connected:
        yield connected


def lines(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert run(["logs", "-o", "jsonl", *arguments]) == 0
    return [json.loads(line)["message"] for line in capsys.readouterr().out.splitlines()]


def test_lines_are_chosen_by_experiment_worker_role_level_age_and_words(
    broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment = submit(broker)
    broker.events.log(experiment, "trainer", "t-1", "info", "one")
    broker.events.log(experiment, "worker", "host-1w1-aa", "warning", "two is odd")
    broker.events.log(None, "coordinator", "c-1", "error", "three about host-1w1-aa")
    broker.events.log(None, "worker", "host-1w2-bb", "debug", "four")
    next_ms(broker)
    broker.events.log_all([Line(experiment, PRINTED, "host-1w1-aa", "info", "five is printed")])
    next_ms(broker)
    broker.events.log(None, "worker", "host-1w3-cc", "info", "six")
    told = ["one", "two is odd", "three about host-1w1-aa", "five is printed", "six"]
    assert lines(capsys)[-5:] == told
    assert lines(capsys, "--role", "user") == lines(capsys, "--grep", "printed") == ["five is printed"]
    assert lines(capsys, "--exp", experiment)[-3:] == ["one", "two is odd", "five is printed"]
    assert lines(capsys, "--worker", "host-1w1-aa") == told[1:4]
    assert lines(capsys, "--role", "worker", "--level", "debug") == ["two is odd", "four", "six"]
    assert lines(capsys, "--grep", "^t.*odd$") == ["two is odd"]
    assert lines(capsys, "-n", "2") == ["five is printed", "six"]
    assert lines(capsys, "--since", "0") == [] and "one" in lines(capsys, "--since", "10m")
    assert run(["logs", "--grep", "nobody says that"]) == 0
    out, err = capsys.readouterr()
    assert not out and "no line of the log is like that; heddle logs shows all" in err
    assert run(["logs", "--grep", "("]) == 2
    assert run(["logs", "--exp", "nobody"]) == 4


def test_lines_about_a_shard_are_chosen_by_its_number_and_a_printed_one_is_shown_with_it(
    broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment = submit(broker)
    broker.events.log(experiment, "worker", "w-1", "info", f"claimed shard={experiment}/3 epoch=17")
    broker.events.log(experiment, "worker", "w-1", "info", f"claimed shard={experiment}/33 epoch=17")
    next_ms(broker)
    known = Line(experiment, PRINTED, "w-1", "info", "arm is cold", shard=3, epoch=17)
    broker.events.log_all([known, Line(experiment, PRINTED, "w-1", "info", "of nobody")])
    assert lines(capsys, "--shard", "3") == [f"claimed shard={experiment}/3 epoch=17", "arm is cold"]
    assert lines(capsys, experiment, "--shard", "3", "--role", "user") == ["arm is cold"]
    assert run(["logs", experiment]) == 0
    shown = capsys.readouterr().out
    assert f"user w-1 [{experiment}/3] arm is cold" in shown and f"user w-1 [{experiment}] of nobody" in shown
    assert run(["logs", experiment, "--role", "user", "-o", "json"]) == 0
    told = json.loads(capsys.readouterr().out)["lines"]
    assert [(line["shard"], line["epoch"]) for line in told] == [(3, 17), (None, None)]


def test_who_follows_sees_each_line_once_and_ends_with_ctrl_c(
    broker: Broker, valkey_server: LocalServer, tmp_path: Path
) -> None:
    broker.events.log(None, "worker", "w", "info", "before")
    out = tmp_path / "out"
    with out.open("wb") as output:
        command = [sys.executable, "-m", "heddle", "logs", "-f", "--redis-url", valkey_server.url]
        process = subprocess.Popen(command, stdout=output, stderr=output, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    try:
        eventually(lambda: "before" in out.read_text(), timeout_s=30)
        broker.events.log_all([Line(None, PRINTED, "late", "info", "printed")])
        eventually(lambda: "printed" in out.read_text(), timeout_s=30)
        broker.events.log(None, "worker", "late", "info", "after")
        eventually(lambda: "after" in out.read_text(), timeout_s=30)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    finally:
        process.kill()
        process.wait()
    said = out.read_text()
    assert [said.count(word) for word in ("before", "printed", "after", "Traceback")] == [1, 1, 1, 0]


def test_a_print_that_somebody_added_by_hand_with_an_absurd_id_is_shown_and_ends_no_command(
    broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    highest = "18446744073709551615"
    broker.conn.main.xadd(keys.PRINTS, {"message": "by hand"}, id=f"{highest}-{highest}")
    assert run(["logs"]) == 0
    assert capsys.readouterr().out.startswith("--:--:--.--- info")
    assert run(["top", "--once"]) == 0
    capsys.readouterr()
    # and the next print makes the stream anew
    assert broker.events.log_all([Line(None, PRINTED, "w", "info", "after")])
    assert lines(capsys) == ["after"]


@pytest.mark.parametrize("form", ["text", "json"])
def test_last_words_of_a_process_that_nobody_supervises_and_that_ends_at_once_are_in_the_log(
    form: str, broker: Broker, valkey_server: LocalServer
) -> None:
    code = """
import logging, sys
from heddle import subject
from heddle.cli import begun, root
from heddle.cli.json_out import prints_are_logged
from heddle.cli.prints import prints_are_heard
from heddle.quick_exit import exit_now
begun.IDLE_S = 3600
root.set_up_logs(logging.INFO, is_service=True)
with prints_are_heard(sys.argv[1], "worker", "lonely"), prints_are_logged():
    with subject.about({"experiment": "pole-1"}):
        print("a line")
        print("the arm is", end="")
    exit_now(70, within_s=30)
"""
    env = {**os.environ, "HEDDLE_LOG": form, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", code, valkey_server.url]
    done = subprocess.run(command, env=env, text=True, capture_output=True, timeout=90)
    assert done.returncode == 70, done.stderr
    said = [(event.experiment, event.message) for event in broker.events.find(lambda one: one.worker == "lonely")]
    assert said == [("pole-1", "a line"), ("pole-1", "the arm is")]
    assert "the arm is" in done.stdout


def test_lines_of_another_day_make_all_lines_say_the_date(
    broker: Broker, capsys: pytest.CaptureFixture[str], valkey_server: LocalServer
) -> None:
    day_ms = 24 * 3600 * 1000
    broker.events.log(None, "worker", "w-1", "info", "today")
    assert run(["logs", "--redis-url", valkey_server.url]) == 0
    assert re.match(r"\d\d:\d\d:\d\d\.\d{3} ", capsys.readouterr().out)
    broker.events.log_all([Line(None, "worker", "w-1", "info", "before", ago_ms=2 * day_ms)])
    assert run(["logs", "--redis-url", valkey_server.url]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} ", line) for line in lines)
    assert run(["why", "worker", "w-1", "--redis-url", valkey_server.url]) == 0
    assert len(re.findall(r"\n  \d{4}-\d\d-\d\d \d\d:", capsys.readouterr().out)) == 2
