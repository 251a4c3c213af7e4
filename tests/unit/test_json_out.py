"""JSON on standard output: one object a line, whoever printed it, and nobody waits for who reads it."""

import io
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from heddle import subject
from heddle.cli import begun, json_out, root
from heddle.cli.json_out import JsonOut, Relay, prints_are_logged, relay
from heddle.cli.log_lines import FORMAT_ENV
from heddle.launch.process import LINE_LIMIT_BYTES
from tests.e2e.shell import ROOT
from tests.helpers import eventually


@pytest.fixture(autouse=True)
def as_json(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Logs of `heddle` as a service sets them up, and as they were afterwards."""
    monkeypatch.setenv(FORMAT_ENV, "json")
    monkeypatch.setattr(subject, "_process", {})
    logger = logging.getLogger("heddle")
    before, logger.handlers = logger.handlers, []
    level, propagate = logger.level, logger.propagate
    root.set_up_logs(logging.INFO, is_service=True)
    yield
    logger.handlers, logger.propagate = before, propagate
    logger.setLevel(level)


def lines_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_service_logs_to_standard_output_and_a_command_whose_output_is_data_does_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logging.getLogger("heddle.worker").info("claimed shard=%s epoch=%d", "pole-1/3", 17)
    logging.getLogger("heddle").handlers = []
    root.set_up_logs(logging.INFO)
    logging.getLogger("heddle.worker").info("to the other one")
    out, err = capsys.readouterr()
    assert [(line["message"], line["experiment"], line["shard"]) for line in lines_of(out)] == [
        ("claimed shard=pole-1/3 epoch=17", "pole-1", 3)
    ]
    assert [line["message"] for line in lines_of(err)] == ["to the other one"]


def test_a_service_that_was_begun_with_v_says_each_line_once_and_on_standard_output(
    capsys: pytest.CaptureFixture[str],
) -> None:
    # Given logs on standard error, as -v sets them up before it is known that a service begins
    logging.getLogger("heddle").handlers = []
    root.set_up_logs(logging.INFO)
    # When it does
    root.set_up_logs(logging.INFO, is_service=True)
    with prints_are_logged():
        logging.getLogger("heddle.worker").info("claimed shard=%s", "a/3")
    # Then
    out, err = capsys.readouterr()
    assert ([line["logger"] for line in lines_of(out)], err) == (["heddle.worker"], "")


def test_what_user_code_prints_is_an_object_that_names_shard_and_epoch(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(begun, "IDLE_S", 3_600.0)
    subject.this_process_is(worker="w1")
    with prints_are_logged():
        with subject.about({"experiment": "pole-1", "shard": 3, "epoch": 17}):
            print("arm", "is", "cold")
            print("epoch=5 begun, ", end="", file=sys.stderr)
            print("and over\n\nnext", file=sys.stderr)
        print("outside")
    print("as ever")
    out, err = capsys.readouterr()
    *told, last = out.splitlines()
    shown = [(line["message"], line.get("shard"), line.get("epoch"), line["worker"]) for line in map(json.loads, told)]
    assert shown == [
        ("arm is cold", 3, 17, "w1"),
        ("epoch=5 begun, and over", 3, 17, "w1"),
        ("next", 3, 17, "w1"),
        ("outside", None, None, "w1"),
    ]
    assert (last, err) == ("as ever", "")


def test_lines_of_children_are_passed_on_whole_in_order_and_said_to_be_whose_they_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    own = json.dumps({"logger": "heddle.worker", "message": "claimed", "worker": "w1"})
    users = json.dumps({"logger": "mine", "message": "heddle"})
    with relay() as passed:
        assert passed is not None
        passed.hear_worker("w1", own)
        passed.hear_worker("w1", users)
        passed.pass_on({"experiment": "pole-1"}, "epoch=5")
        passed.hear_worker("w1", "  ")
    out = capsys.readouterr().out.splitlines()
    assert out[0] == own
    second, third = lines_of("\n".join(out[1:]))
    assert (second["worker"], second["message"], second["logger"]) == ("w1", users, subject.PRINTED)
    assert (third["experiment"], third["message"]) == ("pole-1", "epoch=5") and "epoch" not in third


class Stuck(io.StringIO):
    """A reader that takes nothing until it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.goes = threading.Event()

    def write(self, text: str) -> int:
        self.goes.wait(20)
        return super().write(text)


class Broken(io.StringIO):
    """A reader that is gone; `tried` counts what was written to it in vain."""

    tried = 0

    def write(self, _: str) -> int:
        self.tried += 1
        raise BrokenPipeError("nobody is there")


def scripted(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A process of its own, whose logs are JSON."""
    env = {**os.environ, FORMAT_ENV: "json", "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, "-c", code, *arguments], env=env, text=True, capture_output=True, timeout=60)


def test_while_nobody_reads_nobody_waits_what_is_kept_is_bounded_and_what_was_left_out_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(json_out, "MOST_WAITING_BYTES", 2_000)
    out = Stuck()
    monkeypatch.setattr(sys, "stdout", out)
    passed = Relay()
    for number in range(200):
        passed.hear_worker("w1", f"line {number}")
    assert passed._bytes <= 2_000
    out.goes.set()
    eventually(lambda: not passed._lines)
    passed.hear_worker("w1", "later")
    passed.stop(timeout_s=20)
    told = [line["message"] for line in lines_of(out.getvalue())]
    assert told[0] == "line 0" and "later" in told
    left_out = sum(int(line.split()[2]) for line in told if line.startswith("left out"))
    assert left_out + sum(line.startswith("line") for line in told) == 200


def test_a_launchers_own_lines_wait_for_no_reader_and_come_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a reader that takes nothing, and a child's line on its way to it
    out = Stuck()
    monkeypatch.setattr(sys, "stdout", out)
    with relay() as passed:
        assert passed is not None
        passed.hear_worker("w1", "line")
        # When the launcher says something itself
        says = threading.Thread(target=lambda: logging.getLogger("heddle.supervisor").info("started"), daemon=True)
        says.start()
        says.join(5)
        # Then it has said it already
        assert not says.is_alive()
        out.goes.set()
    assert [line["message"] for line in lines_of(out.getvalue())] == ["line", "started"]


def test_a_relay_whose_reader_is_gone_ends_although_it_cannot_say_what_it_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stdout", Broken())
    passed = Relay()
    passed.hear_worker("w1", "into the void")
    assert passed.stop(timeout_s=20)


def test_a_launcher_whose_output_nobody_reads_is_told_to_end_and_ends() -> None:
    """The signal comes while its own thread is in the middle of a line that nobody takes."""
    code = """
import logging, os, select, signal, sys
from heddle.cli import root
from heddle.cli.json_out import relay
from heddle.stop import StopFlag, listen_to_signals
root.set_up_logs(logging.INFO, is_service=True)
reading, writing = os.pipe()
os.dup2(writing, 1)
stop = StopFlag()
listen_to_signals(stop)
with relay() as passed:
    for number in range(4000):
        passed.hear_worker("w1", "x" * 100)
    while select.select([], [writing], [], 0)[1]:
        os.sched_yield()
    os.kill(os.getpid(), signal.SIGTERM)
    print(stop.wait(5), file=sys.stderr)
"""
    done = scripted(code)
    assert (done.returncode, done.stderr) == (0, "True\n")


def test_a_line_is_never_longer_than_what_a_launcher_reads_in_one_piece(capsys: pytest.CaptureFixture[str]) -> None:
    # Given a line of user code, each letter of which takes several bytes, and an error that has much to say
    with prints_are_logged():
        print("ж" * 3_000)
    try:
        raise ValueError("x" * 9_000 + "y")
    except ValueError:
        logging.getLogger("heddle.worker").exception("failed shard=%s", "a/3")
    out = capsys.readouterr().out
    # Then both are whole objects: a message with its begin, a traceback with its end
    assert all(len(line.encode()) < LINE_LIMIT_BYTES for line in out.splitlines())
    printed, failed = lines_of(out)
    assert printed["message"].startswith("жж")
    assert (failed["level"], failed["shard"], failed["traceback"][-2:]) == ("error", 3, "xy")


def test_a_line_that_cannot_be_written_ends_nobodys_work(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = Broken()
    monkeypatch.setattr(sys, "stdout", gone)
    monkeypatch.setattr(logging, "raiseExceptions", False)
    with prints_are_logged():
        print("into the void")
    tried = gone.tried
    assert tried > 0
    JsonOut().handle(logging.makeLogRecord({"msg": "neither"}))
    assert gone.tried > tried


def test_a_fork_while_another_thread_writes_can_print() -> None:
    """As vector environments fork: with threads of ours in the middle of a line."""
    code = """
import logging, os, sys, threading
from heddle.cli import json_out, root
root.set_up_logs(logging.INFO, is_service=True)
log = logging.getLogger("heddle.worker")
with json_out.prints_are_logged():
    log.info("everything that this takes is loaded")
    ended = threading.Event()
    def chatter():
        while not ended.is_set():
            log.info("claimed shard=%d", 3)
    threading.Thread(target=chatter, daemon=True).start()
    for _ in range(20):
        pid = os.fork()
        if pid == 0:
            print("in the child", flush=True)
            os._exit(0)
        os.waitpid(pid, 0)
    ended.set()
"""
    done = scripted(code)
    assert done.returncode == 0, done.stderr
    assert sum("in the child" in line for line in done.stdout.splitlines()) == 20


BEGUN = """
import logging, os, sys, threading
from heddle import subject
from heddle.cli import begun, json_out, root
from heddle.quick_exit import exit_now
begun.IDLE_S = float(sys.argv[1])
root.set_up_logs(logging.INFO, is_service=True)
subject.this_process_is(worker="w1")
def play():
    with subject.about({"experiment": "pole-1", "shard": 3}):
        print("arm is ", end="")
        print("cold", end="")
    played.set()
played = threading.Event()
with json_out.prints_are_logged():
    threading.Thread(target=play).start()
    logging.getLogger("heddle.worker").info("everything that this takes is loaded")
    print("and so", end="", file=sys.stderr)
    played.wait()
"""
LONG, SHORT = "3600", "0.2"
"""Seconds until a line that is not over is told."""


@pytest.mark.parametrize(
    ("end", "code"), [("pass", 0), ("sys.exit(3)", 3), ("raise ValueError(1)", 1), ("exit_now(70, within_s=20)", 70)]
)
def test_last_words_without_an_end_are_told_however_the_process_ends_it(end: str, code: int) -> None:
    done = scripted(f"{BEGUN}    {end}\n", LONG)
    told = {line["message"]: line for line in lines_of(done.stdout) if line["logger"] == subject.PRINTED}
    assert (set(told), done.returncode) == ({"arm is cold", "and so"}, code)
    about = told["arm is cold"]
    assert (about["experiment"], about["shard"], about["worker"]) == ("pole-1", 3, "w1")


def test_what_was_printed_before_a_hang_is_there_before_the_process_is_killed() -> None:
    env = {**os.environ, FORMAT_ENV: "json", "PYTHONPATH": str(ROOT)}
    code = f"{BEGUN}    threading.Event().wait()\n"
    command = [sys.executable, "-c", code, SHORT]
    with subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE) as hanging:
        try:
            assert hanging.stdout is not None
            told = ""
            while not ("cold" in told and "and so" in told):  # in pieces, where this process is slow
                told += json.loads(hanging.stdout.readline())["message"]
            assert hanging.poll() is None
        finally:
            hanging.kill()


def test_a_process_that_hangs_in_the_middle_of_a_print_is_ended_all_the_same() -> None:
    code = f"""{BEGUN}
    json_out._turn[0].acquire()
    threading.Thread(target=exit_now, args=(70,)).start()
    threading.Event().wait()
"""
    assert scripted(code, LONG).returncode == 70


def test_a_fork_tells_its_own_last_words_and_not_those_of_its_parent() -> None:
    """As vector environments end: by no way through whoever made them."""
    code = f"""{BEGUN}
    import multiprocessing
    child = multiprocessing.get_context("fork").Process(target=print, args=("in the child",), kwargs={{"end": ""}})
    child.start()
    child.join()
"""
    told = [line["message"] for line in lines_of(scripted(code, LONG).stdout) if line["logger"] == subject.PRINTED]
    assert sorted(told) == ["and so", "arm is cold", "in the child"]
