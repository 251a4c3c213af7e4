"""What it costs to be looked at: the pipeline with traces, metrics, log files and profile on, against all of it off.

Both pipelines are there all the time, each with a server, a coordinator and workers of its own, and play in turn.
"""

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.measure import Row, alternate, compare
from benchmarks.pipeline import ROUNDS, Pipeline, title
from benchmarks.workload import SHAPES
from heddle.cli.roles import PROFILE_ENV
from heddle.tracing import TRACE_ENV, open_tracing

WITHIN_S = 60.0
METRICS_ENV = "HEDDLE_METRICS_PORT"
KNOBS = (TRACE_ENV, METRICS_ENV, PROFILE_ENV)


@contextmanager
def knobs(**values: str) -> Iterator[None]:
    """These variables, and no other of the knobs, for the processes that are started inside."""
    before = {name: os.environ.pop(name) for name in KNOBS if name in os.environ}
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            del os.environ[name]
        os.environ.update(before)


@contextmanager
def sink(metrics_port: int) -> Iterator[str]:
    """A collector's address, while it and a scraper of that port run."""
    argv = [sys.executable, "-m", "benchmarks.sink", str(metrics_port)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


def run() -> list[Row]:
    """Rows for both shapes."""
    rows = []
    for name, shape in SHAPES.items():
        with tempfile.TemporaryDirectory(prefix="heddle-bench-") as folder, ExitStack() as stack:
            port = free_port()
            collector = stack.enter_context(sink(port))
            with knobs(**{PROFILE_ENV: "0"}):
                dark = Pipeline(name, Path(folder) / "dark")
            stack.callback(dark.close)
            dark.rest()
            with knobs(**{TRACE_ENV: collector, METRICS_ENV: str(port)}):
                tracing = open_tracing("heddle-trainer", told=collector)
                observed = Pipeline(name, Path(folder) / "observed", log_dir=Path(folder) / "logs", tracing=tracing)
            assert tracing is not None, "it is told where to"
            stack.callback(tracing.close)
            stack.callback(observed.close)
            observed.rest()
            pairs = alternate(ROUNDS, observed.play, dark.play, within_s=WITHIN_S)
            check(tracing.outbox.tally().sent, Path(folder) / "logs")
        rows += compare(f"observing, {title(shape)}", ("observed", "dark"), pairs)
    return rows


def check(sent: int, logs: Path) -> None:
    """Everything was on indeed."""
    if not sent or not any(logs.iterdir()):
        raise RuntimeError(f"not all of it was on: {sent} spans sent, {len(list(logs.iterdir()))} log files")


def free_port() -> int:
    """A port that nobody has now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
