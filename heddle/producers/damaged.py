"""Damaged experiments: what a worker does about one in whose keys somebody put something else.

It never ends the worker: to that experiment's shards it is as if they were lost, and the others are played on.
"""

import logging
import threading
from collections.abc import Callable

from heddle.broker import Broker
from heddle.broker.faults import Damaged
from heddle.clock import Clock

log = logging.getLogger("heddle.worker")

SHUN_FIRST_S, SHUN_LAST_S = 1.0, 30.0
"""The leader mends what can be mended within a second; an experiment that has failed has no tickets any more."""
CALM_S = 60.0
"""Damage that comes so long after the last is met as if it were the first."""


class DamagedExperiments:
    """Those that one worker leaves alone for a while; any thread may ask.

    Args:
        lose: gives up everything that is held of an experiment, and says why.
    """

    def __init__(self, broker: Broker, *, lose: Callable[[str, str], object], clock: Clock) -> None:
        self._broker = broker
        self._lose = lose
        self._clock = clock
        self._lock = threading.Lock()
        self._met: dict[str, tuple[int, float]] = {}

    def met(self, experiment: str, error: Damaged) -> None:
        """One of its keys is not what it should be: hold nothing of it, and have the leader look."""
        with self._lock:
            times, until = self._met.get(experiment, (0, 0.0))
            now = self._clock.monotonic()
            times = times + 1 if now < until + CALM_S else 1
            self._met[experiment] = (times, now + min(SHUN_LAST_S, SHUN_FIRST_S * 2.0 ** min(times - 1, 10)))
        log.warning("leaving experiment=%s alone because %s", experiment, error)
        self._lose(experiment, "its keys are damaged")
        self._broker.damages.note(experiment, error)

    def shuns(self, experiment: str) -> bool:
        """True while its tickets are left to others."""
        with self._lock:
            return self._clock.monotonic() < self._met.get(experiment, (0, 0.0))[1]
