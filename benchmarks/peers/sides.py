"""The processes of the peers: one each, which is asked for a round at a time and ends with everything it started.

It waits for nothing without a bound: a peer that fails or falls silent is out of that workload, with the reason.
"""

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from benchmarks.measure import CLOCK, Played
from benchmarks.peers.comparing import LeftOut, SideFailed
from benchmarks.peers.installing import HOME, Peer
from heddle.launch.process import ONE_THREAD

HERE = Path(__file__).parent
LOG = "side.log"
START_S = 240.0
"""Until it has imported its library; until it has made its environments and played a segment."""
ROUND_S = 60.0
END_S = 30.0
SETTLE_S = 0.7
QUIET_S, QUIET_CORE, QUIET_WITHIN_S = 0.3, 0.1, 6.0
"""It is quiet when all its processes used less than such a part of a core for so long; what plays ahead ends soon."""
TICKS = os.sysconf("SC_CLK_TCK")
Stamp = dict[tuple[int, int], int]


class Side:
    """A peer's process.

    Attributes:
        name: of the peer.
        library: the package it plays with.
        version: of that, once it is ready.
        workloads: that it can play, once it is ready.
    """

    def __init__(self, peer: Peer, python: Path, folder: Path) -> None:
        self.name, self.library, self.version, self.workloads = peer.name, peer.library, "", list[str]()
        self._log = HOME / peer.name / LOG
        own = {"PYTHONPATH": str(HERE), "HOME": str(HOME / peer.name), "TMPDIR": str(folder)}
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [str(python), str(HERE / "side.py"), peer.module, peer.library],
                env={**os.environ, **ONE_THREAD, **own},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,  # a Ctrl-C comes to this process alone, which ends all of them
            )
        self._lines: SimpleQueue[str] = SimpleQueue()
        self._begun = Stamp()
        Thread(target=self._listen, daemon=True).start()

    def wait_ready(self) -> None:
        """Until its library is imported."""
        told = self._told(START_S)
        self.version, self.workloads = told["version"], told["workloads"]

    def begin(self, workload: str) -> None:
        """Have it make its environments."""
        self._ask(f"open {workload}")

    def wait_begun(self) -> None:
        """Until it has played a segment."""
        self._told(START_S)

    def play(self, workload: str, seconds: float) -> Played:
        """One round, after some playing that does not count; CPU of every process below it."""
        self._ask(f"play {workload} {SETTLE_S} {seconds}")
        self._told(ROUND_S)
        before = stamps(self._process.pid)
        told = self._told(ROUND_S)
        used = used_s(before, stamps(self._process.pid))
        self._quieten()
        if not told["steps"]:
            raise SideFailed("gave no steps in a round")
        return Played(told["steps"], told["wall_s"], used)

    def close(self, workload: str) -> None:
        """End what plays a workload, before the next one."""
        self._ask(f"close {workload}")
        self._told(ROUND_S)

    def hang_up(self) -> None:
        """No more words: it ends whatever it started, and itself."""
        self._begun = stamps(self._process.pid)
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # of the last word to one that had ended
            self._process.stdin.close()

    def end(self, until: float) -> None:
        """Wait for that end, and then make it."""
        while CLOCK.monotonic() < until and (self._process.poll() is None or alive(self._begun)):
            CLOCK.sleep(0.1)
        kill(alive(self._begun | stamps(self._process.pid)))
        self._process.wait()

    def _quieten(self) -> None:
        """Until it no longer plays ahead, so that it takes nothing from whoever is next."""
        until = CLOCK.monotonic() + QUIET_WITHIN_S
        while CLOCK.monotonic() < until:
            before = stamps(self._process.pid)
            CLOCK.sleep(QUIET_S)
            if used_s(before, stamps(self._process.pid)) < QUIET_CORE * QUIET_S:
                return

    def _ask(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise SideFailed(self._ending()) from None

    def _told(self, within_s: float) -> Any:
        """What it says next."""
        try:
            line = self._lines.get(timeout=within_s)
        except Empty:
            kill(alive(stamps(self._process.pid)))  # what it may say later would be taken for another answer
            raise SideFailed(f"said nothing for {within_s:g} s") from None
        if not line:
            self._lines.put("")
            raise SideFailed(self._ending())
        told = json.loads(line)
        if "failed" in told:
            raise SideFailed(told["failed"])
        return told

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def _ending(self) -> str:
        last = next((line for line in reversed(self._log.read_text().splitlines()) if line.strip()), "no word")
        return f"ended with {self._process.wait(END_S)}: {last}"


@contextmanager
def running(peers: list[tuple[Peer, Path]], left_out: LeftOut) -> Iterator[list[Side]]:
    """The peers' processes, started beside each other; ended afterwards."""
    begun: list[Side] = []
    with tempfile.TemporaryDirectory(
        prefix="bench-", ignore_cleanup_errors=True
    ) as folder:  # theirs, whoever is killed
        try:
            for peer, python in peers:
                begun.append(Side(peer, python, Path(folder)))
            yield [side for side in begun if tried(side, "its start", left_out, Side.wait_ready)]
        finally:
            for side in begun:
                side.hang_up()
            until = CLOCK.monotonic() + END_S
            for side in begun:
                side.end(until)


def opened(sides: list[Side], workload: str, left_out: LeftOut) -> list[Side]:
    """Those who made their environments of a workload: Ray's one by one, as it gives up after 30 s, then the rest."""
    able = []
    for some in (
        *([side] for side in sides if side.library == "ray"),
        [side for side in sides if side.library != "ray"],
    ):
        begun = [side for side in some if tried(side, workload, left_out, lambda side: side.begin(workload))]
        able += [side for side in begun if tried(side, workload, left_out, Side.wait_begun)]
    return able


def closed(sides: list[Side], workload: str, left_out: LeftOut) -> None:
    """What plays a workload has ended."""
    for side in sides:
        tried(side, workload, left_out, lambda side: side.close(workload))


def tried(side: Side, where: str, left_out: LeftOut, act: Callable[[Side], None]) -> bool:
    """False where it failed, and is left out."""
    try:
        act(side)
    except SideFailed as problem:
        left_out.add(f"{side.name} at {where}", str(problem))
        return False
    return True


def stamps(pid: int) -> Stamp:
    """Clock ticks that a process and all below it have used, by (pid, start); who ended meanwhile is left out."""
    found, result = [pid], Stamp()
    for one in found:
        try:
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
            children = [task.read_text() for task in Path(f"/proc/{one}/task").glob("*/children")]
        except OSError:  # it has ended
            continue
        result[one, int(fields[19])] = int(fields[11]) + int(fields[12])  # starttime, utime, stime of proc(5)
        found += [int(child) for some in children for child in some.split()]
    return result


def used_s(before: Stamp, after: Stamp) -> float:
    """CPU seconds between two looks, of those who were there at the second."""
    return sum(ticks - before.get(one, 0) for one, ticks in after.items()) / TICKS


def alive(begun: Stamp) -> list[int]:
    """Those of them that have not ended; a zombie has."""
    found = []
    for pid, start in begun:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[19]) == start and fields[0] != "Z":
            found.append(pid)
    return found


def kill(pids: list[int]) -> None:
    """At once; one that has just ended is no matter."""
    for pid in pids:
        try:
            os.kill(pid, 9)
        except ProcessLookupError:
            continue
