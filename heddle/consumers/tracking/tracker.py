"""The tracker: hands an experiment's metrics on to one place outside, from the first entry to the last word.

It never holds anything up: it reads a stream that is capped whoever reads it, and what that let go of before the
tracker came to it is missed, and counted. It acks an entry once the other side has it for good.
"""

import itertools
import logging
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from heddle.broker.metrics import Metric
from heddle.broker.trackers import TTL_MS
from heddle.clock import Clock, SystemClock
from heddle.consumers.patience import GivenUp, Patience
from heddle.consumers.tracking.base import Backend, Source, Standing
from heddle.consumers.tracking.ending import ending_of
from heddle.consumers.tracking.names import group_of
from heddle.consumers.tracking.points import Point, place_of, points_of
from heddle.errors import BrokerError, Conflict, Gone, TrackerDown
from heddle.lease import Keeper, retry_delay_s
from heddle.stop import StopFlag

log = logging.getLogger("heddle.track")

ROLE = "tracker"
"""As which it speaks in the log."""
AT_ONCE = 200
BLOCK_MS = 1_000
EVERY_S = 0.5
"""A run of many updates a second is read in pieces of this."""
RETRY_LAST_S = 10.0
"""Longest pause between two tries of a tracker that is down."""


@dataclass(frozen=True, slots=True)
class Told:
    """How far a tracker is; JSON shows these names.

    Attributes:
        kind, where: which one.
        points: entries that it was given, by this process.
        missed: updates that the stream let go of before.
        rolled_back: how often something was taken back.
        done: the experiment is over, and the tracker has everything.
        trouble: why it takes nothing now; "" while it does.
    """

    kind: str
    where: str
    points: int = 0
    missed: int = 0
    rolled_back: int = 0
    done: bool = False
    trouble: str = ""


