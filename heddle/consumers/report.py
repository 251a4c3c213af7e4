"""The report: one line of numbers per update, for people and for `heddle status`.

It never holds anything up: numbers that the broker does not take now are gone.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from heddle.broker import Broker
from heddle.broker.experience_types import Flow, Pointer
from heddle.broker.faults import Damaged
from heddle.broker.metrics import shortened
from heddle.clock import Clock
from heddle.consumers.curve_file import CurveFile
from heddle.consumers.progress import Progress
from heddle.errors import BrokerError
from heddle.policies.lag import NO_GAP, Gap, summarise
from heddle.usage import cpu_seconds, resident_bytes

log = logging.getLogger("heddle.trainer")

LAG_BINS = 8
"""Lags 0 to 7 have a metric each, larger ones share the last."""


def lag_metrics(versions: Sequence[int], latest: int, same: frozenset[int], gap: Gap = NO_GAP) -> dict[str, float]:
    """How many versions the segments of an update were behind the weights that it began with."""
    lags = summarise([latest if version in same else version for version in versions], latest, gap)
    bins = [0] * LAG_BINS
    for lag, count in enumerate(lags.histogram):
        bins[min(lag, LAG_BINS - 1)] += count
    shown = {f"lag_{lag}": float(count) for lag, count in enumerate(bins) if count}
    return {"lag_mean": lags.mean, "lag_max": float(lags.max), **shown}


def waited_metrics(pointers: Sequence[Pointer]) -> dict[str, float]:
    """How long the workers that gave them could play nothing before."""
    return {"worker_wait_seconds": sum(pointer.waited_ms for pointer in pointers) / 1000}


def progress_metrics(progress: Progress) -> dict[str, float]:
    """How far the run is."""
    shown = {
        "env_steps": float(progress.env_steps),
        "episodes": float(progress.episodes),
        "wall_seconds": progress.wall_s,
    }
    if progress.mean_return is not None and progress.mean_length is not None:
        shown |= {"return": progress.mean_return, "length": progress.mean_length}
    return shown


def flow_metrics(flow: Flow) -> dict[str, float]:
    """What is in flight and who waits for room."""
    return {
        "in_flight_batches": float(flow.entries),
        "in_flight_bytes": float(flow.bytes),
        "worker_waiting": float(flow.waiting),
        "stale_batches": float(flow.stale.batches),
        "dead_batches": float(flow.dead.batches),
        "dropped_batches": float(flow.dropped.batches),
    }


def usage_metrics() -> dict[str, float]:
    """What this process has used so far of its host."""
    return {"cpu_seconds": round(cpu_seconds(), 2), "rss_bytes": float(resident_bytes())}


USAGE_S = 1.0
"""The system is asked for that so often: with many updates a second it would cost more than it tells."""


class Report:
    """Sends metrics as the holder of the seat, keeps them in a file too, and knows how fast the run is."""

    def __init__(
        self, broker: Broker, experiment: str, *, seat_epoch: int, trainer: str, clock: Clock, file: CurveFile
    ) -> None:
        self._file = file
        self._broker = broker
        self._experiment = experiment
        self._seat_epoch = seat_epoch
        self._trainer = trainer
        self._clock = clock
        self._last_at = clock.monotonic()
        self._last_steps: int | None = None
        self._ahead_s: float | None = None
        self._usage, self._usage_at = dict[str, float](), -USAGE_S

    def usage(self) -> dict[str, float]:
        """What this process has used so far of its host, as of a moment ago."""
        if (now := self._clock.monotonic()) - self._usage_at >= USAGE_S:
            self._usage, self._usage_at = usage_metrics(), now
        return self._usage

    def rate(self, env_steps: int) -> dict[str, float]:
        """Steps trained per second since this was called last."""
        now = self._clock.monotonic()
        passed, self._last_at = now - self._last_at, now
        before, self._last_steps = self._last_steps, env_steps
        if before is None or passed <= 0:
            return {}
        return {"steps_per_second": (env_steps - before) / passed}

    def send(self, update: int, metrics: Mapping[str, float]) -> None:
        """Add metrics under an update, and the same numbers to the file. Raises SeatLost, Gone."""
        told = {name: shortened(value) for name, value in metrics.items()}
        try:
            entry = self._broker.events.metrics_add(self._experiment, update, told, seat_epoch=self._seat_epoch)
        except BrokerError as error:
            log.debug("cannot send metrics update=%d error=%s", update, error)
            return
        except Damaged as error:  # the leader makes the stream anew, or ends the experiment: training asks for neither
            log.info("cannot send metrics update=%d error=%s", update, error)
            self._broker.damages.note(self._experiment, error)
            return
        self._ahead_s = int(entry.partition("-")[0]) / 1000 - self._clock.monotonic()
        self._file.add(update, told, entry=entry)

    def server_s(self, at: float) -> float | None:
        """The broker's time at a monotonic moment, to within a round trip; None before it took any metrics."""
        return None if self._ahead_s is None else at + self._ahead_s

    def forget(self, *, above: int) -> int:
        """Take back what rolled back updates measured; how many entries. Raises BrokerError, SeatLost, Gone."""
        gone = self._broker.events.metrics_forget(self._experiment, above=above, seat_epoch=self._seat_epoch)
        self._file.forget(above=above)
        return gone

    def end(self, outcome: str, reason: str, result: Mapping[str, Any]) -> None:
        """Keep how it ended beside what was measured."""
        self._file.end(outcome, reason, result)

    def close(self) -> None:
        """Let go of the file: who sends comes back as another one, or not at all."""
        self._file.close()

    def tell(self, level: str, message: str) -> None:
        """One line for the experiment's log, which everybody sees."""
        self._broker.events.log(self._experiment, "trainer", self._trainer, level, message)
