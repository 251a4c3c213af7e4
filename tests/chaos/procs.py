"""Processes as the kernel shows them: whose child, which command, which environment. Linux only.

It never starts or ends one.
"""

import os
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Process:
    """One process that is not a zombie."""

    pid: int
    parent: int
    command: str


def process(pid: int) -> Process | None:
    """The process of that id; None when there is none, or only its exit status is left."""
    entry = PROC / str(pid)
    try:
        command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
    except (OSError, ValueError):
        return None
    return None if state in "ZX" else Process(pid, int(parent), command)


def marked(name: str, value: str) -> list[Process]:
    """Living processes that were started with that variable in their environment, by pid."""
    found = []
    for entry in PROC.iterdir():
        if entry.name.isdigit() and environment(int(entry.name), name) == value:
            one = process(int(entry.name))
            found += [one] if one is not None else []
    return sorted(found, key=lambda one: one.pid)


def environment(pid: int, name: str) -> str:
    """A variable that the process was started with; "" when it has none or is gone."""
    try:
        data = (PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return ""
    start = name.encode() + b"="
    return next((one[len(start) :].decode() for one in data.split(b"\0") if one.startswith(start)), "")


def rss_bytes(pid: int) -> int:
    """Resident memory; 0 when the process is gone."""
    try:
        pages = int((PROC / str(pid) / "statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
