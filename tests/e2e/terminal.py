"""A terminal of one's own: a session with a process in it, that is closed as a window is."""

import contextlib
import fcntl
import os
import pty
import select
import subprocess
import termios
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.e2e.shell import HEDDLE, environment
from tests.helpers import eventually


class Terminal:
    """`heddle ARGUMENTS` on a pty.

    Args:
        controls: it is the process's controlling terminal, whose closing sends SIGHUP; else writes fail and no more.
    """

    def __init__(self, *arguments: str, cwd: Path, controls: bool, url: str | None = None) -> None:
        self.master, slave = pty.openpty()
        termios.tcsetwinsize(slave, (24, 120))
        self.arguments, self._said = arguments, bytearray()
        self.process = subprocess.Popen(
            [*HEDDLE, *arguments],
            cwd=cwd,
            env=environment(url, {"TERM": "xterm-256color"}),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=(lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)) if controls else None,
        )
        os.close(slave)
        self._closing = threading.Event()
        self._reader = threading.Thread(target=self._read)  # one that nobody reads would fill up and stop it
        self._reader.start()

    def _read(self) -> None:
        while not self._closing.is_set():
            if select.select([self.master], [], [], 0.05)[0]:
                try:
                    self._said += os.read(self.master, 65_536)
                except OSError:
                    return

    @property
    def said(self) -> str:
        """All so far."""
        return self._said.decode("utf-8", "replace")

    def waits_for(self, fact: Callable[[], object], *, timeout_s: float = 120) -> None:
        """Until `fact` is true; fails when the process ends before."""

        def known() -> object:
            assert self.process.poll() is None, f"{self.arguments} ended: {self.said[-3000:]}"
            return fact()

        eventually(known, timeout_s=timeout_s, what=f"{self.arguments}: {self.said[-500:]}")

    def close(self) -> None:
        """As the window's button does."""
        if self._reader.is_alive():
            self._closing.set()
            self._reader.join()
        with contextlib.suppress(OSError):
            os.close(self.master)

    def ends(self, *, timeout_s: float = 90) -> int:
        """Wait for the exit code."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.arguments} does not end: {self.said[-3000:]}") from None


@contextlib.contextmanager
def on_a_terminal(*arguments: str, cwd: Path, controls: bool = True, url: str | None = None) -> Iterator[Terminal]:
    """A command that has a terminal of its own while inside."""
    one = Terminal(*arguments, cwd=cwd, controls=controls, url=url)
    try:
        yield one
    finally:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()
        one.close()
