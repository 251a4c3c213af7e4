"""Child processes that do not outlive their owner, not even one killed with SIGKILL.

On Linux the kernel tells the child (PR_SET_PDEATHSIG); elsewhere a small watchdog process reads a pipe that ends
when the owner does. It never restarts anything.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

# Run by a bare interpreter that then becomes the program: setting the flag between fork and exec from Python is
# unsafe in a process with threads. The parent is compared because it may be gone before the flag is set.
_ASK_KERNEL = """
import ctypes, os, sys
if ctypes.CDLL(None).prctl(1, 15, 0, 0, 0) != 0 or os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""

_WATCH_PIPE = """
import os, select, signal, sys
pid = int(sys.argv[1])
while True:
    ready, _, _ = select.select([0], [], [], 1.0)
    try:
        if not ready:
            os.kill(pid, 0)
        elif os.read(0, 1):
            break
        else:
            os.kill(pid, signal.SIGTERM)
            break
    except ProcessLookupError:
        break
"""


class OwnedProcess:
    """A child in a session of its own (Ctrl-C in the terminal does not reach it) that ends with this process.

    On Linux it ends with the thread that started it, so start it from a thread that stays: the main one.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes,
        folder: Path,
        log: IO[bytes],
        keep_open: Sequence[int] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Start `argv` (absolute program first) in `folder`, feed it `stdin`, send what it says to `log`.

        Args:
            keep_open: file descriptors that the child shares.
            env: its whole environment; None for our own.

        Raises:
            OSError: the program cannot be started.
        """
        on_linux = sys.platform == "linux"
        wrapped = [*_bare_python(_ASK_KERNEL), str(os.getpid()), *argv] if on_linux else list(argv)
        self._process = subprocess.Popen(
            wrapped,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
            start_new_session=True,
            pass_fds=keep_open,
            env=None if env is None else dict(env),
        )
        self._watchdog = None if on_linux else _watchdog(self._process.pid)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._process.stdin as pipe:
            pipe.write(stdin)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def returncode(self) -> int | None:
        """Exit code, negative for a signal; None while it runs."""
        return self._process.poll()

    def end(self, timeout_s: float) -> int:
        """SIGTERM, then after `timeout_s` SIGKILL; returns the exit code. Does nothing to a process that ended."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._dismiss_watchdog()
        return code

    def kill(self) -> None:
        """SIGKILL at once. Does nothing to a process that ended."""
        self._process.kill()
        self._process.wait()
        self._dismiss_watchdog()

    def _dismiss_watchdog(self) -> None:
        if self._watchdog is None:
            return
        assert self._watchdog.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._watchdog.stdin as pipe:
            pipe.write(b"q")  # one byte: leave; end of file: kill
        self._watchdog.wait()
        self._watchdog = None


def _bare_python(code: str) -> list[str]:
    """This interpreter without site packages: starts in a few milliseconds."""
    return [sys.executable, "-I", "-S", "-c", code]


def _watchdog(pid: int) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [*_bare_python(_WATCH_PIPE), str(pid)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
