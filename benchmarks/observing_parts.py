"""What each part of being looked at takes, by itself: processor time of the thread that does it, and of the server.

What `observing` compares differs by less than a busy machine lets it see. These figures hardly depend on what else
runs, and their sum, at so many times a second or an update, is what all of it takes; that a thread that looks stands in
the way of the one that plays is in it only as far as being woken beside it goes.
"""

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.measure import CLOCK, Row, Spread, cpu_s_of, spread
from benchmarks.workload import SHAPES, w1_source
from heddle.broker import Broker
from heddle.broker.experience_types import Pointer
from heddle.broker.pools import WorkerBeat
from heddle.broker.server import start_server
from heddle.broker.types import AppendMeta
from heddle.client import connect
from heddle.clock import thread_seconds
from heddle.consumers.curve_file import CurveFile
from heddle.consumers.journey import Journeys
from heddle.consumers.report import lag_metrics, usage_metrics, waited_metrics
from heddle.coord.exposition import Collector
from heddle.launch.check import load_and_check
from heddle.producers.sampler import Sampler, Seen
from heddle.subject import about

SECTION = "observing, part by part"
TIMES, ROUNDS = 200, 7
BATCHES, SEGMENTS = 8, 16
"""Of an update."""
LOOK_S = 5.0

Call = Callable[[], object]


def run() -> list[Row]:
    """Rows for what a worker, a trainer, the coordinator and the server do."""
    with tempfile.TemporaryDirectory(prefix="heddle-bench-") as folder, ExitStack() as stack:
        server = start_server(Path(folder) / "server", durability="memory")
        stack.callback(server.stop)
        client = stack.enter_context(connect(server.url))
        loaded, checked = load_and_check(w1_source(SHAPES["small"]))
        experiment = client.submit_loaded(loaded, spaces=checked.spaces_json()).id
        metrics = {**_of_an_update()(), **usage_metrics(), **{f"of the learner {n}": n / 7 for n in range(12)}}
        rows = [
            _row("a batch, in its worker: what it is about, two figures of its own", _of_a_batch()),
            _row(f"an update of {BATCHES} batches, in the trainer: where they were, how old", _of_an_update()),
            _row("an update, in the trainer: a line of the run's file", _line(Path(folder), metrics)),
        ]
        for what, call in _sent(client.broker, experiment, metrics).items():
            rows += _both(what, call, server.pid)
    return [*rows, _sampled()]


def _of_a_batch() -> Call:
    meta, subject = AppendMeta("train", 1, 1, 1, 64, 1, 1), {"experiment": "e", "shard": 1, "epoch": 17}

    def told() -> None:
        with about(subject):
            replace(replace(meta, played_ms=5), waited_ms=3)

    return told


def _of_an_update() -> Callable[[], dict[str, float]]:
    facts: dict[str, Any] = {"version_min": 3, "version_max": 3, "segments": 2, "steps": 64, "bytes": 999, "crc32": 5}
    pointers = [Pointer(f"1700{n}-0", n, 17, "n", n, "train", **facts, blob_key="k") for n in range(BATCHES)]
    batches: Any = [SimpleNamespace(pointer=one, at=CLOCK.monotonic()) for one in pointers]
    journeys, same = Journeys(CLOCK, lambda at: at + 1.7), frozenset({3})

    def told() -> dict[str, float]:
        metrics = journeys.of(batches, update=1, began=1.0, ended=2.0) | waited_metrics(pointers)
        return metrics | lag_metrics([3] * SEGMENTS, 4, same)

    return told


def _line(folder: Path, metrics: dict[str, float]) -> Call:
    file = CurveFile(folder / "run", "{}")
    return lambda: file.add(3, metrics, entry="17-0")


def _sent(broker: Broker, experiment: str, metrics: dict[str, float]) -> dict[str, Call]:
    beat = WorkerBeat(
        "w1", steps=5, play_s=1.0, state="playing", profile={"env": 3, "policy": 4, "books": 3, "wait": 9}
    )
    broker.pools.heartbeat(beat)
    broker.coordinators.claim_leader("c-1", ttl_ms=600_000)
    collector = Collector(lambda: broker, "c-1")
    return {
        "an update, trainer: its metrics": lambda: broker.events.metrics_add(experiment, 1, metrics),
        "an update, trainer: what is in flight": lambda: broker.experience.flow(experiment, 0),
        "a line of the log": lambda: broker.events.log(experiment, "worker", "w1", "info", "x" * 80),
        "a heartbeat, once a second": lambda: broker.pools.heartbeat(beat),
        "a scrape of /metrics": lambda: list(collector.collect()),
    }


def _sampled() -> Row:
    """The sampler's thread beside one that computes, as it is in a worker."""
    seen, used = Seen(None, True, True, False, False), list[float]()

    class Measured(Sampler):
        def _run(self) -> None:
            super()._run()
            used.append(thread_seconds()[0])

    for _ in range(3):
        sampler, until = Measured(lambda: seen), CLOCK.monotonic() + LOOK_S
        sampler.start()
        while CLOCK.monotonic() < until:
            sum(range(100))
        sampler.stop()
    return Row(SECTION, "a second of a worker: sampling", "us", spread(1e6 * one / LOOK_S for one in used))


def _row(what: str, call: Call) -> Row:
    return Row(SECTION, what, "us", _taken(call))


def _taken(call: Call) -> Spread:
    """Processor time of this thread for one call."""
    return spread(_once(call) for _ in range(ROUNDS))


def _once(call: Call) -> float:
    before = thread_seconds()[0]
    for _ in range(TIMES):
        call()
    return 1e6 * (thread_seconds()[0] - before) / TIMES


def _both(what: str, call: Call, server: int) -> list[Row]:
    """A call to the server: of this thread, and of the server's process, to a clock tick over all rounds."""
    call()
    before = cpu_s_of([server])
    own = _taken(call)
    there = 1e6 * (cpu_s_of([server]) - before) / (TIMES * ROUNDS)
    return [Row(SECTION, what, "us", own), Row(SECTION, f"{what}: of the server", "us", spread([there]))]
