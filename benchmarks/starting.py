"""How long it takes to begin: `heddle --help`, and `heddle run` from the command to its first trained batch."""

import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.measure import CLOCK, Row, spread
from heddle.broker.server import find_running
from heddle.client import connect
from heddle.errors import TimedOut

SECTION = "start-up"
HELP_ROUNDS = 7
RUN_ROUNDS = 3
PATIENCE_S = 60.0
HEDDLE = (sys.executable, "-m", "heddle")
CARTPOLE = Path(__file__).parents[1] / "examples" / "cartpole.toml"


def run() -> list[Row]:
    """Rows for both."""
    helps = [_help_ms() for _ in range(HELP_ROUNDS)]
    starts = [_first_batch_s() for _ in range(RUN_ROUNDS)]
    return [
        Row(SECTION, "heddle --help", "ms", spread(helps)),
        Row(SECTION, "heddle run: command to first trained batch", "s", spread(first for first, _ in starts)),
        Row(SECTION, "heddle run of 2 updates: command to prompt", "s", spread(whole for _, whole in starts)),
    ]


def _help_ms() -> float:
    began = CLOCK.monotonic()
    subprocess.run([*HEDDLE, "--help"], stdout=subprocess.DEVNULL, check=True)
    return 1e3 * (CLOCK.monotonic() - began)


def _first_batch_s() -> tuple[float, float]:
    """Seconds until the metrics of the first update were written, and until the command was over."""
    with tempfile.TemporaryDirectory(prefix="heddle-bench-") as folder:
        argv = [*HEDDLE, "run", str(CARTPOLE), "--set", "budget.env_steps=512"]
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


def _first_metric_ms(folder: Path, process: "subprocess.Popen[str]") -> int:
    """When the first metrics were written, by the clock of the server, which is this machine's."""
    until = CLOCK.monotonic() + PATIENCE_S
    while (url := find_running(folder / ".heddle" / "run")) is None:
        _check(process, until)
        CLOCK.sleep(0.02)
    with connect(url) as client:
        while not (known := client.experiments()):
            _check(process, until)
            CLOCK.sleep(0.02)
        while not (metrics := client.broker.events.metrics_read(known[0].experiment, block_ms=100)):
            _check(process, until)
        return metrics[0].time_ms


def _check(process: "subprocess.Popen[str]", until: float) -> None:
    if process.poll() is not None:
        raise RuntimeError(f"heddle run ended with {process.returncode} before its first batch")
    if CLOCK.monotonic() > until:
        raise TimedOut(f"heddle run trained nothing within {PATIENCE_S:g} s")
