"""A host of roles: one child process for each experiment that wants one, by what the broker shows now and then.

It never decides which experiments those are: the host of trainers and the host of trackers do.
"""

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np

from heddle.broker import Broker, open_broker
from heddle.clock import Clock, SystemClock
from heddle.errors import BrokerError
from heddle.launch.children import Ending, Role, end_all
from heddle.lease import retry_delay_s
from heddle.stop import StopFlag

OnLine = Callable[[Mapping[str, str], str], None]

LOOP_S = 0.05
GRACE_S = 30.0


class RoleHost(ABC):
    """Runs roles as child processes until it is asked to stop.

    Args:
        kind: what it hosts, for people and logs, e.g. "trainer".
        directory: each experiment's checkpoints are in a folder of its id in here.
        stop: once = every role saves and ends, twice = at once.
        look_s: seconds between two looks at the broker.
        connect: opens the broker instead of `url`; the children still get `url`.
        on_line: told every line of a child and what it is about, instead of our log.

    Attributes:
        roles: the processes here, by experiment.
    """

    def __init__(
        self,
        kind: str,
        url: str,
        *,
        directory: Path,
        stop: StopFlag,
        look_s: float,
        connect: Callable[[], Broker] | None = None,
        on_line: OnLine | None = None,
        clock: Clock | None = None,
        rng: np.random.Generator | None = None,
    ) -> None:
        self.roles: dict[str, Role] = {}
        self.url = url
        self.directory = directory
        self.log = logging.getLogger(f"heddle.{kind}s")
        self._kind = kind
        self._stop = stop
        self._look_s = look_s
        self._on_line = on_line
        self._connect = connect or partial(open_broker, url, role=f"{kind}-host")
        self._clock = clock or SystemClock()
        self._rng = rng or np.random.default_rng()

    @abstractmethod
    def missing(self, broker: Broker) -> dict[str, Role]:
        """Roles to start now, by experiment; also the place to let go of what is no longer wanted.

        Raises:
            BrokerError: it cannot be asked now; nothing was changed, and it is asked again later.
        """

    @abstractmethod
    def stepped(self, broker: Broker, experiment: str, role: Role, ending: Ending | None) -> None:
        """Looked after one of `roles`; when it is finished it leaves them next.

        Args:
            ending: how it ended unasked just now; it is started again unless it is told to end here.
        """

    def run(self) -> int:
        """Serve until asked to stop; returns the exit code.

        Raises:
            BrokerError, Denied: the broker cannot be used at the start; later that is waited out.
        """
        broker = self._connect()
        self.log.info("hosting %ss host=%s directory=%s", self._kind, os.uname().nodename, self.directory)
        look_at, failures = 0.0, 0
        try:
            while not self._stop.draining:
                if self._clock.monotonic() >= look_at:
                    failures = self._look(broker, failures)
                    wait_s = retry_delay_s(failures, self._rng.random()) if failures else self._look_s
                    look_at = self._clock.monotonic() + wait_s
                self._step(broker)
                self._stop.wait(LOOP_S)
        finally:
            end_all(list(self.roles.values()), grace_s=GRACE_S, clock=self._clock, hurried=lambda: self._stop.now)
            broker.close()
        self.log.info("ended %s host reason=%s", self._kind, self._stop.reason or "error")
        return 0

    def _look(self, broker: Broker, failures: int) -> int:
        """Start what is missing; the count of failures in a row to go on with."""
        try:
            self.roles |= self.missing(broker)
        except BrokerError as error:
            if not failures:
                self.log.warning("waits for the broker, %ss run on error=%s", self._kind, error)
            return failures + 1
        return 0

    def _step(self, broker: Broker) -> None:
        for experiment, role in list(self.roles.items()):
            self.stepped(broker, experiment, role, role.step())
            if role.finished:
                del self.roles[experiment]
