"""Helpers that every test may use: waiting for a fact, and nothing that hides one."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from heddle.clock import SystemClock

T = TypeVar("T")


def eventually(fact: Callable[[], T], *, timeout_s: float = 30.0, every_s: float = 0.01, what: str = "") -> T:
    """Call `fact` until it is true and return what it returned; fail when `timeout_s` is over."""
    clock = SystemClock()
    deadline = clock.monotonic() + timeout_s
    while True:
        value = fact()
        if value:
            return value
        if clock.monotonic() >= deadline:
            raise AssertionError(f"not true within {timeout_s} s: {what or fact}; last value {value!r}")
        clock.sleep(every_s)


def is_alive(pid: int) -> bool:
    """Whether a process is there and is no zombie; it may go between two looks."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except ProcessLookupError:
        return False
    except FileNotFoundError:
        return not Path("/proc/self").exists()  # where there is no /proc a zombie counts as alive
