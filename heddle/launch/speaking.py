"""Speaking: hands what user code prints in a launcher's roles to the log in the broker, from a thread of its own.

It never makes anybody wait, opens no broker before there is a line, and drops what a broker does not take:
at once what it does not allow, else when there is too much.
"""

import logging
import threading
from collections.abc import Callable

from heddle.broker import Broker
from heddle.clock import Clock
from heddle.errors import Denied, HeddleError
from heddle.launch.voices import Voices
from heddle.subject import Subject

log = logging.getLogger("heddle.launch")

EVERY_S = 0.2
AGAIN_S = 2.0
IDLE_S = 60.0
"""Where nothing is printed for so long the connection is let go: of ten thousand workers each would hold one."""


class Speaking:
    """For roles that no supervisor listens to: trainers.

    Args:
        connect: opens the broker; called from its thread.
    """

    def __init__(self, connect: Callable[[], Broker], clock: Clock | None = None) -> None:
        self._connect = connect
        self._voices = Voices(clock)
        self._broker: Broker | None = None
        self._is_refused = False
        self._something, self._ended = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def hear(self, who: str, about: Subject, line: str) -> None:
        """A role printed a line; `about`: experiment, shard and epoch, as far as they are known."""
        if not self._voices.hear(who, line, about):
            return
        self._something.set()
        with self._lock:
            if self._thread is None and not self._ended.is_set():
                self._thread = threading.Thread(target=self._run, name="speaking", daemon=True)
                self._thread.start()

    def forget(self, who: str, experiment: str) -> None:
        """A role ended for good."""
        self._voices.forget(who, experiment)

    def stop(self, timeout_s: float = 2.0) -> None:
        """Send what there is and end, within that time."""
        self._ended.set()
        self._something.set()
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join(timeout_s)

    def _run(self) -> None:
        try:
            while not self._ended.is_set():
                if not self._something.wait(IDLE_S):
                    self._let_go()
                    continue
                self._ended.wait(EVERY_S)  # lines come in bunches
                self._something.clear()
                if not self._send():
                    self._something.set()
                    self._ended.wait(AGAIN_S)
            self._send()
        finally:
            self._let_go()

    def _let_go(self) -> None:
        broker, self._broker = self._broker, None
        if broker is not None:
            broker.close()

    def _send(self) -> bool:
        lines = self._voices.take()
        if not lines:
            return True
        try:
            if self._broker is None:
                self._broker = self._connect()
            sent = self._broker.events.log_all(lines)
        except Denied as error:
            level, self._is_refused = logging.DEBUG if self._is_refused else logging.WARNING, True
            log.log(level, "dropped what was printed lines=%d error=%s", len(lines), error)
            return True
        except HeddleError as error:
            log.debug("cannot hand on what was printed lines=%d error=%s", len(lines), error)
            sent = False
        if not sent:
            self._voices.give_back(lines)
        return sent
