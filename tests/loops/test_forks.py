"""Forked workers: children of whoever asked, like spawned ones; and what becomes of them when their forker fails."""

import contextlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from heddle.errors import UsageError
from heddle.launch import forks as module
from heddle.launch.forks import Forked, Forks, may_fork
from heddle.launch.orphans import children
from heddle.launch.process import Child
from heddle.launch.supervisor import worker_command
from tests.helpers import eventually

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux gives orphans away")

COPIED = "from heddle.launch.forker import fork_on_demand; fork_on_demand(())\n"
WAITING = "import signal; print('up', flush=True); signal.pause()"


class Fork:
    """Forks of one program, and the children made."""

    def __init__(self, program: str, *, before: str = "", **env: str) -> None:
        self.argv = [sys.executable, "-c", before + COPIED + textwrap.dedent(program), "worker"]
        self.env = {**os.environ, "PYTHONUNBUFFERED": "1", **env}
        self.forks = Forks(self.argv, self.env)
        self.children: list[Child] = []

    def child(self, **env: str) -> Child:
        """Another one, once the forker is ready."""
        eventually(self.forks.look, timeout_s=30, what="it is ready")
        child = Child(self.argv, env={**self.env, **env}, name="child", start=self.forks.start)
        self.children.append(child)
        return child

    def end(self) -> None:
        self.forks.stop()
        for child in self.children:
            child.kill()
            child.wait(10)


@pytest.fixture
def fork() -> Iterator[Callable[..., Fork]]:
    with contextlib.ExitStack() as stack:

        def make(program: str = WAITING, **env: str) -> Fork:
            made = Fork(program, **env)
            stack.callback(made.end)
            return made

        yield make


MakeFork = Callable[..., Fork]


def is_forked(child: Child) -> bool:
    return isinstance(child._process, Forked)


def state(pid: int) -> str:
    """As the kernel says, "" for one that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def descriptors() -> set[Path]:
    return set(Path("/proc/self/fd").iterdir())


def line_of(child: Child) -> str:
    return str(eventually(lambda: child.tail(1), timeout_s=20)[0])


def test_a_forked_worker_is_our_child_leads_its_session_and_tells_its_lines_and_exit_code(fork: MakeFork) -> None:
    program = "import os, sys; print(os.getppid(), os.getsid(0) == os.getpgid(0) == os.getpid()); sys.exit(7)"
    child = fork(program).child()
    assert is_forked(child)
    assert child.wait(20) == 7
    eventually(lambda: child.tail() == [f"{os.getpid()} True"])


def test_a_signal_that_ends_it_is_told(fork: MakeFork) -> None:
    child = fork().child()
    eventually(lambda: child.tail() == ["up"])
    os.kill(child.pid, signal.SIGSEGV)
    assert child.wait(20) == -signal.SIGSEGV


def test_its_environment_folder_descriptors_and_name_are_those_of_a_fresh_process(
    fork: MakeFork, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a forker that was started elsewhere, with a variable that its copy is not to have
    program = """
        import os, sys
        fds = [int(fd) for fd in os.listdir("/proc/self/fd")]
        print(os.environ.get("ONE"), os.environ.get("TWO"), os.environ.get("HEDDLE_FORKER"), end="|")
        print(os.getcwd(), max(fds), sep="|")
        print(open("/proc/self/cmdline").read().split(chr(0))[-2], repr(sys.stdin.read()), file=sys.stderr)
    """
    made = fork(program, ONE="forker's", TWO="forker's")
    eventually(made.forks.look, timeout_s=30)
    assert Path(f"/proc/{made.forks.pid}/cmdline").read_bytes().endswith(b"\0forker\0"), "told apart from its copies"
    monkeypatch.chdir(tmp_path)
    del made.env["TWO"]
    # When a copy is made
    child = made.child(ONE="its own")
    # Then it has what it was given, and nothing of the forker's
    assert child.wait(20) == 0
    eventually(lambda: len(child.tail()) == 2)
    assert child.tail() == [f"its own None None|{tmp_path}|3", "worker ''"]


def test_copies_draw_different_numbers(fork: MakeFork) -> None:
    program = "import random, numpy.random as chance; print(random.random(), chance.random())"
    made = fork(program, before="import random, numpy.random\n")
    first, second = (line_of(made.child()).split() for _ in range(2))
    assert first[0] != second[0]
    assert first[1] != second[1]


def test_forking_leaves_no_descriptor_and_no_zombie_behind(fork: MakeFork) -> None:
    made = fork("pass")
    made.child().wait(20)
    before = descriptors()
    children = [made.child() for _ in range(5)]
    for child in children:
        assert child.wait(20) == 0
        child._reader.join(10)
    assert descriptors() <= before
    assert not any(state(child.pid) for child in children)


def test_when_the_forker_is_killed_workers_go_on_and_another_one_makes_the_next(fork: MakeFork) -> None:
    made = fork()
    child, killed = made.child(), made.forks.pid
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    eventually(lambda: made.forks.look() and made.forks.pid not in (None, killed), timeout_s=30)
    other = made.child()
    assert is_forked(other)
    assert child.poll() is None
    assert line_of(child) == line_of(other) == "up"


def test_a_forker_that_does_not_answer_is_an_error_once_and_replaced(
    fork: MakeFork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 0.5)
    made = fork()
    eventually(made.forks.look, timeout_s=30)
    frozen = made.forks.pid
    assert frozen is not None
    os.kill(frozen, signal.SIGSTOP)
    with pytest.raises(OSError, match="does not answer"):
        made.child()
    eventually(lambda: not state(frozen))
    monkeypatch.setattr(module, "ANSWER_S", 10.0)
    assert line_of(made.child()) == "up"


def test_a_forker_that_is_stopped_is_replaced_before_anybody_waits_for_it(fork: MakeFork) -> None:
    made = fork()
    eventually(made.forks.look, timeout_s=30)
    frozen = made.forks.pid
    assert frozen is not None
    os.kill(frozen, signal.SIGSTOP)
    eventually(lambda: made.forks.look() and made.forks.pid not in (None, frozen), timeout_s=30)
    eventually(lambda: not state(frozen))
    assert is_forked(made.child())


def test_whoever_asks_a_stopped_forker_does_not_wait_for_its_answer(fork: MakeFork) -> None:
    made = fork()
    eventually(made.forks.look, timeout_s=30)
    frozen = made.forks.pid
    assert frozen is not None
    os.kill(frozen, signal.SIGSTOP)
    with pytest.raises(OSError, match=r"it is stopped \(SIGSTOP\)"):
        Child(made.argv, env=made.env, name="child", start=made.forks.start)
    eventually(lambda: not state(frozen))


DYING = """
import os, signal
first = os.getpid()
def die():
    if os.getpid() == first and os.path.exists({flag!r}):
        os.unlink({flag!r})
        os.kill(first, signal.SIGKILL)
