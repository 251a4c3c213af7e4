"""What it costs to be looked at: processor time a step of the pipeline with what looks on, against all of it off.

Four pipelines are there all the time, each with a server, a coordinator and workers of its own, and play in turn: one
with everything on, one with everything but traces, and two with nothing, which are the control: what those two differ
by is what this cannot tell. Speed is not compared: on a machine that is not idle it varies by more than any of this
costs.
"""

import math
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.measure import CLOCK, Played, Row, Spread, spread
from benchmarks.pipeline import Pipeline, title
from benchmarks.workload import SHAPES
from heddle.cli.roles import PROFILE_ENV
from heddle.states.results import interval95
from heddle.tracing import TRACE_ENV, open_tracing

ROUNDS = 24
WITHIN_S = 90.0
METRICS_ENV = "HEDDLE_METRICS_PORT"
KNOBS = (TRACE_ENV, METRICS_ENV, PROFILE_ENV)
DARK, CONTROL, WATCHED, TRACED = "nothing on", "nothing on, again", "all but traces", "everything"
"""Of all but traces: sampling for `heddle profile`, log files, /metrics scraped every 5 s."""


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
            sides = pipelines(name, Path(folder), stack)
            told = by_turns({side: pipeline.play for side, pipeline in sides.items()})
        rows += compare(f"observing, {title(shape)}", told)
    return rows


def pipelines(name: str, folder: Path, stack: ExitStack) -> dict[str, Pipeline]:
    """All four, playing nothing yet; `stack` ends them."""
    sides: dict[str, Pipeline] = {}

    def begin(side: str, **more: object) -> None:
        sides[side] = Pipeline(name, folder / str(len(sides)), **more)  # type: ignore[arg-type]
        stack.callback(sides[side].close)
        sides[side].rest()

    for side in (DARK, CONTROL):
        with knobs(**{PROFILE_ENV: "0"}):
            begin(side)
    port = free_port()
    stack.enter_context(sink(port))
    with knobs(**{METRICS_ENV: str(port)}):
        begin(WATCHED, log_dir=folder / "watched-logs")
    port = free_port()
    collector = stack.enter_context(sink(port))
    with knobs(**{TRACE_ENV: collector, METRICS_ENV: str(port)}):
        tracing = open_tracing("heddle-trainer", told=collector)
        assert tracing is not None, "it is told where to"
        stack.callback(tracing.close)
        begin(TRACED, log_dir=folder / "traced-logs", tracing=tracing)

    def check() -> None:
        if not tracing.outbox.tally().sent or not any((folder / "traced-logs").iterdir()):
            raise RuntimeError("not all of it was on")

    stack.callback(check)
    return sides


def by_turns(plays: Mapping[str, Callable[[], Played]]) -> dict[str, list[Played]]:
    """Rounds of all, each time beginning with another one; the first round of each, cold, is left out."""
    sides, told = list(plays), {side: list[Played]() for side in plays}
    until = CLOCK.monotonic() + WITHIN_S
    for number in range(ROUNDS + 1):
        if len(told[sides[0]]) > 2 and CLOCK.monotonic() > until:
            break
        for side in (*sides[number % len(sides) :], *sides[: number % len(sides)]):
            told[side].append(plays[side]())
    return {side: rounds[1:] for side, rounds in told.items()}


def compare(section: str, told: Mapping[str, Sequence[Played]]) -> list[Row]:
    """What a step takes of each, and the ratios to nothing on: mean over the rounds, and its 95 % interval."""
    rows = [
        Row(section, f"{side}: CPU a step", "us", spread(one.cpu_us for one in rounds)) for side, rounds in told.items()
    ]
    dark = told[DARK]
    for side in (CONTROL, WATCHED, TRACED):
        pairs = list(zip(told[side], dark, strict=True))
        rows.append(Row(section, f"CPU a step, {side} / {DARK}", "x", ratio([(a.cpu_us, b.cpu_us) for a, b in pairs])))
    for role in dark[0].roles:
        for side in (CONTROL, WATCHED, TRACED):
            more = [
                1e6 * (a.roles[role] / a.steps - b.roles[role] / b.steps) for a, b in zip(told[side], dark, strict=True)
            ]
            rows.append(Row(section, f"{side}: CPU a step more, {role}", "us", around(more)))
    return rows


def ratio(pairs: Sequence[tuple[float, float]]) -> Spread:
    """Geometric mean of the ratios, with the interval of that mean."""
    logs = around([math.log(one / other) for one, other in pairs])
    return Spread(math.exp(logs.median), math.exp(logs.low), math.exp(logs.high), logs.rounds)


def around(values: Sequence[float]) -> Spread:
    """The mean and its 95 % interval."""
    low, high = interval95(list(values)) or (min(values), max(values))
    return Spread(statistics.fmean(values), low, high, len(values))


def free_port() -> int:
    """A port that nobody has now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
