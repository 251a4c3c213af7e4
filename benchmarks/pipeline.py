"""W1 through the whole pipeline without learning, against the same playing in as many processes that send nothing.

Server, coordinator and two supervised workers are those of `heddle run`; in place of the trainer this process holds
the seat, publishes one policy, and reads, checks, decodes and acks every batch with the trainer's own reader and
ledger. While the ceiling is measured the experiment is paused.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from benchmarks.measure import CLOCK, Played, Row, alternate, compare, cpu_s_of, own_cpu_s
from benchmarks.workload import ALL, PROCESSES, SHAPES, Shape, w1_source
from heddle.broker.experience_types import Pointer
from heddle.client import Client, connect
from heddle.consumers.ledger import Ledger
from heddle.consumers.ordering import Ordering
from heddle.consumers.patience import Patience
from heddle.consumers.reader import Loaded, Reader
from heddle.consumers.seat import Seat, trainer_id
from heddle.consumers.setting import read_setting
from heddle.consumers.shelf import offered_shelf
from heddle.consumers.traced import Traces
from heddle.errors import TimedOut
from heddle.launch.check import load_and_check
from heddle.launch.local import Local, Setup
from heddle.launch.process import ONE_THREAD
from heddle.plane import open_plane
from heddle.policies.weights import pack
from heddle.stop import StopFlag
from heddle.tracing import Tracing

ROUNDS = 7
SECONDS = {"large": 2.0}
USUAL_SECONDS = 1.5
SETTLE_S = 0.7
WITHIN_S = 50.0
PATIENCE_S = 30.0
UPDATE_STEPS = 2_048
"""A trainer that learns from so many steps at once is told of, where that is traced or measured."""
MEASURED = {f"metric_{number}": float(number) for number in range(40)}


class Consumer:
    """The seat, and every batch read, decoded and acked."""

    def __init__(
        self, client: Client, experiment: str, tracing: Tracing | None = None, *, measures: bool = False
    ) -> None:
        broker = client.broker
        self._add = partial(broker.events.metrics_add, experiment) if measures else None
        self._measured_at = 0
        self._traces = None if tracing is None else Traces(tracing, experiment, 0)
        self._updates, self._seen = 0, list[Loaded]()
        seat = Seat.claim(broker, experiment, trainer_id(), clock=CLOCK)
        assert seat is not None, "nobody else trains a benchmark"
        self.seat, self.steps, self.batches, self.bytes = seat, 0, 0, 0
        setting = read_setting(broker, experiment)
        epoch = seat.epoch
        shelf = offered_shelf(
            broker, experiment, setting, seat_epoch=epoch, plane=open_plane, call=lambda _, ask: ask()
        )
        self._ledger = Ledger(broker, experiment, 0, seat_epoch=epoch, ordering=Ordering({}), shelf=shelf)
        self._reader = Reader(
            broker,
            experiment,
            0,
            seat_epoch=seat.epoch,
            ledger=self._ledger,
            layout=setting.layout,
            plans=setting.plans,
            size_cap=setting.spec.limits.batch_bytes,
            patience=Patience(check=seat.check, clock=CLOCK),
            clock=CLOCK,
            shelf=shelf,
        )
        self._reader.start()
        weights = pack(setting.policy.get_weights(), version=1, update=0)
        broker.policies.publish(experiment, seat.epoch, 1, weights, update=0)

    def poll(self, block_ms: int = 100) -> int:
        """Take what is there; how many batches that were."""
        return len(self.take(block_ms))

    def take(self, block_ms: int = 100) -> list[Pointer]:
        """Take what is there; the entries."""
        loaded, began = self._reader.poll(block_ms=block_ms), CLOCK.monotonic()
        if self._traces is not None:
            self._seen += loaded
            if sum(item.pointer.steps for item in self._seen) >= UPDATE_STEPS:
                self._trace(self._traces, began)
        self._ledger.hold([item.pointer for item in loaded], "trained")
        self._ledger.release()
        self._ledger.flush()
        self.batches += len(loaded)
        self.steps += sum(item.segments.num_steps for item in loaded)
        self.bytes += sum(item.pointer.bytes for item in loaded)
        if self._add is not None and self.steps - self._measured_at >= UPDATE_STEPS:
            self._measured_at = self.steps
            self._add(self.steps // UPDATE_STEPS, MEASURED, seat_epoch=self.seat.epoch)
        return [item.pointer for item in loaded]

    def _trace(self, traces: Traces, at: float) -> None:
        """As a trainer tells of an update."""
        self._updates, seen, self._seen = self._updates + 1, self._seen, []
        traces.update(seen, update=self._updates, version=1 + self._updates, began=at, ended=at, published=at)


class Pipeline:
    """Everything of `heddle run` but the trainer.

    Args:
        measures: write metrics as a trainer does behind an update.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        *,
        log_dir: Path | None = None,
        tracing: Tracing | None = None,
        measures: bool = False,
    ) -> None:
        self.shape, self._seconds = ALL[name], SECONDS.get(name, USUAL_SECONDS)
        kept = self.shape.durability
        setup = Setup(url=None, folder=folder / "server", workers=PROCESSES, durability=kept, log_dir=log_dir)
        self.local = Local(setup, stop=StopFlag())
        self._stack = ExitStack()
        self._stack.callback(self.local.end)
        try:
            self.local.start_server()
            self.local.start_roles()
            self.client = self._stack.enter_context(connect(self.local.url))
            loaded, checked = load_and_check(w1_source(self.shape))
            self.experiment = self.client.submit_loaded(loaded, spaces=checked.spaces_json())
            self.consumer = Consumer(self.client, self.experiment.id, tracing, measures=measures)
            self._stack.callback(self.consumer.seat.release)
            self._wait_for_everyone()
        except BaseException:
            self.close()
            raise

    def rest(self) -> None:
        """Play nothing until the next round, with nothing left in the stream."""
        self.experiment.pause()
        while self.consumer.poll(300):
            pass

    def close(self) -> None:
        """End every process of it."""
        self._stack.close()

    def pids(self) -> dict[str, list[int]]:
        """The other processes, by role."""
        server = self.local.server
        return {
            "server": [server.pid] if server is not None else [],
            "coordinator": [role.child.pid for role in self.local.roles if role.child is not None],
            "workers": [child.pid for child in self.local.workers()],
        }

    @staticmethod
    def _cpu_s(pids: dict[str, list[int]]) -> dict[str, float]:
        return {role: cpu_s_of(some) for role, some in pids.items()} | {"consumer": own_cpu_s()}

    def play(self) -> Played:
        """One round: everything that this process got hold of, decoded and acked."""
        self.experiment.resume()
        self._poll_for(SETTLE_S)
        pids, consumer = self.pids(), self.consumer
        steps, before, began = consumer.steps, self._cpu_s(pids), CLOCK.monotonic()
        self._poll_for(self._seconds)
        wall_s, after = CLOCK.monotonic() - began, self._cpu_s(pids)
        used = {role: after[role] - before[role] for role in after}
        played = Played(consumer.steps - steps, wall_s, sum(used.values()), used)
        self.rest()
        if self.local.endings or self.pids() != pids:
            raise RuntimeError(f"a process ended during the benchmark: {[end.why for end in self.local.endings]}")
        return played

    def _poll_for(self, seconds: float) -> None:
        until = CLOCK.monotonic() + seconds
        while CLOCK.monotonic() < until:
            self.consumer.poll()

    def _wait_for_everyone(self) -> None:
        """Until each shard has given a batch and each worker holds its part."""
        until = CLOCK.monotonic() + PATIENCE_S
        while True:
            self.consumer.poll()
            self.local.step()
            shards = self.experiment.shards()
            owners = [shard.worker for shard in shards if shard.seq > 0 and shard.worker]
            fair = {owners.count(worker) for worker in owners} == {self.shape.shards // PROCESSES}
            if len(owners) == self.shape.shards and fair:
                return
            if CLOCK.monotonic() > until:
                raise TimedOut(f"the workers did not share the shards within {PATIENCE_S:g} s: {shards}")


class Ceiling:
    """Processes that play and send nothing."""

    def __init__(self, name: str) -> None:
        self._seconds = SECONDS.get(name, USUAL_SECONDS)
        argv = [sys.executable, "-m", "benchmarks.ceiling", name]
        self._children = [
            subprocess.Popen(
                [*argv, str(part)],
                env={**ONE_THREAD, **os.environ},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                bufsize=1,
            )
            for part in range(PROCESSES)
        ]
        for child in self._children:
            self._line(child)

    def play(self) -> Played:
        """One round."""
        for child in self._children:
            assert child.stdin is not None
            child.stdin.write(f"{self._seconds}\n")
        told = [Played(**json.loads(self._line(child))) for child in self._children]
        rate = sum(played.rate for played in told)
        steps = sum(played.steps for played in told)
        return Played(steps, steps / rate, sum(played.cpu_s for played in told))

    def close(self) -> None:
        """End the processes."""
        for child in self._children:
            child.kill()
            child.communicate()

    @staticmethod
    def _line(child: "subprocess.Popen[str]") -> str:
        assert child.stdout is not None
        line = child.stdout.readline()
        if not line:
            raise RuntimeError(f"a process of the ceiling ended with {child.wait()}")
        return line


@contextmanager
def both(name: str) -> Iterator[tuple[Pipeline, Ceiling]]:
    """Pipeline, playing nothing yet, and ceiling; ended afterwards."""
    with tempfile.TemporaryDirectory(prefix="heddle-bench-") as folder, ExitStack() as stack:
        pipeline = Pipeline(name, Path(folder) / "pipeline")
        stack.callback(pipeline.close)
        pipeline.rest()
        ceiling = Ceiling(name)
        stack.callback(ceiling.close)
        yield pipeline, ceiling


def run() -> list[Row]:
    """Rows for both shapes."""
    rows = []
    for name, shape in SHAPES.items():
        with both(name) as (pipeline, ceiling):
            pairs = alternate(ROUNDS, pipeline.play, ceiling.play, within_s=WITHIN_S)
        rows += compare(f"pipeline, {title(shape)}", ("pipeline", "ceiling"), pairs)
    return rows


def title(shape: Shape) -> str:
    """Of a shape, for the table."""
    return f"{shape.name}, {shape.shards} shards"