os.register_at_fork(after_in_parent=die)
"""


def test_a_forker_that_is_killed_in_the_middle_of_a_copy_leaves_nobody_behind(fork: MakeFork, tmp_path: Path) -> None:
    # Given a forker, and the memory's end just when it copies itself
    flag = tmp_path / "die"
    made = fork(before=DYING.format(flag=str(flag)))
    made.child()
    before, there = descriptors(), children()
    for _ in range(5):
        eventually(lambda: made.forks.look() and made.forks.pid is not None, timeout_s=30)
        flag.touch()
        with pytest.raises(OSError, match="it closed the line"):
            Child(made.argv, env=made.env, name="child", start=made.forks.start)
        made.forks._failures = 0  # the next one at once
    # Then whoever it left half made is gone, and the next copy is made
    assert line_of(made.child()) == "up"
    ours = {made.forks.pid, made.children[-1].pid, *there}
    eventually(lambda: (made.forks.look(), children() - ours)[1] == set(), what="nobody is left")
    assert len(descriptors() - before) <= 1, "the new worker's output"


def test_a_copy_whose_asker_is_gone_before_it_began_does_nothing(
    fork: MakeFork, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, pids = fork("raise SystemExit(9)"), list[int]()

    def nobody_of_ours(pid: int) -> bool:
        pids.append(pid)
        return False

    monkeypatch.setattr(module, "_is_child", nobody_of_ours)
    with pytest.raises(OSError, match="started without one"):
        made.child()
    eventually(lambda: state(pids[0]) in ("Z", ""))
    assert os.waitstatus_to_exitcode(os.waitpid(pids[0], 0)[1]) == 0


def test_a_process_with_threads_is_not_copied_but_workers_are_spawned_and_it_is_said_once(
    fork: MakeFork, caplog: pytest.LogCaptureFixture
) -> None:
    threaded = "import threading; threading.Thread(target=threading.Event().wait, args=(600,), daemon=True).start()\n"
    made = fork(before=threaded)
    with caplog.at_level(logging.WARNING, logger="heddle.launch"):
        children = [made.child() for _ in range(2)]
    assert [line_of(child) for child in children] == ["up", "up"]
    assert not any(is_forked(child) for child in children)
    assert [record.getMessage() for record in caplog.records if "other threads" in record.getMessage()] != []
    assert made.forks.pid is None


def test_a_forker_that_cannot_even_load_keeps_no_worker_from_starting(fork: MakeFork) -> None:
    # Given a command that cannot load in a forker
    made = fork(before="import os, sys\nif 'HEDDLE_FORKER' in os.environ: sys.exit('no such library')\n")
    child = made.child()
    assert line_of(child) == "up"
    assert not is_forked(child)


PARENT = """
import os, sys, time
from heddle.launch.forks import Forks
from heddle.launch.orphans import children
from heddle.launch.process import Child
program = "from heddle.launch.forker import fork_on_demand; fork_on_demand(()); import os, time;" \\
          "from heddle.launch.ties import die_with_parent; die_with_parent();" \\
          "print(os.getpid(), flush=True); time.sleep(600)"
