"""The host of trackers: one process beside each experiment whose spec has [track].

It never waits for one, and nothing else does: what a tracker does or fails to do is no concern of training.
"""

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from heddle.broker import Broker, open_broker
from heddle.broker.faults import Damaged
from heddle.broker.records import Status
from heddle.clock import Clock, SystemClock
from heddle.consumers.tracking.make import kinds_of
from heddle.errors import BrokerError, Gone, HeddleError, NotFound, SpecError
from heddle.launch.children import Role, end_all
from heddle.launch.local import Local
from heddle.lease import retry_delay_s
from heddle.spec import spec_from_json
from heddle.spec.tracking import Track
from heddle.stop import StopFlag

log = logging.getLogger("heddle.trackers")

LOOK_S = 1.0
LOOP_S = 0.1
GRACE_S = 30.0
DONE_CODES = (0, 2, 4, 6, 8)
"""Through; a library is missing; removed; a key is refused; fed by somebody else: nothing to start again."""


def tracker_role(experiment: str, *, url: str, directory: Path, log_file: Path | None = None) -> Role:
    """The role that feeds the trackers of one experiment's spec."""
    arguments = ["track", experiment, "--dir", str(directory)]
    return Role("trackers", arguments, url=url, done=DONE_CODES, log_file=log_file)


def add_trackers(local: Local, track: Track | None, experiment: str, directory: Path) -> None:
    """Feed the trackers of an experiment's spec, where it names any, beside the services of this terminal."""
    if track is not None and not track.is_empty:
        local.add(tracker_role(experiment, url=local.url, directory=directory, log_file=local.log_file("trackers")))


@contextlib.contextmanager
def hosting_trackers(url: str, *, directory: Path, stop: StopFlag) -> Iterator[None]:
    """Within it a thread of this process is a host of trackers; leaving ends them, and raises `stop` for that."""
    host = TrackerHost(url, directory=directory, stop=stop)
    thread = threading.Thread(target=host.run_quietly, name="trackers", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.drain("ending")
        thread.join()


class TrackerHost:
    """Runs trackers as child processes until it is asked to stop.

    Args:
        directory: where runs leave their checkpoints here.
        connect: opens the broker instead of `url`; the children still get `url`.
    """

    def __init__(
        self,
        url: str,
        *,
        directory: Path,
        stop: StopFlag,
        connect: Callable[[], Broker] | None = None,
        clock: Clock | None = None,
        rng: np.random.Generator | None = None,
    ) -> None:
        self._url = url
        self._directory = directory
        self._stop = stop
        self._connect = connect or partial(open_broker, url, role="tracker-host")
        self._clock = clock or SystemClock()
        self._rng = rng or np.random.default_rng()
        self._roles: dict[str, Role] = {}
        self._through: set[str] = set()
        self._wanted: dict[str, Track | None] = {}

    def run(self) -> int:
        """Serve until asked to stop; returns the exit code.

        Raises:
            BrokerError, Denied: the broker cannot be used at the start; later that is waited out.
        """
        broker = self._connect()
        log.info("hosting trackers host=%s", os.uname().nodename)
        look_at, failures = 0.0, 0
        try:
            while not self._stop.draining:
                if self._clock.monotonic() >= look_at:
                    failures = self._look(broker, failures)
                    wait_s = retry_delay_s(failures, self._rng.random()) if failures else LOOK_S
                    look_at = self._clock.monotonic() + wait_s
                self._step()
                self._stop.wait(LOOP_S)
        finally:
            end_all(list(self._roles.values()), grace_s=GRACE_S, clock=self._clock, hurried=lambda: self._stop.now)
            broker.close()
        log.info("ended tracker host reason=%s", self._stop.reason or "error")
        return 0

    def run_quietly(self) -> None:
        """As `run`; a broker that cannot be used is told, and is no reason to end anything else."""
        try:
            self.run()
        except HeddleError as error:
            log.error("tracks nothing: %s", error)

    def _look(self, broker: Broker, failures: int) -> int:
        """Start what is missing; the count of failures in a row to go on with."""
        try:
            known = broker.experiments.ls()
            missing = [one for one in known if self._is_missing(broker, one)]
        except BrokerError as error:
            if not failures:
                log.warning("cannot reach the broker, trackers run on error=%s", error)
            return failures + 1
        for status in missing:
            role = tracker_role(status.experiment, url=self._url, directory=self._directory)
            self._roles[status.experiment] = role
            log.info("tracking experiment=%s", status.experiment)
        ids = {one.experiment for one in known}
        self._through &= ids
        self._wanted = {name: track for name, track in self._wanted.items() if name in ids}
        return 0

    def _is_missing(self, broker: Broker, status: Status) -> bool:
        name = status.experiment
        if name in self._roles or name in self._through:
            return False
        if name not in self._wanted:
            self._wanted[name] = _track_of(broker, name)
        if (track := self._wanted[name]) is None:
            return False
        done = [one for one in broker.trackers.all(name) if one.told.get("done")]
        if status.ended and len(done) >= len(kinds_of(track)):
            self._through.add(name)
            return False
        return True

    def _step(self) -> None:
        for name, role in list(self._roles.items()):
            if (ending := role.step()) is not None:
                log.warning("%s: %s", name, ending.why)
            if role.finished:
                self._through.add(name)
                if said := " | ".join(role.tail()):
                    log.info("%s: %s", name, said)
                del self._roles[name]


def _track_of(broker: Broker, experiment: str) -> Track | None:
    """What its spec names; None for nothing, and for a spec that this version cannot read."""
    try:
        track = spec_from_json(broker.experiments.spec(experiment).json).track
    except (Damaged, NotFound, Gone, SpecError) as error:
        log.info("tracks nothing experiment=%s error=%s", experiment, error)
        return None
    return None if track is None or track.is_empty else track
