"""Child processes: start, watch, read the last lines, end gently and then for good.

It never goes through a shell and never decides whether a process shall run.

Every child leads a session of its own: a Ctrl-C in the terminal reaches only us, and what the child
started itself can be ended with it.
"""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Protocol

from heddle.clock import Clock, SystemClock
from heddle.launch.said import printed_in
from heddle.launch.ties import PARENT_ENV

log = logging.getLogger("heddle.process")

TAIL_LINES = 160
"""Python's dump at a fatal signal has up to 100 calls, the innermost first."""
LINE_LIMIT_BYTES = 8 * 1024
LOG_LIMIT_BYTES = 16 * 1024 * 1024
HERE = not sys.flags.safe_path and str(Path(__file__).parents[2]) == os.path.realpath(os.curdir)
"""Heddle may be found by the working directory alone: a clone of it that was not installed."""
HEDDLE = (sys.executable, *(() if HERE else ("-P",)), "-m", "heddle")
"""How a process of ours starts another one; a `random.py` in the user's folder shall not hide the library's."""
HURRY_S = 0.4
"""And its parent kills it then, so that there is time left in that second for what ends after it: the server."""
STOPPED_GRACE_S = 1.0
"""A process that was asked to end and woken, and is stopped all the same, will not end by itself."""
UNSEEN_S = 5.0
"""Whoever looks at its children more seldom was stopped itself, and knows nothing of the time between."""

ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "VECLIB_MAXIMUM_THREADS": "1",
}
"""One thread a worker for BLAS and torch: many workers share a machine's cores."""


def use_one_thread() -> None:
    """Set `ONE_THREAD` for this process where the user has not; call it before numpy is imported."""
    for key, value in ONE_THREAD.items():
        os.environ.setdefault(key, value)


CRASHES = frozenset(
    {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSYS, signal.SIGTRAP}
)
"""Signals that a process brings upon itself."""


