"""How long it takes to begin: `heddle --help`; `heddle run` from the command to its first trained batch; and
`heddle enqueue` from the command to the first trained batch, where `heddle up` has its workers waiting.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.measure import CLOCK, Row, spread
from heddle.broker.server import find_running
from heddle.client import Client, connect
from heddle.errors import TimedOut

SECTION = "start-up"
HELP_ROUNDS = 7
RUN_ROUNDS = 3
ENQUEUE_ROUNDS = 3
WORKERS = 2
PATIENCE_S = 60.0
HEDDLE = (sys.executable, "-m", "heddle")
CARTPOLE = Path(__file__).parents[1] / "examples" / "cartpole.toml"
SHORT = ("--set", "budget.env_steps=512")


def run() -> list[Row]:
    """Rows for all of it."""
    helps = [_help_ms() for _ in range(HELP_ROUNDS)]
    starts = [_first_batch_s() for _ in range(RUN_ROUNDS)]
    return [
        Row(SECTION, "heddle --help", "ms", spread(helps)),
        Row(SECTION, "heddle run: command to first trained batch", "s", spread(first for first, _ in starts)),
        Row(SECTION, "heddle run of 2 updates: command to prompt", "s", spread(whole for _, whole in starts)),
        Row(SECTION, "heddle enqueue, warm pool: command to first trained batch", "s", spread(_enqueued_s())),
    ]


def _help_ms() -> float:
    began = CLOCK.monotonic()
    subprocess.run([*HEDDLE, "--help"], stdout=subprocess.DEVNULL, check=True)
    return 1e3 * (CLOCK.monotonic() - began)


def _first_batch_s() -> tuple[float, float]:
    """Seconds until the metrics of the first update were written, and until the command was over."""
    with tempfile.TemporaryDirectory(prefix="heddle-bench-") as folder:
        argv = [*HEDDLE, "run", str(CARTPOLE), *SHORT]
        began, wall = CLOCK.monotonic(), CLOCK.wall()
        process = subprocess.Popen(argv, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            first_ms = _first_metric_ms(Path(folder), process)
            _, errors = process.communicate(timeout=PATIENCE_S)
        except BaseException:
            process.kill()
            process.communicate()
            raise
        if process.returncode != 0:
            raise RuntimeError(f"heddle run ended with {process.returncode}: {errors[-2000:]}")
        return first_ms / 1e3 - wall, CLOCK.monotonic() - began


def _enqueued_s() -> list[float]:
    """Seconds from `heddle enqueue` until the metrics of the first update were written, one run after the other."""
    with tempfile.TemporaryDirectory(prefix="heddle-bench-") as folder, _up(Path(folder)) as (process, client):
        taken = []
        for number in range(ENQUEUE_ROUNDS):
            argv = [*HEDDLE, "enqueue", str(CARTPOLE), *SHORT, "--name", f"start-{number}"]
            wall = CLOCK.wall()
            done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
            experiment = done.stdout.strip()
            taken.append(_trained_ms(client, experiment, process, CLOCK.monotonic() + PATIENCE_S) / 1e3 - wall)
            client.experiment(experiment).wait(timeout=PATIENCE_S)
        return taken


@contextmanager
def _up(folder: Path) -> "Iterator[tuple[subprocess.Popen[bytes], Client]]":
    """Within it, `heddle up` runs in a folder, and its workers were heard."""
    argv = [*HEDDLE, "up", "--workers", str(WORKERS)]
    process = subprocess.Popen(argv, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until = CLOCK.monotonic() + PATIENCE_S
        with connect(_url(folder / ".heddle", process, until)) as client:
            while sum(info.alive for info in client.broker.pools.workers()) < WORKERS:
                _check(process, until)
                CLOCK.sleep(0.05)
            yield process, client
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def _first_metric_ms(folder: Path, process: "subprocess.Popen[str]") -> int:
    """When the first metrics were written, by the clock of the server, which is this machine's."""
    until = CLOCK.monotonic() + PATIENCE_S
    with connect(_url(folder / ".heddle" / "run", process, until)) as client:
        while not (known := client.experiments()):
            _check(process, until)
            CLOCK.sleep(0.02)
        return _trained_ms(client, known[0].experiment, process, until)


def _url(folder: Path, process: "subprocess.Popen[Any]", until: float) -> str:
    """Of the server in a folder, once it runs."""
    while (url := find_running(folder)) is None:
        _check(process, until)
        CLOCK.sleep(0.02)
    return url


def _trained_ms(client: Client, experiment: str, process: "subprocess.Popen[Any]", until: float) -> int:
    while not (metrics := client.broker.events.metrics_read(experiment, block_ms=100)):
        _check(process, until)
    return metrics[0].time_ms


def _check(process: "subprocess.Popen[Any]", until: float) -> None:
    if process.poll() is not None:
        raise RuntimeError(f"heddle ended with {process.returncode} before its first batch")
    if CLOCK.monotonic() > until:
        raise TimedOut(f"heddle trained nothing within {PATIENCE_S:g} s")
