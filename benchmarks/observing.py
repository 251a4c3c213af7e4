"""What it costs to be looked at: steps/s, and processor time a step, of the pipeline with what looks on and without.

Four pipelines are there all the time, each with a server, a coordinator and workers of its own, and play in turn: one
with everything on and everybody looking, one with what is on by default and a scraper, and two with nothing, which are
the control: what those two differ by is what this cannot tell. Who looks runs on the same cores, so steps/s pay for it,
too; processor time is that of the pipeline alone. Steps/s mean something where the machine has nothing else to do.
"""

import math
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.measure import CLOCK, Played, Row, Spread, cpu_s_of, spread
from benchmarks.pipeline import PATIENCE_S, Pipeline, title
from benchmarks.workload import SHAPES
from heddle.cli.log_lines import FORMAT_ENV
from heddle.cli.roles import PROFILE_ENV
from heddle.launch.process import ONE_THREAD
from heddle.states.results import interval95
from heddle.tracing import TRACE_ENV, open_tracing

ROUNDS = 24
WITHIN_S = float(os.environ.get("HEDDLE_BENCH_OBSERVING_S", "45"))
"""For each of the two shapes."""
METRICS_ENV = "HEDDLE_METRICS_PORT"
KNOBS = (TRACE_ENV, METRICS_ENV, PROFILE_ENV, FORMAT_ENV)
DARK, CONTROL, WATCHED, TRACED = "nothing on", "nothing on, again", "usual", "everything"
"""Usual: sampling for `heddle profile`, log files, /metrics scraped every 5 s. Everything: that, traces, JSON logs, and
beside it `heddle top`, `heddle logs -f` and a tracker that writes TensorBoard's files."""
LOOKERS = (
    ("top", "--plain", "--interval", "1"),
    ("logs", "-f"),
    ("track", "{experiment}", "--tensorboard", "{folder}"),
)


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
def sink(metrics_port: int) -> Iterator[tuple[str, int]]:
    """A collector's address and its process, in which a scraper of that port runs as well, while inside."""
    argv = [sys.executable, "-m", "benchmarks.sink", str(metrics_port)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}", process.pid
        finally:
            process.kill()


class Lookers:
    """Those who look at one pipeline, which stand still while it rests.

    Args:
        beside: process of the collector and scraper, which go on.
    """

    def __init__(self, pipeline: Pipeline, folder: Path, beside: int) -> None:
        self._pipeline, self._folder, self._beside = pipeline, folder, beside
        self._told = folder / "told"
        self.shares: list[dict[str, float]] = []
        folder.mkdir()
        named = {"experiment": pipeline.experiment.id, "folder": str(folder / "board")}
        with self._told.open("wb") as told:
            self.processes = [
                subprocess.Popen(
                    [sys.executable, "-m", "heddle", *(word.format(**named) for word in words)],
                    env={**ONE_THREAD, **os.environ, "HEDDLE_REDIS_URL": pipeline.local.url},
                    stdin=subprocess.DEVNULL,
                    stdout=told,
                    stderr=told,
                )
                for words in LOOKERS
            ]
        self._await_first_looks()

    def play(self) -> Played:
        """A round, looked at."""
        self._signal(signal.SIGCONT)
        before, began = self._cpu_s(), CLOCK.monotonic()
        try:
            return self._pipeline.play()
        finally:
            wall_s = CLOCK.monotonic() - began
            self.shares.append({who: (used - before[who]) / wall_s for who, used in self._cpu_s().items()})
            self._signal(signal.SIGSTOP)

    def rows(self, section: str) -> list[Row]:
        """What each of them takes of a core while a round lasts, with what leads up to it and follows."""
        return [
            Row(section, f"{who}: share of a core", "x", spread(shares[who] for shares in self.shares[1:]))
            for who in self.shares[0]
        ]

    def close(self) -> None:
        """End them; raises RuntimeError where one had ended before."""
        ended = [process.args for process in self.processes if process.poll() is not None]
        for process in self.processes:
            process.kill()
            process.wait()
        if ended:
            raise RuntimeError(f"nobody looked: {ended}: {self._told.read_text(errors='replace')[-2000:]}")

    def _await_first_looks(self) -> None:
        """Until the heaviest to load, the tracker, has written something."""
        until = CLOCK.monotonic() + PATIENCE_S
        while not any((self._folder / "board").rglob("events.*")):
            if CLOCK.monotonic() > until or any(process.poll() is not None for process in self.processes):
                raise RuntimeError(f"nobody looks: {self._told.read_text(errors='replace')[-2000:]}")
            self._pipeline.play()

    def _cpu_s(self) -> dict[str, float]:
        named = zip(LOOKERS, self.processes, strict=True)
        used = {f"heddle {words[0]}": cpu_s_of([process.pid]) for words, process in named}
        return used | {"the benchmark's own collector and scraper": cpu_s_of([self._beside])}

    def _signal(self, what: signal.Signals) -> None:
        for process in self.processes:
            process.send_signal(what)


def run() -> list[Row]:
    """Rows for both shapes."""
    rows = []
    for name, shape in SHAPES.items():
        with tempfile.TemporaryDirectory(prefix="heddle-bench-") as folder, ExitStack() as stack:
            sides, collector = pipelines(name, Path(folder), stack)
            lookers = Lookers(sides[TRACED], Path(folder) / "lookers", collector)
            stack.callback(lookers.close)
            told = by_turns({side: pipeline.play for side, pipeline in sides.items()} | {TRACED: lookers.play})
        section = f"observing, {title(shape)}"
        rows += [*compare(section, told), *lookers.rows(section)]
    return rows


def pipelines(name: str, folder: Path, stack: ExitStack) -> tuple[dict[str, Pipeline], int]:
    """All four, playing nothing yet, and the process of the collector; `stack` ends them."""
    sides: dict[str, Pipeline] = {}

    def begin(side: str, **more: object) -> None:
        sides[side] = Pipeline(name, folder / str(len(sides)), measures=True, **more)  # type: ignore[arg-type]
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
    collector, pid = stack.enter_context(sink(port))
    with knobs(**{TRACE_ENV: collector, METRICS_ENV: str(port), FORMAT_ENV: "json"}):
        tracing = open_tracing("heddle-trainer", told=collector)
        assert tracing is not None, "it is told where to"
        stack.callback(tracing.close)
        begin(TRACED, log_dir=folder / "traced-logs", tracing=tracing)

    def check() -> None:
        if not tracing.outbox.tally().sent or not any((folder / "traced-logs").iterdir()):
            raise RuntimeError("not all of it was on")

    stack.callback(check)
    return sides, pid


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
    rows = [Row(section, side, "steps/s", spread(one.rate for one in rounds)) for side, rounds in told.items()]
    rows += [
        Row(section, f"{side}: CPU a step", "us", spread(one.cpu_us for one in rounds)) for side, rounds in told.items()
    ]
    dark = told[DARK]
    for side in (CONTROL, WATCHED, TRACED):
        pairs = list(zip(told[side], dark, strict=True))
        rows.append(Row(section, f"steps/s, {side} / {DARK}", "x", ratio([(a.rate, b.rate) for a, b in pairs])))
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