class Tracker:
    """Feeds one backend; `run` once, from one thread.

    Args:
        directory: where runs leave their checkpoints here; None sends none.
        stop: once asked, what is there is handed on, and it ends.
    """

    def __init__(
        self,
        broker: Source,
        experiment: str,
        backend: Backend,
        *,
        stop: StopFlag,
        directory: Path | None = None,
        clock: Clock | None = None,
        rng: np.random.Generator | None = None,
    ) -> None:
        self.told = Told(backend.kind, backend.where)
        self._broker = broker
        self._experiment = experiment
        self._backend = backend
        self._directory = directory
        self._stop = stop
        self._clock = clock or SystemClock()
        self._rng = rng or np.random.default_rng()
        self._patience = Patience(check=self._check, clock=self._clock)
        self._name = group_of(backend.kind, backend.where)
        self._process = f"{os.uname().nodename}-{os.getpid()}-{os.urandom(4).hex()}"
        self._last: Point | None = None
        self._unsafe: list[Point] = []
        self._lost = ""

    def run(self) -> Told:
        """Until the experiment is over and everything is handed on, or the stop flag is raised.

        Raises:
            Conflict: another process feeds this tracker.
            Gone: the experiment was removed.
            MissingExtra, Denied: it can never work as it is.
        """
        self._become_the_one()
        keeper = Keeper(self._renew, ttl_s=TTL_MS / 1000, on_lost=self._lose, name="tracker", clock=self._clock)
        try:
            with keeper:
                self._open()
                self._follow()
        except GivenUp:
            log.info("leaving %s, the broker does not answer", self.told.where)
        except (Conflict, TrackerDown) as error:
            self._tell("error", f"{self.told.kind} ended: {error}")
            raise
        finally:
            self._backend.close()
            self._leave()
        return self.told

    # ---- who feeds it

    def _become_the_one(self) -> None:
        before = self._patience.call("look who feeds it", self._fed_by)
        deadline = self._clock.monotonic() + 1.5 * TTL_MS / 1000
        while (other := self._patience.call("claim the tracker", self._claim)) is not None:
            if self._clock.monotonic() >= deadline:
                raise Conflict(f"{other} feeds {self.told.kind} {self.told.where} with {self._experiment} already")
            if self._stop.wait(EVERY_S):
                raise GivenUp("asked to end")
            before = self._patience.call("look who feeds it", self._fed_by)  # it may have left by now
        if before:
            self._tell("warning", f"{self.told.kind}: goes on for tracker={before}, which ended without a word")

    def _claim(self) -> str | None:
        return self._broker.trackers.claim(self._experiment, self._name, self._process, told=asdict(self.told))

    def _fed_by(self) -> str:
        return self._broker.trackers.fed_by(self._experiment, self._name)

    def _renew(self) -> bool:
        return self._claim() is None

    def _lose(self, reason: str) -> None:
        self._lost = reason

    def _check(self) -> None:
        if self._lost:
            raise Conflict(f"{self.told.kind} {self.told.where}: {self._lost}")
        if self._stop.draining and self._patience.silent_s:
            raise GivenUp("asked to end")

    def _leave(self) -> None:
        """What is recorded by now is dealt with, and another process may go on at once."""
        try:
            if not self._lost:
                self._settle()
            self._broker.trackers.leave(self._experiment, self._name, self._process, told=asdict(self.told))
        except (BrokerError, Gone, Conflict, GivenUp, TrackerDown) as error:
            log.info("left without a word tracker=%s error=%s", self._name, error)

    # ---- the other side

    def _open(self) -> None:
        """Begin or go on, as soon as the other side lets us; a place that has nothing is given everything."""
        trackers, failures = self._broker.trackers, 0
        while True:
            try:
                goes_on = self._backend.open()
                break
            except TrackerDown as error:
                failures += 1
                self._wait_for(error, failures)
        if not goes_on:
            self._patience.call("begin anew", lambda: trackers.rewind(self._experiment, self._name))
        verb = "goes on feeding" if goes_on else "feeds"
        log.info("%s %s with %s", verb, self.told.where, self._experiment)
        self._tell("info", f"{verb} {self.told.kind} {self.told.where}")
        self.told = replace(self.told, trouble="")
        self._last, self._unsafe = None, []

    def _wait_for(self, error: TrackerDown, failures: int) -> None:
        """Say once what is wrong, and wait. Raises GivenUp when asked to end meanwhile."""
        self._backend.close()
        self._check()
        if str(error) != self.told.trouble:
            log.warning("%s takes nothing, trying on: %s", self.told.kind, error)
            self._tell("warning", f"{self.told.kind} takes nothing, trying on: {error}")
        self.told = replace(self.told, trouble=str(error))
        if self._stop.wait(retry_delay_s(failures, self._rng.random(), last_s=RETRY_LAST_S)):
            raise GivenUp("asked to end") from error

    # ---- the stream

    def _follow(self) -> None:
        failures = 0
        while True:
            try:
                self._go_on()
                return
            except TrackerDown as error:
                failures = failures + 1 if self._last is None else 1
                self._wait_for(error, failures)
                self._open()

    def _go_on(self) -> None:
        """Hand on what comes, until there is no more or we are asked to end. Raises TrackerDown."""
        trackers, at = self._broker.trackers, (self._experiment, self._name)
        found = self._patience.call("take over what was given out", lambda: trackers.take_over(*at))
        while True:
            leaves = self._stop.draining
            status = self._patience.call("read status", lambda: self._broker.experiments.status(self._experiment))
            if not found:
                found = self._read(block_ms=0 if leaves or status.ended or self._unsafe else BLOCK_MS)
            for start in range(0, len(found), AT_ONCE):
                self._hand_on(found[start : start + AT_ONCE])
            self._settle()
            if not found and status.ended:
                self._finish(status)
            if not found and (status.ended or leaves):
                return
            if len(found) < AT_ONCE:
                self._stop.wait(EVERY_S)
            found = []

    def _read(self, *, block_ms: int) -> list[Metric]:
        return self._patience.call(
            "read metrics",
            lambda: self._broker.trackers.read(self._experiment, self._name, count=AT_ONCE, block_ms=block_ms),
        )

    def _hand_on(self, metrics: Sequence[Metric]) -> None:
        first = metrics[0].entry_id
        before = self._patience.call("look back", lambda: self._broker.trackers.before(self._experiment, first))
        step = next((int(one.values["env_steps"]) for one in before if "env_steps" in one.values), 0)
        points = points_of(metrics, step)
        known = sum(1 for _ in itertools.takewhile(self._backend.knows, points))
        if 0 < known < len(points):  # what was rolled back meanwhile lies between the two
            self._hand_on(metrics[:known])
            self._hand_on(metrics[known:])
            return
        self._compare(before, points, step)
        if fresh := [point for point in points if not self._backend.knows(point)]:
            self._backend.add(fresh)
        self.told = replace(self.told, points=self.told.points + len(fresh))
        self._unsafe += points
        self._last = points[-1]

    def _compare(self, before: Sequence[Metric], points: Sequence[Point], step: int) -> None:
        """What lies between the last point and these: what is gone was rolled back, what nobody saw is missed."""
        pairs = zip([self._last, *points], points, strict=False)
        gaps = [later.update - earlier.update - 1 for earlier, later in pairs if earlier is not None]
        self.told = replace(self.told, missed=self.told.missed + sum(max(0, gap) for gap in gaps))
        ours, theirs = self._last.place if self._last is not None else None, self._backend.last
        last = max((place for place in (ours, theirs) if place is not None), default=None)
        if last is None or points[0].place <= last or not before:
            return
        if place_of(before[0].entry_id) < last:
            log.info("taking back what was measured after update=%d", before[0].update)
            self._backend.take_back(before[0].update, step)
            self.told = replace(self.told, rolled_back=self.told.rolled_back + 1)

    def _settle(self) -> None:
        """Ack what the other side has for good."""
        kept = {point.entry_id for point in self._backend.kept(self._unsafe)}
        self._patience.call("ack", lambda: self._broker.trackers.done(self._experiment, self._name, sorted(kept)))
        self._unsafe = [point for point in self._unsafe if point.entry_id not in kept]

    def _finish(self, status: Standing) -> None:
        self._backend.finish(ending_of(status, self._directory))
        self._settle()
        self.told = replace(self.told, done=True)
        log.info("has everything: %s, points=%d", self.told.where, self.told.points)
        self._tell("info", f"{self.told.kind} {self.told.where} has everything points={self.told.points}")

    def _tell(self, level: str, message: str) -> None:
        """A line in the log that everybody reads, where the broker takes one now."""
        self._broker.events.log(self._experiment, ROLE, self._process, level, message)