argv, env = [sys.executable, "-c", program], dict(os.environ)
forks = Forks(argv, env)
while not forks.look():
    time.sleep(0.01)
said = lambda line: os.write(1, line.encode() + b"\\n")
children = [Child(argv, env=env, name="inner", start=forks.start, on_line=said)
            for _ in (1, 2)]
print(forks.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("is_stopped", [False, True])
def test_forker_and_workers_end_when_the_process_that_started_them_is_killed_stopped_or_not(is_stopped: bool) -> None:
    parent = Child([sys.executable, "-c", PARENT], env={**os.environ, "PYTHONUNBUFFERED": "1"}, name="parent")
    try:
        eventually(lambda: len(parent.tail()) == 3, timeout_s=30)
        pids = [int(line) for line in parent.tail()]
        for pid in pids if is_stopped else ():
            os.kill(pid, signal.SIGSTOP)
            eventually(lambda pid=pid: state(pid) == "T")  # type: ignore[misc]
    finally:
        os.kill(parent.pid, signal.SIGKILL)
    assert parent.wait(10) == -signal.SIGKILL
    eventually(lambda: all(state(pid) in ("", "Z") for pid in pids))


GIVING_AWAY = """
import os, signal, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(child.pid, flush=True)
sys.stdin.read()
os._exit(0)
"""


def test_orphans_that_come_to_us_meanwhile_are_buried_and_children_of_our_own_are_left_alone(fork: MakeFork) -> None:
    # Given a process with a child, which ends while orphans become ours
    forks = fork().forks
    between = subprocess.Popen(
        [sys.executable, "-c", GIVING_AWAY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert between.stdin is not None and between.stdout is not None
    stray = int(between.stdout.readline())
    own: Any = None
    with forks._orphans.adopting(None):
        between.stdin.close()
        between.wait(20)
        own = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    between.stdout.close()
    assert forks._orphans.strays == {stray}
    # When both end, then the one that nobody waits for is buried, and who waits for the other one learns its code
    os.kill(stray, signal.SIGKILL)
    eventually(lambda: state(own.pid) == "Z")
    eventually(lambda: (forks.look(), state(stray))[1] == "")
    assert own.wait(20) == 3


IN_SESSION_0 = """
import os, subprocess, sys
from heddle.launch.orphans import Orphans
assert os.getsid(0) == 0, os.getsid(0)
orphans = Orphans()
with orphans.adopting(None):
    own = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
assert not orphans.strays, orphans.strays
print(own.wait(20))
"""


def test_in_a_container_entered_from_outside_a_child_of_our_own_is_no_orphan() -> None:
    # Given a process whose session began outside its namespace, so that it is 0, as `docker exec` has it
    enter = ["unshare", "--pid", "--fork", "--mount-proc"]
    if shutil.which("unshare") is None or subprocess.run([*enter, "true"], capture_output=True).returncode != 0:
        pytest.skip("no right to make a namespace of processes")
    # When a child is started while orphans become ours, then it is left to who started it
    told = subprocess.run([*enter, sys.executable, "-c", IN_SESSION_0], capture_output=True, text=True, timeout=60)
    assert (told.returncode, told.stdout) == (0, "3\n"), told.stderr


def test_how_workers_are_started_can_be_said_and_a_slip_is_told() -> None:
    assert may_fork({})
    assert may_fork({"HEDDLE_START": "fork"})
    assert not may_fork({"HEDDLE_START": "spawn"})
    with pytest.raises(UsageError, match="HEDDLE_START is 'frok'"):
        may_fork({"HEDDLE_START": "frok"})


def test_a_workers_forker_has_one_thread_no_torch_and_no_connection() -> None:
    address = {"HEDDLE_REDIS_URL": "redis://127.0.0.1:1/0"}
    forks = Forks(worker_command("default"), {**os.environ, **address, "HEDDLE_WORKER_ID": "one"})
    try:
        eventually(lambda: forks.look() and forks.pid, timeout_s=60)
        proc = Path(f"/proc/{forks.pid}")
        assert len(list((proc / "task").iterdir())) == 1
        mapped = (proc / "maps").read_text()
        assert "numpy" in mapped and "pyarrow" in mapped
        assert "torch" not in mapped
        sockets = [fd for fd in (proc / "fd").iterdir() if "socket:" in str(fd.readlink())]
        assert len(sockets) == 1, "the line to whoever asks"
    finally:
        forks.stop()
