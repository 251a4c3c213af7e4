"""The fuzzer: mutants are tried in child processes, so that a crash or a hang of one is found, named and survived.

usage: python -m tests.fuzz TARGET [--mutants N] [--seed S] [--jobs J] [--only INDEX]

Mutant number i of a seed is always the same; --only tries a single one here, for a debugger.
"""

import argparse
import faulthandler
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.fuzz.targets import TARGETS

SILENT_S = 60.0
"""A mutant on which a child spends so long is a hang."""
STARTING_S = 300.0
"""What a child may take to import all it needs, on a machine with much else to do."""
MEMORY = 6 << 30
"""What a child may map; a mutant that asks for more is found."""
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Found:
    """A mutant that ended badly.

    Attributes:
        index: which one; how: what it did.
    """

    index: int
    how: str


def fuzz(target: str, *, mutants: int, seed: int, jobs: int = 1) -> list[Found]:
    """Try so many mutants of a target; those that ended badly."""
    share = -(-mutants // jobs)
    with tempfile.TemporaryDirectory(prefix="heddle-fuzz-") as folder:
        lanes = [
            _Lane(target, seed, range(start, min(mutants, start + share)), Path(folder, str(start)))
            for start in range(0, mutants, share)
        ]
        while any([lane.step() for lane in lanes]):
            time.sleep(0.05)
    return [found for lane in lanes for found in lane.found]


class _Lane:
    """One child after another over a range of mutants; the next one begins behind the mutant that ended the last."""

    def __init__(self, target: str, seed: int, indexes: range, folder: Path) -> None:
        self.found: list[Found] = []
        self._target, self._seed, self._indexes, self._folder = target, seed, indexes, folder
        folder.mkdir()
        self._mark = folder / "index"
        self._child = self._start(indexes.start)

    def step(self) -> bool:
        """Look at the child; False when all is done."""
        child = self._child
        if child is None:
            return False
        if child.poll() is None:
            trying = self._mark.read_bytes().endswith(b" ")  # as the child writes it
            if time.time() - self._mark.stat().st_mtime > (SILENT_S if trying else STARTING_S):
                child.send_signal(signal.SIGABRT)  # faulthandler tells where it is
                child.wait()
                self._ended("hung")
            return True
        if child.returncode == 0:
            self._child = None
            return False
        self._ended(f"ended with {child.returncode}")
        return True

    def _ended(self, how: str) -> None:
        index = int(self._mark.read_text() or self._indexes.start)
        said = (self._folder / "said").read_text(errors="replace").strip().splitlines()
        self.found.append(Found(index, f"{how}: {' | '.join(said[-12:])[-1_500:]}"))
        self._child = self._start(index + 1) if index + 1 < self._indexes.stop else None

    def _start(self, first: int) -> "subprocess.Popen[bytes] | None":
        if first >= self._indexes.stop:
            return None
        self._mark.write_text(str(first))
        argv = [sys.executable, "-m", "tests.fuzz", self._target, "--seed", str(self._seed), "--child"]
        argv += [str(self._folder), str(first), str(self._indexes.stop)]
        with (self._folder / "said").open("wb") as said:
            return subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=said, stderr=said)


def _child(target: str, seed: int, folder: Path, indexes: range) -> None:
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    mark = os.open(folder / "index", os.O_WRONLY)
    place = folder / "work"
    place.mkdir(exist_ok=True)
    made = TARGETS[target](place)
    for index in indexes:
        os.pwrite(mark, b"%-21d" % index, 0)
        made.trial(made.mutant(np.random.default_rng([seed, index])))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("target", choices=sorted(TARGETS))
    parser.add_argument("--mutants", type=int, default=5_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", type=int)
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        folder, first, stop = options.child
        _child(options.target, options.seed, Path(folder), range(int(first), int(stop)))
        return 0
    if options.only is not None:
        with tempfile.TemporaryDirectory() as folder:
            made = TARGETS[options.target](Path(folder))
            made.trial(made.mutant(np.random.default_rng([options.seed, options.only])))
        return 0
    began = time.monotonic()
    found = fuzz(options.target, mutants=options.mutants, seed=options.seed, jobs=options.jobs)
    for one in found:
        print(f"mutant {one.index} {one.how}")
    seconds = time.monotonic() - began
    print(f"{options.target}: {options.mutants} mutants, seed {options.seed}, {len(found)} bad, {seconds:.1f} s")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
