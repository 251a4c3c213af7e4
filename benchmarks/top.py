"""What `heddle top` takes of a core while it watches a fleet: 1,000 light workers, which beat once a second.

In a terminal of 120 by 40: the list of experiments, that of workers, and the experiment opened, with 2,000 shards.
"""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from benchmarks.control import Lights, source
from benchmarks.fleet import fleet
from benchmarks.measure import CLOCK, Row, cpu_s_of, spread
from heddle.errors import TimedOut

WORKERS, SHARDS, PROCESSES = 1_000, 2_000, 2
SIZE = (40, 120)
SCREENS = (("list of experiments", "e"), ("list of workers", "w"), (f"an experiment of {SHARDS:,} shards", "e\r"))
SETTLE_S, LOOK_S, PATIENCE_S = 8.0, 14.0, 120.0
"""At first every worker is new to whoever looks."""


class Terminal:
    """`heddle top` in a terminal that is read and forgotten.

    Attributes:
        shown: how many bytes it drew.
    """

    def __init__(self, url: str) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", *SIZE, 0, 0))
        argv = [sys.executable, "-m", "heddle", "top", "--redis-url", url]
        env = {**os.environ, "TERM": "xterm-256color"}
        self.process = subprocess.Popen(argv, stdin=slave, stdout=slave, stderr=slave, env=env)
        os.close(slave)
        self.shown = 0
        threading.Thread(target=self._read, daemon=True).start()

    def press(self, key: str) -> None:
        """As a person does."""
        os.write(self._master, key.encode())

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()

    def _read(self) -> None:
        try:
            while data := os.read(self._master, 65_536):
                self.shown += len(data)
        except OSError:
            return  # it ended


def run() -> list[Row]:
    """A row for each screen."""
    section = f"heddle top, {WORKERS:,} workers, {SIZE[1]} x {SIZE[0]}"
    with watched() as terminal:
        rows = []
        for screen, key in SCREENS:
            terminal.press(key)
            CLOCK.sleep(SETTLE_S)
            share = spread(_share(terminal) for _ in range(3))
            rows.append(Row(section, f"share of a core, {screen}", "x", share))
    return rows


@contextmanager
def watched() -> Iterator[Terminal]:
    """Within it there is a fleet, and somebody who watches it."""
    with fleet(0) as it, ExitStack() as stack:
        experiment = it.submit(source(SHARDS))
        each = WORKERS // PROCESSES
        groups = [Lights(it.local.url, experiment.id, each * n, each) for n in range(PROCESSES)]
        for group in groups:
            stack.callback(group.kill)
        until = CLOCK.monotonic() + PATIENCE_S
        while sum(group.held for group in groups) < SHARDS:
            if CLOCK.monotonic() > until:
                raise TimedOut(f"{sum(group.held for group in groups)} of {SHARDS} shards held")
            it.local.step()
            CLOCK.sleep(0.1)
        terminal = Terminal(it.local.url)
        stack.callback(terminal.close)
        yield terminal


def _share(terminal: Terminal) -> float:
    drawn, before, began = terminal.shown, cpu_s_of([terminal.process.pid]), CLOCK.monotonic()
    CLOCK.sleep(LOOK_S)
    used, passed = cpu_s_of([terminal.process.pid]) - before, CLOCK.monotonic() - began
    if terminal.process.poll() is not None or terminal.shown == drawn:
        raise RuntimeError("it drew nothing")
    return used / passed
