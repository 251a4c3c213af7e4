"""Sweeping: what the isolated environments of a worker that died have left on this host goes beside whoever sees to the
workers.

It never ends a worker, and touches nothing of one that lives.
"""

import logging
import threading

from heddle.producers.isolation.home import sweep_after_death
from heddle.stop import StopFlag

log = logging.getLogger("heddle.supervisor")

PATIENCE_S = 10.0
"""What environments wrote may be large; whoever still has to end does not wait longer for it."""
HURRIED_S = 0.3
LOOK_S = 0.05


class Sweeper:
    """Sweeps when a worker died, from a thread of its own."""

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._thread: threading.Thread | None = None

    def after(self, code: int) -> None:
        """A worker ended with this status; never waits. One that ended well has left nothing."""
        if not code:
            return
        self._asked.set()
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._sweep, name="sweeper", daemon=True)
            self._thread.start()

    def finish(self, stop: StopFlag) -> None:
        """Wait until it is done, for a while; for a moment from when it shall stop at once."""
        if self._thread is None:
            return
        if self._asked.is_set() and not self._thread.is_alive() and not stop.now:
            self._sweep()  # asked in the moment in which it was over
        waited_s = 0.0
        while self._thread.is_alive() and waited_s < (HURRIED_S if stop.now else PATIENCE_S):
            self._thread.join(LOOK_S)
            waited_s += LOOK_S

    def _sweep(self) -> None:
        while self._asked.is_set():
            self._asked.clear()
            try:
                sweep_after_death()
            except OSError as error:  # the next worker that isolates sweeps, too
                log.info("cannot sweep what workers left error=%s", error)
