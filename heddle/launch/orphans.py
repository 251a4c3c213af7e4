"""Orphans: takes in what a forker makes, and buries what nobody waits for; Linux alone gives them away.

It never waits for a child that somebody of this process started: whoever did learns how it ended.
"""

import contextlib
import ctypes
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from heddle.launch.forker import LINK_ENV

PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER = 36, 37
_ADOPTING = threading.Lock()
_FORKED = f"{LINK_ENV}=".encode()


class Orphans:
    """Those that came to this process while it took some in.

    Attributes:
        strays: pids of those that are buried when they end.
    """

    def __init__(self) -> None:
        self.strays: set[int] = set()

    @contextlib.contextmanager
    def adopting(self, forker: int | None) -> Iterator[None]:
        """Within, orphans below us become our children. Remember those that nobody asked for.

        Args:
            forker: what it leaves behind is remembered, too: whoever gets a copy of it takes that one out of `strays`.
                None without one; never 0, which is the session of whoever was brought into a container from outside.
        """
        with _ADOPTING:
            before = ctypes.c_int()
            libc = ctypes.CDLL(None)
            if libc.prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0) != 0 or before.value:
                yield  # we do at all times, and somebody sees to it; or never, which will be seen
                return
            there, ours = _processes(), children()
            libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            try:
                yield
            finally:
                libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
                # Others that were born meanwhile are somebody's here.
                came = children() - ours
                self.strays |= (came & there) | {pid for pid in came - there if _is_of(pid, forker)}

    def bury(self) -> None:
        """Wait for those that have ended."""
        for pid in list(self.strays):
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG)[0] == 0:
                    continue
            self.strays.discard(pid)


def children() -> set[int]:
    """Children of our first thread, which orphans come to."""
    pid = os.getpid()
    try:
        return {int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}
    except OSError:
        return set()  # a kernel without this list


def _processes() -> set[int]:
    return {int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()}


def _is_of(pid: int, forker: int | None) -> bool:
    """Whether a process is one that a forker made: it begins in its session, and with its environment."""
    try:
        session = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[3])
        return session == forker or _FORKED in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
