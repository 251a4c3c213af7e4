"""Writers of checkpoints, killed at any moment of a write: what was announced is there, and what is there is whole.

Run as a program it is the writer: for each line on standard input it forks a child that writes one checkpoint after the
other and prints each when it is durable, until it is killed.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from heddle import checkpoint as files
from heddle.checkpoint import Checkpoint
from heddle.clock import SystemClock

KILLS = 2_000 if os.environ.get("HEDDLE_SOAK") else 40
KEPT = 3
NUMBERS = 40_000


def made(seat_epoch: int, update: int) -> Checkpoint:
    """160 KB that all follow from its update."""
    return Checkpoint(
        experiment="killed-1",
        spec_json="{}",
        spec_sha256="ab" * 32,
        spaces={},
        seat_epoch=seat_epoch,
        update=update,
        policy_version=update,
        env_steps=update * 10,
        weights={"w": np.full(NUMBERS, update, np.float32)},
        marks={f"0/{shard}": [1, "n", update] for shard in range(50)},
    )


class Writers:
    """Writers to kill, one after the other."""

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.test_checkpoint_kills", str(folder)],
            cwd=Path(__file__).resolve().parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def kill_one(self, seat_epoch: int, after_s: float) -> int:
        """Have one write under a seat epoch and kill it; the last update that it announced, 0 for none."""
        assert self._process.stdin is not None and self._process.stdout is not None
        print(seat_epoch, file=self._process.stdin, flush=True)
        pid = int(self._process.stdout.readline())
        SystemClock().sleep(after_s)
        os.kill(pid, signal.SIGKILL)
        announced = 0
        while (line := self._process.stdout.readline().strip()) != "gone":
            announced = int(line)
        return announced

    def end(self) -> None:
        self._process.communicate()


@pytest.fixture
def writers(tmp_path: Path) -> Iterator[Writers]:
    running = Writers(tmp_path / "checkpoints")
    yield running
    running.end()


def test_killed_at_any_moment_of_a_write_the_newest_checkpoint_is_the_announced_one_or_the_next(
    writers: Writers, tmp_path: Path
) -> None:
    rng = np.random.default_rng(11)
    folder, last, cut_short = tmp_path / "checkpoints", 0, 0
    for seat_epoch in range(1, 10 * KILLS + 1):
        if seat_epoch > KILLS and cut_short >= KILLS // 20:
            break
        # When a writer is killed
        announced = writers.kill_one(seat_epoch, float(rng.uniform(0.0, 0.03)))
        # Then the newest file is whole, and is the last one that was announced, or the one after it
        found = files.find(folder, experiment="killed-1")
        assert found.skipped == (), "a file under its final name is whole"
        written = announced or last
        if found.checkpoint is not None:
            update = found.checkpoint.update
            assert update in (written, written + 1) if found.checkpoint.seat_epoch == seat_epoch else update == last
            assert (found.checkpoint.weights["w"] == update).all()
            assert found.checkpoint.marks["0/7"] == [1, "n", update]
            last = update
        else:
            assert announced == 0
        # and the next one sweeps up what it left
        left = list(folder.glob(".*.tmp"))
        cut_short += bool(left)
        files.sweep(folder, below=seat_epoch + 1)
        assert not list(folder.glob(".*.tmp"))
    assert cut_short >= KILLS // 20, "else no kill met a write"
    files.prune(folder, KEPT)
    assert len(files.listing(folder)) == KEPT


def _serve(folder: Path) -> None:
    for line in sys.stdin:
        seat_epoch = int(line)
        pid = os.fork()
        if pid == 0:
            _write(folder, seat_epoch)
        os.waitpid(pid, 0)
        print("gone", flush=True)


def _write(folder: Path, seat_epoch: int) -> None:
    print(os.getpid(), flush=True)
    before = files.newest(folder)
    update = before.update if before is not None else 0
    while True:
        update += 1
        files.save(folder, made(seat_epoch, update))
        os.write(1, f"{update}\n".encode())  # whole or not at all
        files.prune(folder, KEPT)


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
