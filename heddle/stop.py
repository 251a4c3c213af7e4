"""The wish to end: how a loop learns that it shall finish, and when it shall stop at once.

It never ends a process by itself; the loop that holds the flag does, or the one who waits for `now`.

A first request means: finish what is in hand, then leave. A second one means: leave now.
"""

import logging
import queue
import signal
import threading
from collections.abc import Callable, Iterable

log = logging.getLogger("heddle.stop")

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopFlag:
    """Two steps of ending, shared by the threads of one role.

    Attributes:
        reason: why the first request came; "" before it.
    """

    def __init__(self) -> None:
        self.reason = ""
        self._lock = threading.Lock()
        self._draining = threading.Event()
        self._now = threading.Event()
        self._is_armed = False  # by somebody whose next word means at once
        self._listeners: list[Callable[[], None]] = []

    @property
    def draining(self) -> bool:
        """True once anybody asked to end."""
        return self._draining.is_set()

    @property
    def now(self) -> bool:
        """True once anybody asked a second time."""
        return self._now.is_set()

    def request(self, reason: str) -> None:
        """Ask to end: the first call drains, every later one stops at once; the first behind a `drain` that does not
        arm is a first one still.

        Not to be called from a signal handler (it takes locks); `listen_to_signals` sees to that.
        """
        self._request(reason, hurries=True, arms=True)

    def drain(self, reason: str, *, arms: bool = True) -> None:
        """Ask to end gently; asking again changes nothing.

        Args:
            arms: a request behind it stops at once. Not where both may be one wish: Ctrl-C ends the reader of a pipe as
                well, and who is told first is chance.
        """
        self._request(reason, hurries=False, arms=arms)

    def _request(self, reason: str, *, hurries: bool, arms: bool) -> None:
        with self._lock:
            was_armed, self._is_armed = self._is_armed, self._is_armed or arms
            if not self._draining.is_set():
                self.reason = reason
                self._draining.set()
            elif hurries and was_armed:
                self._now.set()
            else:
                return
            listeners = list(self._listeners)
        for listener in listeners:
            listener()

    def on_request(self, listener: Callable[[], None]) -> None:
        """Call `listener` after every request, from the thread that made it; it must not block."""
        with self._lock:
            self._listeners.append(listener)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the first request, at most `timeout_s`; says whether it came."""
        return self._draining.wait(timeout_s)

    def wait_now(self, timeout_s: float | None = None) -> bool:
        """Wait for the second request, at most `timeout_s`; says whether it came."""
        return self._now.wait(timeout_s)


def listen_to_signals(flag: StopFlag, signals: Iterable[signal.Signals] = SIGNALS) -> None:
    """Turn SIGTERM and SIGINT into requests. Main thread only, once a process.

    SIGHUP asks gently however often it comes: a terminal that is closed may send it twice, from its shell and from the
    kernel, and is no one who is in a hurry. Where it was ignored before (`nohup`) it stays so.

    A handler may interrupt its own thread inside a lock, so it only puts into a queue (which is
    made for that); a thread of its own makes the request.
    """
    arrived: queue.SimpleQueue[int] = queue.SimpleQueue()

    def tell() -> None:
        while True:
            number = arrived.get()
            name = signal.Signals(number).name
            log.info("received signal=%s", name)
            if number == signal.SIGHUP:
                flag.drain(name, arms=False)
            else:
                flag.request(name)

    threading.Thread(target=tell, name="signals", daemon=True).start()
    for one in signals:
        if one == signal.SIGHUP and signal.getsignal(one) is signal.SIG_IGN:
            continue
        signal.signal(one, lambda number, _frame: arrived.put(number))


def listen_no_more(signals: Iterable[signal.Signals] = SIGNALS) -> None:
    """All is ended and saved, and what is left to do is for show: from now on a signal ends this process at once.

    But not a SIGHUP, which may be the second one of one closed terminal: what is shown is a picture in a file, too.
    """
    for one in signals:
        signal.signal(one, signal.SIG_IGN if one == signal.SIGHUP else signal.SIG_DFL)
