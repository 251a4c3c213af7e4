"""Ending: what brings a worker down from outside its playing thread: requests to stop, and user code that hangs.

It never decides that a worker shall end; the stop flag and the watchdog do.
"""

import logging
import threading
from collections.abc import Callable

from heddle.errors import EnvError
from heddle.lease import Action
from heddle.producers.isolation.process import end_children
from heddle.producers.returns import Returns
from heddle.producers.user_code import UserCode
from heddle.quick_exit import HURRIED_CODE, STUCK_CODE
from heddle.stop import StopFlag

log = logging.getLogger("heddle.worker")

CUT_AFTER_S = 2.0
LOOK_S = 1.0


class Ending:
    """Shortens a long segment some time after the first request and ends the process after the second.

    Args:
        exit_process: ends the process from any thread.
    """

    def __init__(
        self,
        stop: StopFlag,
        user_code: UserCode,
        returns: Returns,
        *,
        worker: str,
        exit_process: Callable[[int], object],
    ) -> None:
        self._stop = stop
        self._user_code = user_code
        self._returns = returns
        self._worker = worker
        self._exit_process = exit_process
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ending", daemon=True)

    def start(self) -> "Ending":
        """Start the thread that looks whether to hurry."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """The worker ended by itself: nothing is to be hurried any more. The thread goes within a second."""
        self._over.set()

    def stuck(self, action: Action, lasted_s: float) -> None:
        """For the watchdog: nothing in this process can end user code that hangs, so the process ends."""
        reason = f"{action.words} of {action.subject} lasted longer than {action.limit_s:g} s"
        log.error("ending worker=%s because %s (%.1f s)", self._worker, reason, lasted_s)
        try:
            failure = self._user_code.hanging(reason)
        except Exception:  # noqa: BLE001  whatever it is, this process ends
            log.exception("cannot tell more of what hangs worker=%s", self._worker)
            failure = EnvError(reason)
        try:
            self._returns.release_quickly(failure)
            end_children()
        finally:
            self._exit_process(STUCK_CODE)

    def _run(self) -> None:
        while not self._stop.wait(LOOK_S):
            if self._over.is_set():
                return
        if not self._stop.wait_now(CUT_AFTER_S) and not self._over.is_set():
            self._user_code.cut()
        while not self._stop.wait_now(LOOK_S):
            if self._over.is_set():
                return
        if not self._over.is_set():
            log.warning("ending at once worker=%s", self._worker)
            try:
                self._returns.release_quickly(None)
                end_children()
            finally:
                self._exit_process(HURRIED_CODE)
