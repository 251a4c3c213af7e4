"""Heddle beside other libraries: `make bench-peers`, or

    python -m benchmarks.peers [--only NAME ...] [--rounds N] [--out FILE]

makes an environment for each in .bench/, installs it there (what cannot be installed is left out, and said so), and has
all of them play the same workloads in turns, round by round. Prints one table, writes one JSON file.
"""

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.__main__ import OUT, table, write
from benchmarks.machine import machine
from benchmarks.measure import Played, Row, cpu_s_of, spread
from benchmarks.peers.installing import HOME, PEERS, Peer, installed
from benchmarks.pipeline import Pipeline
from benchmarks.waiting import CASES, Hosted
from heddle.launch.process import ONE_THREAD, use_one_thread

HERE = Path(__file__).parent
SECONDS = {"w1": 2.5, "w3": 2.5}
TITLES = {"w1": "W1, CartPole-v1, MLP 64-64", "w3": "W3, 64 environments, waits of 10 ms"}
Sides = dict[str, dict[str, Callable[[], Played]]]


@dataclass
class Side:
    """A peer that runs."""

    name: str
    process: "subprocess.Popen[str]"
    workloads: list[str] = field(default_factory=list)

    def play(self, workload: str) -> Played:
        """One round."""
        assert self.process.stdin is not None
        before = cpu_s_of(_tree(self.process.pid))
        self.process.stdin.write(f"{workload} {SECONDS[workload]}\n")
        self.process.stdin.flush()
        told = json.loads(self.line())
        used = cpu_s_of(_tree(self.process.pid)) - before
        return Played(told["steps"], told["wall_s"], used)

    def line(self) -> str:
        """What it says next."""
        assert self.process.stdout is not None
        if line := self.process.stdout.readline():
            return line
        raise RuntimeError(f"{self.name} ended with {self.process.wait()}")

    def end(self) -> None:
        """End it and whatever it started."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def main() -> int:
    """Install, run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [peer.name for peer in PEERS]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, default=OUT, help="JSON file, or the folder for one (default: %(default)s)")
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    use_one_thread()
    facts = machine()
    with ExitStack() as stack:
        sides = [started(peer, python, stack) for peer, python in installed(options.only)]
        facts["peers"] = {side.name: side.workloads for side in sides}
        rows = compared(with_heddle(sides, stack), options.rounds)
    print(table(rows))
    print(f"\n{facts['processor']}, {facts['cores']} cores, {facts['date']}\nwrote {write(options.out, facts, rows)}")
    return 0


def started(peer: Peer, python: Path, stack: ExitStack) -> Side:
    """The peer's process, once it says what it can play."""
    process = subprocess.Popen(
        [str(python), str(HERE / "side.py"), peer.module],
        env={**os.environ, **ONE_THREAD, "PYTHONPATH": str(HERE), "HOME": str(HOME / peer.name)},  # they write there
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    side = Side(peer.name, process)
    stack.callback(side.end)
    side.workloads = json.loads(side.line())
    return side


def with_heddle(sides: list[Side], stack: ExitStack) -> Sides:
    """By workload and name what plays a round."""
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="heddle-bench-"))
    pipeline, waiting = Pipeline("large", Path(folder)), Hosted(CASES[0])
    stack.callback(pipeline.close)
    stack.callback(waiting.close)
    pipeline.experiment.pause()
    found: Sides = {"w1": {"heddle": pipeline.play}, "w3": {"heddle": lambda: waiting.play(SECONDS["w3"])}}
    for side in sides:
        for workload in side.workloads:
            found[workload][side.name] = lambda side=side, workload=workload: side.play(workload)  # type: ignore[misc]
    return found


def compared(sides: Sides, rounds: int) -> list[Row]:
    """Rows for each workload; ratios are taken round by round."""
    rows = []
    for workload, players in sides.items():
        for play in players.values():
            play()  # the first one makes environments and warms up
        played: dict[str, list[Played]] = {name: [] for name in players}
        for number in range(rounds):
            order = list(players) if number % 2 == 0 else list(reversed(players))
            for name in order:
                played[name].append(players[name]())
        for name, some in played.items():
            section = TITLES[workload]
            rows.append(Row(section, f"{name}: steps/s", "1/s", spread(one.rate for one in some)))
            rows.append(Row(section, f"{name}: CPU a step", "us", spread(one.cpu_us for one in some)))
            if name != "heddle":
                ratios = [a.rate / b.rate for a, b in zip(played["heddle"], some, strict=True)]
                rows.append(Row(section, f"steps/s, heddle / {name}", "x", spread(ratios)))
    return rows


def _tree(pid: int) -> list[int]:
    """A process and everything below it; what ended meanwhile is left out."""
    found = [pid]
    for one in found:
        for task in Path(f"/proc/{one}/task").glob("*/children"):
            found += [int(child) for child in task.read_text().split()]
    return found


if __name__ == "__main__":
    sys.exit(main())