def describe_exit(code: int) -> str:
    """An exit status in words: "exit code 5" or "signal SIGKILL"."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"


class Started(Protocol):
    """A child of this process, as `subprocess.Popen` makes it: it leads a session, and its output comes by `stdout`."""

    @property
    def pid(self) -> int: ...

    @property
    def stdout(self) -> IO[bytes] | None: ...

    def poll(self) -> int | None: ...

    def wait(self) -> int: ...


Start = Callable[[Sequence[str], Mapping[str, str]], Started]
"""Starts a command with a whole environment. Raises OSError: there is no memory, or no process is left."""


def spawn(argv: Sequence[str], env: Mapping[str, str], *, inherited: Sequence[int] = ()) -> Started:
    """Start a command as a fresh process.

    Args:
        inherited: descriptors that it gets besides the standard ones.
    """
    return subprocess.Popen(
        list(argv),
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=inherited,
        start_new_session=True,
    )


class Child:
    """One process that we started. Not for use from two threads at once, but for `tail`.

    On Linux a child that calls `die_with_parent` is told when the *thread* that made it ends, so
    make children from a thread that lives as long as they shall.

    Attributes:
        pid: of the process, and of the group it leads.
        code: its exit status once `poll` saw it end (negative = signal).
        ending: it was asked to end; killed: SIGKILL was sent.

    Args:
        argv: the command, no shell; nothing secret in it, for everybody on the machine can read it.
        env: the whole environment; secrets travel here.
        name: for logs.
        log_file: where its output is appended; bounded, None = only the last lines are kept in memory.
        on_line: called with every line, from the reading thread.
        start: how it is made.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        name: str,
        log_file: Path | None = None,
        on_line: Callable[[str], None] | None = None,
        start: Start = spawn,
        clock: Clock | None = None,
    ) -> None:
        self.name = name
        self.code: int | None = None
        self.ending = False
        self.killed = False
        self._clock = clock or SystemClock()
        self._lines: deque[str] = deque(maxlen=TAIL_LINES)
        self._log_file = log_file
        self._on_line = on_line
        self._kill_at: float | None = None
        self._stopped_at: float | None = None
        self._seen_at = 0.0
        self.started_at = self._clock.monotonic()
        self._process = start(argv, {**env, PARENT_ENV: str(os.getpid())})
        self.pid = self._process.pid
        self._reader = threading.Thread(target=self._read, name=f"output of {name}", daemon=True)
        self._reader.start()

    def poll(self) -> int | None:
        """The exit status once it ended (negative = signal), None while it runs.

        Sends SIGKILL when the grace given to `terminate` is over. What a dead child left running is ended too.
        """
        if self.code is not None:
            return self.code
        self._see_whether_stopped()
        if self._kill_at is not None and (self.left_s() <= 0 or self.stopped_s() >= STOPPED_GRACE_S):
            why = "grace is over" if self.left_s() <= 0 else "it is stopped and cannot end"
            log.warning("killing, %s name=%s pid=%d", why, self.name, self.pid)
            self.kill()
            self._kill_at = None
        if not self._has_ended():
            return None
        self._signal_group(signal.SIGKILL)  # before the pid is given back, so it cannot be another's
        self.code = self._process.wait()
        self._reader.join(0.2)
        return self.code

    def wait(self, timeout_s: float, *, every_s: float = 0.02) -> int | None:
        """Poll until it ended or `timeout_s` is over."""
        deadline = self._clock.monotonic() + timeout_s
        while self.poll() is None and self._clock.monotonic() < deadline:
            self._clock.sleep(every_s)
        return self.code

    def terminate(self, grace_s: float) -> None:
        """Send SIGTERM once, and SIGKILL from the first `poll` after `grace_s`; a later call may only shorten that.

        A stopped process is woken for it.
        """
        if not self.ending:
            self._signal(signal.SIGTERM)
            self.wake()
            self.ending = True
        self._end_by(grace_s)

    def hurry(self, grace_s: float = HURRY_S) -> None:
        """Tell it twice, which roles of ours take as "end at once", and send SIGKILL after `grace_s`.

        The second time with SIGINT: two SIGTERMs that come before it runs again would be one.
        """
        if not self.ending:
            self._signal(signal.SIGTERM)
            self.ending = True
        self._signal(signal.SIGINT)
        self.wake()
        self._end_by(grace_s)

    def wake(self) -> None:
        """Have a stopped process go on; nothing happens to others."""
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """Send SIGKILL to the child and to everything in its process group."""
        self.killed = True
        self._signal_group(signal.SIGKILL)

    def tail(self, count: int = TAIL_LINES) -> list[str]:
        """The last lines of its output, oldest first; what user code printed without what the log puts around it."""
        return [line if (said := printed_in(line)) is None else said.line for line in list(self._lines)[-count:]]

    def lifetime_s(self) -> float:
        """Seconds since it was started."""
        return self._clock.monotonic() - self.started_at

    def left_s(self) -> float:
        """Seconds until it is killed; 0 when nobody asked it to end."""
        return 0.0 if self._kill_at is None else max(0.0, self._kill_at - self._clock.monotonic())

    def stopped_s(self) -> float:
        """For how long it has been stopped (SIGSTOP) without a break, as `poll` saw it; 0 for one that runs."""
        return 0.0 if self._stopped_at is None else self._seen_at - self._stopped_at

    def _see_whether_stopped(self) -> None:
        now, before = self._clock.monotonic(), self._seen_at
        self._seen_at = now
        if not self._is_stopped():
            self._stopped_at = None
        elif self._stopped_at is None or now - before > UNSEEN_S:
            self._stopped_at = now

    def _is_stopped(self) -> bool:
        """False as well where nobody can tell."""
        if not hasattr(os, "waitid"):  # macOS before Python 3.13
            return False
        try:
            return os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return False

    def _end_by(self, grace_s: float) -> None:
        kill_at = self._clock.monotonic() + grace_s
        self._kill_at = kill_at if self._kill_at is None else min(self._kill_at, kill_at)

    def _has_ended(self) -> bool:
        if not hasattr(os, "waitid"):  # macOS before Python 3.13
            return self._process.poll() is not None
        try:
            options = os.WEXITED | os.WNOHANG | os.WNOWAIT
            return os.waitid(os.P_PID, self.pid, options) is not None
        except ChildProcessError:
            return True

    def _signal(self, number: signal.Signals) -> None:
        if self.code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def _signal_group(self, number: signal.Signals) -> None:
        if self.code is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS says EPERM for a group of zombies
                os.killpg(self.pid, number)

    def _open_log(self) -> IO[bytes] | None:
        if self._log_file is None:
            return None
        try:
            return self._log_file.open("ab", buffering=0)
        except OSError as error:
            log.warning("cannot keep the output of name=%s error=%s", self.name, error)
            return None

    def _read(self) -> None:
        stream = self._process.stdout
        assert stream is not None
        written = 0
        file = self._open_log()
        try:
            while raw := stream.readline(LINE_LIMIT_BYTES):
                line = raw.decode("utf-8", "replace").rstrip("\r\n")
                self._lines.append(line)
                if self._on_line is not None:
                    self._on_line(line)
                if file is not None and written < LOG_LIMIT_BYTES:
                    with contextlib.suppress(OSError):  # a full disk; a child whose output nobody reads would hang
                        written += file.write(raw)
        finally:
            if file is not None:
                file.close()
            stream.close()
