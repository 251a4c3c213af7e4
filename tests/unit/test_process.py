"""Child processes."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from heddle.launch.hurry import unheard
from heddle.launch.process import TAIL_LINES, Child, describe_exit
from heddle.producers.identity import process_name
from heddle.subject import PRINTED
from tests.helpers import eventually, is_alive


def start(program: str, **kwargs: object) -> Child:
    env = {**os.environ, "PYTHONUNBUFFERED": "1"}
    return Child([sys.executable, "-c", textwrap.dedent(program)], env=env, name="child", **kwargs)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("code", "words"),
    [(0, "exit code 0"), (5, "exit code 5"), (-9, "signal SIGKILL"), (-11, "signal SIGSEGV"), (-200, "signal 200")],
)
def test_an_exit_is_told_in_words(code: int, words: str) -> None:
    assert describe_exit(code) == words


def test_a_child_tells_its_exit_code_and_its_last_lines(tmp_path: Path) -> None:
    heard: list[str] = []
    child = start(
        "import sys; print('one'); print('two', file=sys.stderr); sys.exit(7)",
        log_file=tmp_path / "child.log",
        on_line=heard.append,
    )
    assert child.wait(20) == 7
    eventually(lambda: child.tail() == ["one", "two"])
    assert child.tail(1) == ["two"]
    assert heard == ["one", "two"]
    eventually(lambda: (tmp_path / "child.log").read_text() == "one\ntwo\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_child_whose_log_file_is_on_a_full_disk_is_read_on_and_ends() -> None:
    child = start("[print(n, 'x' * 100) for n in range(5000)]; print('last')", log_file=Path("/dev/full"))
    assert child.wait(20) == 0
    eventually(lambda: child.tail(1) == ["last"])


def test_only_the_last_lines_are_kept_of_a_flood() -> None:
    child = start("[print(n) for n in range(5000)]; print('x' * 100_000)")
    assert child.wait(20) == 0
    eventually(lambda: len(child.tail()) == TAIL_LINES)
    assert sum(len(line) for line in child.tail()) < TAIL_LINES * 9_000


def test_last_words_of_user_code_are_told_without_what_the_log_puts_around_them() -> None:
    line = json.dumps({"logger": PRINTED, "message": "ValueError: cold", "worker": "w1"})
    child = start(f"print({line!r}); print('raw')")
    assert child.wait(20) == 0
    eventually(lambda: child.tail() == ["ValueError: cold", "raw"])


def test_a_child_that_ignores_sigterm_is_killed_after_the_grace_with_all_it_started() -> None:
    child = start("""
        import signal, subprocess, sys, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        print(grandchild.pid, flush=True)
        time.sleep(600)
    """)
    grandchild = int(eventually(lambda: child.tail(1))[0])
    child.terminate(0.2)
    assert child.ending
    assert child.poll() is None
    assert child.wait(10) == -signal.SIGKILL
    eventually(lambda: not is_alive(grandchild))


def test_what_a_crashed_child_left_running_is_ended() -> None:
    child = start("""
        import os, subprocess, sys
        grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        print(grandchild.pid, flush=True)
        os._exit(3)
    """)
    assert child.wait(20) == 3
    grandchild = int(eventually(lambda: child.tail(1))[0])
    eventually(lambda: not is_alive(grandchild))


def test_a_child_ends_when_the_process_that_started_it_is_killed() -> None:
    parent = start(TIED)
    inner = int(eventually(lambda: parent.tail(1), timeout_s=20)[0])
    os.kill(parent.pid, signal.SIGKILL)
    assert parent.wait(10) == -signal.SIGKILL
    eventually(lambda: not is_alive(inner))


TIED = """
import os, sys, time
from heddle.launch.process import Child
program = "import os, time; from heddle.launch.ties import die_with_parent; die_with_parent();" \\
          "print(os.getpid(), flush=True); time.sleep(600)"
child = Child([sys.executable, "-c", program], env=dict(os.environ), name="inner",
              on_line=lambda line: print(line, flush=True))
time.sleep(600)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux wakes a stopped process for it")
def test_a_stopped_child_ends_as_well_when_the_process_that_started_it_is_killed() -> None:
    parent = start(TIED)
    inner = int(eventually(lambda: parent.tail(1), timeout_s=20)[0])
    os.kill(inner, signal.SIGSTOP)
    eventually(lambda: " T " in Path(f"/proc/{inner}/stat").read_text())
    os.kill(parent.pid, signal.SIGKILL)
    assert parent.wait(10) == -signal.SIGKILL
    eventually(lambda: not is_alive(inner))


STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(not hasattr(os, "waitid"), reason="nobody can tell there")
def test_it_is_known_for_how_long_a_child_has_been_stopped_at_a_stretch() -> None:
    child = start(STUBBORN)
    eventually(lambda: child.tail(1))
    assert (child.poll(), child.stopped_s()) == (None, 0.0)
    os.kill(child.pid, signal.SIGSTOP)
    eventually(lambda: child.poll() is None and child.stopped_s() > 0.1)
    os.kill(child.pid, signal.SIGCONT)
    eventually(lambda: child.poll() is None and child.stopped_s() == 0.0)
    child.kill()
    assert child.wait(10) == -signal.SIGKILL


@pytest.mark.skipif(not hasattr(os, "waitid"), reason="nobody can tell there")
def test_a_child_that_was_woken_to_end_and_stops_again_is_not_given_the_whole_grace() -> None:
    child = start(STUBBORN)
    eventually(lambda: child.tail(1))
    child.terminate(600.0)
    os.kill(child.pid, signal.SIGSTOP)
    assert child.wait(10) == -signal.SIGKILL


def test_process_names_are_readable_and_differ_by_chance() -> None:
    assert process_name("GPU-7.lab.example", 12, b"\x01\x02\x03\x04") == "gpu-7-12-01020304"
    assert process_name("häst", 12, b"\x00" * 4, part="w2") == "h-st-12w2-00000000"
    assert process_name("...", 1, b"\xff" * 4) == "host-1-ffffffff"


HANGING = """
import signal, sys, threading
from heddle.launch.hurry import exit_when_hurried
from heddle.stop import StopFlag, listen_to_signals
stop = StopFlag()
listen_to_signals(stop)
exit_when_hurried(stop, 0.1)
print("ready", flush=True)
while True:
    threading.Event().wait(600)
"""


def test_a_process_that_hangs_is_gone_soon_after_it_was_told_twice() -> None:
    process = subprocess.Popen([sys.executable, "-c", HANGING], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.terminate()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    process.terminate()
    assert process.wait(10) == 130
    process.stdout.close()


LOADING = """
import signal, threading
from heddle.launch.hurry import unheard
with unheard():
    print("loading", flush=True)
    threading.Event().wait(600)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_process_that_is_still_loading_ends_at_once_without_a_word(number: signal.Signals) -> None:
    process = subprocess.Popen([sys.executable, "-c", LOADING], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"loading\n"
    process.send_signal(number)
    _, said = process.communicate(timeout=10)
    assert (process.returncode, said) == (-number, b"")


def test_whoever_listened_before_loading_listens_again_afterwards() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _frame: heard.append(number))
    try:
        with unheard():
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        os.kill(os.getpid(), signal.SIGTERM)
        eventually(lambda: heard == [signal.SIGTERM])
    finally:
        signal.signal(signal.SIGTERM, before)
