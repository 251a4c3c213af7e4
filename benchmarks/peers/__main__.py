"""Heddle beside other libraries: `make bench-peers`, or

    python -m benchmarks.peers [--only NAME ...] [--workloads w1 w2 w3 ppo] [--rounds N] [--out FILE]

makes an environment for each in .bench/, installs it there, and has all of them play the same workloads in turns, round
by round. Who cannot be installed, or fails at a workload, is left out there, and said why. Prints one table, writes one
JSON file.
"""

import argparse
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.__main__ import OUT, table, write
from benchmarks.machine import machine
from benchmarks.measure import CLOCK, Row
from benchmarks.peers import learning
from benchmarks.peers.comparing import TITLES, LeftOut, Play, compared
from benchmarks.peers.installing import PEERS, Peer, installed
from benchmarks.peers.sides import Side, closed, opened, running
from benchmarks.pipeline import SECONDS, Pipeline
from heddle.launch.process import use_one_thread

PIPELINES = {"w1": "large", "w2": "shm", "w3": "waiting"}
"""The shape that Heddle plays at each workload."""


def main() -> int:
    """Install, run, print, write."""
    names = [peer.name for peer in PEERS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME")
    workloads = [*TITLES, learning.NAME]
    parser.add_argument("--workloads", nargs="+", choices=workloads, default=workloads, metavar="WORKLOAD")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, default=OUT, help="JSON file, or the folder for one (default: %(default)s)")
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that everything that was started is ended
    use_one_thread()
    began, left_out = CLOCK.monotonic(), LeftOut(say=say)
    peers = list(installed(options.only, left_out))
    facts, rows = machine(), list[Row]()
    try:
        with running(peers, left_out) as sides:
            facts["peers"] = {side.name: side.version for side in sides}
            for workload in options.workloads:
                if workload in TITLES:
                    say(f"measuring {TITLES[workload]} ...")
                    rows += at(workload, sides, options.rounds, left_out)
        if learning.NAME in options.workloads:
            rows += learned(peers, options.rounds, left_out)
    finally:  # what was measured before something went wrong is worth its hour
        facts |= {"left_out": left_out.reasons, "seconds": round(CLOCK.monotonic() - began, 1)}
        facts["load_at_end"] = round(os.getloadavg()[0], 2)
        if rows:
            print(table(rows))
            show(facts)
            print(f"wrote {write(options.out, facts, rows)}")
    return 0


def learned(peers: list[tuple[Peer, Path]], rounds: int, left_out: LeftOut) -> list[Row]:
    """Rows of whole runs beside the one library that the specs' hyperparameters are from."""
    beside = [python for peer, python in peers if peer.name == "sb3"]
    if not beside:
        left_out.add(learning.NAME, "it is played beside sb3, which is not there")
        return []
    say(f"measuring {learning.TITLE} ...")
    return learning.run(beside[0], rounds, left_out)


def at(workload: str, sides: list[Side], rounds: int, left_out: LeftOut) -> list[Row]:
    """Rows of one workload; what plays it ends with it."""
    able = [side for side in sides if workload in side.workloads]
    for side in sides:
        if side not in able:
            left_out.add(f"{side.name} at {workload}", "it plays no environment that is written in Python")
    try:
        able = opened(able, workload, left_out)
        seconds = SECONDS[PIPELINES[workload]]
        with ours(workload) as play:
            players: dict[str, Play] = {"heddle": play}
            players |= {side.name: partial(side.play, workload, seconds) for side in able}
            return compared(workload, players, rounds, left_out)
    finally:
        closed(able, workload, left_out)


@contextmanager
def ours(workload: str) -> Iterator[Play]:
    """Heddle's server, coordinator, two workers and this process as the consumer."""
    with tempfile.TemporaryDirectory(prefix="heddle-bench-") as folder:
        pipeline = Pipeline(PIPELINES[workload], Path(folder))
        try:
            pipeline.rest()
            yield pipeline.play
        finally:
            pipeline.close()


def show(facts: dict[str, Any]) -> None:
    """What the figures are of."""
    versions = ", ".join(f"{name} {version}" for name, version in facts["peers"].items())
    print(f"\n{facts['processor']}, {facts['cores']} cores, {facts['date']}, {facts['seconds']:g} s")
    print(f"load {facts['load_at_start']:g} at the start, {facts['load_at_end']:g} at the end; {versions}")
    for reason in facts["left_out"]:
        print(f"left out: {reason}")


def say(line: str) -> None:
    """On standard error, at once."""
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
