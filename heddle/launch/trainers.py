"""The trainer host: one trainer process for each active experiment that has none.

It never trains itself and holds no seat: a trainer that loses the race for one ends, and the host looks elsewhere.
"""

import logging
import os
import re
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import numpy as np

from heddle.broker import Broker, open_broker
from heddle.broker.faults import Damaged
from heddle.clock import Clock, SystemClock
from heddle.errors import BrokerError
from heddle.launch.children import Ending, Role, end_all
from heddle.launch.giving_up import Repeats, has_given_up
from heddle.lease import retry_delay_s
from heddle.stop import StopFlag

log = logging.getLogger("heddle.trainers")

_STAMP = re.compile(r"^\d\d:\d\d:\d\d (?:INFO +)?")

LOOK_S = 0.5
LOOP_S = 0.05
GRACE_S = 30.0
WANTED = frozenset({"queued", "running", "paused", "stopping"})
DONE_CODES = (0, 4, 8)
"""Ended or left cleanly, removed meanwhile, seat taken by another: nothing to start again at once."""


def missing(active: Iterable[str], seated: Iterable[str], running: Iterable[str], most: int | None) -> list[str]:
    """Experiments to start a trainer for now, oldest first.

    Args:
        active: ids that want a trainer, oldest first.
        seated: ids whose seat is held.
        running: ids that have a process here already.
        most: processes here at most; None = no bound.
    """
    here, taken = set(running), set(seated)
    free = [experiment for experiment in active if experiment not in here and experiment not in taken]
    return free if most is None else free[: max(0, most - len(here))]


class TrainerHost:
    """Runs trainers as child processes until it is asked to stop.

    Args:
        directory: each experiment's checkpoints go into a folder of its id in here.
        most: trainers at once; None = no bound.
        stop: once = every trainer saves and ends, twice = at once.
        connect: opens the broker instead of `url`; the children still get `url`.
    """

    def __init__(
        self,
        url: str,
        *,
        directory: Path,
        most: int | None = None,
        stop: StopFlag,
        connect: Callable[[], Broker] | None = None,
        clock: Clock | None = None,
        rng: np.random.Generator | None = None,
    ) -> None:
        self._url = url
        self._directory = directory
        self._most = most
        self._stop = stop
        self._connect = connect or partial(open_broker, url, role="trainer-host")
        self._clock = clock or SystemClock()
        self._rng = rng or np.random.default_rng()
        self._roles: dict[str, Role] = {}
        self._repeats: dict[str, Repeats] = {}
        self._id = f"trainers-{os.uname().nodename}-{os.getpid()}-{os.urandom(4).hex()}"

    def run(self) -> int:
        """Serve until asked to stop; returns the exit code.

        Raises:
            BrokerError, Denied: the broker cannot be used at the start; later that is waited out.
        """
        broker = self._connect()
        log.info("hosting trainers directory=%s", self._directory)
        look_at, failures = 0.0, 0
        try:
            while not self._stop.draining:
                if self._clock.monotonic() >= look_at:
                    failures = self._look(broker, failures)
                    wait_s = retry_delay_s(failures, self._rng.random()) if failures else LOOK_S
                    look_at = self._clock.monotonic() + wait_s
                self._step(broker)
                self._stop.wait(LOOP_S)
        finally:
            end_all(list(self._roles.values()), grace_s=GRACE_S, clock=self._clock, hurried=lambda: self._stop.now)
            broker.close()
        log.info("ended trainer host reason=%s", self._stop.reason or "error")
        return 0

    def _look(self, broker: Broker, failures: int) -> int:
        """Start what is missing; the count of failures in a row to go on with."""
        try:
            active = [
                one.experiment for one in reversed(broker.experiments.ls()) if one.state in WANTED and not one.outcome
            ]
            seated = [experiment for experiment in active if _is_seated(broker, experiment)]
        except BrokerError as error:
            if not failures:
                log.warning("cannot reach the broker, trainers run on error=%s", error)
            return failures + 1
        for experiment in missing(active, seated, self._roles, self._most):
            arguments = ["trainer", experiment, "--dir", str(self._directory)]
            self._roles[experiment] = Role(
                f"trainer {experiment}", arguments, url=self._url, done=DONE_CODES, on_line=partial(_tell, experiment)
            )
        for experiment in self._repeats.keys() - set(active):
            del self._repeats[experiment]
        for experiment in [one for one in self._roles if one not in active]:
            if (role := self._roles[experiment]).child is None:
                role.terminate(0.0)
        return 0

    def _step(self, broker: Broker) -> None:
        for experiment, role in list(self._roles.items()):
            ending = role.step()
            if ending is not None:
                broker.events.log(experiment, "trainer", None, "error", ending.why)
                self._count(broker, experiment, role, ending)
            if role.finished:
                del self._roles[experiment]

    def _count(self, broker: Broker, experiment: str, role: Role, ending: Ending) -> None:
        """The same failure again and again, and nothing trained: later each time, and one day not again."""
        repeats = self._repeats.setdefault(experiment, Repeats())
        if has_given_up(broker, experiment, self._id, self._directory, repeats, ending):
            log.error("gave up experiment=%s after=%d because %s", experiment, repeats.count, ending.why)
            role.terminate(0.0)
            del self._repeats[experiment]
        elif repeats.count:
            role.hold_off(repeats.count)


def _is_seated(broker: Broker, experiment: str) -> bool:
    """Whether there is no trainer to start for it: one whose seat cannot be read gets none, and disturbs nobody."""
    try:
        return broker.seats.holder(experiment) is not None
    except Damaged as error:
        log.debug("starting no trainer experiment=%s error=%s", experiment, error)
        return True


def _tell(experiment: str, line: str) -> None:
    """What a trainer prints, in our log; a line of its own log without the time, which ours has."""
    log.info("%s | %s", experiment, _STAMP.sub("", line))
