"""The census: which processes a shard's child has around it, how much memory they take, and how all of them end.

It reads /proc; where there is none, only the child and its process group are known. It never looks at processes that
are not the child's own: its descendants, its session, and whatever carries its mark in its environment.
"""

import contextlib
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

from heddle.clock import SystemClock

PROC = Path("/proc")
ROUNDS = 50
PAUSE_S = 0.004


def memory_of(pid: int) -> int | None:
    """Bytes of memory that a process and its descendants hold for themselves; None where that cannot be known.

    Anonymous and shared memory that is resident; what a fork shares with its parent is split between the two.
    """
    own = _sum_kb(PROC / str(pid) / "status", ("RssAnon:", "RssShmem:"))
    if own is None:
        return None
    below = list(_descendants(pid))
    if not below:
        return own * 1024
    return 1024 * sum(
        _sum_kb(PROC / str(one) / "smaps_rollup", ("Pss_Anon:", "Pss_Shmem:")) or 0 for one in (pid, *below)
    )


def end_all(leader: int | None, *marks: str) -> None:
    """Kill the process group of `leader`, which is not reaped yet, and what else is its own; returns when all are gone.

    Args:
        leader: first process of its session; None when it is gone.
        marks: each a "NAME=value" in the environment of all that it started.
    """
    clock = SystemClock()
    for _ in range(ROUNDS):
        if leader is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(leader, signal.SIGKILL)
        left = [pid for pid in _strays(leader, marks) if pid not in (leader, os.getpid())]
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not left:
            return
        clock.sleep(PAUSE_S)


def _strays(leader: int | None, marks: Sequence[str]) -> Iterator[int]:
    """Processes of the leader's session, and those with one of the marks; zombies not."""
    wanted = {mark.encode() for mark in marks}
    for entry in PROC.iterdir() if PROC.is_dir() else ():
        if not entry.name.isdigit():
            continue
        try:
            state, session = _stat(entry)
            mine = session == leader or not wanted.isdisjoint((entry / "environ").read_bytes().split(b"\0"))
        except (OSError, ValueError, IndexError):
            continue  # it ended, or is another user's
        if mine and state != "Z":
            yield int(entry.name)


def _stat(entry: Path) -> tuple[str, int]:
    """State and session of a process."""
    fields = (entry / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    return fields[0], int(fields[3])


def _descendants(pid: int) -> Iterator[int]:
    try:
        tasks = list((PROC / str(pid) / "task").iterdir())
        children = [int(word) for task in tasks for word in (task / "children").read_text().split()]
    except (OSError, ValueError):
        return
    for child in children:
        yield child
        yield from _descendants(child)


def _sum_kb(path: Path, names: tuple[str, ...]) -> int | None:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    found = [int(line.split()[1]) for line in lines if line.startswith(names)]
    return sum(found) if found else None
