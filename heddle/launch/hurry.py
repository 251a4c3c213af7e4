"""Hurry: how a role of ours hears signals while it loads, and how it ends when it was told twice.

It never ends another process.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator

from heddle.clock import Clock, SystemClock
from heddle.quick_exit import exit_now
from heddle.stop import StopFlag

INTERRUPTED = 130
HURRIED_EXIT_S = 0.3
"""Told twice, a process has this long to end by itself, so that it is gone within a second."""
LAST_WORDS_S = 0.05


@contextlib.contextmanager
def unheard() -> Iterator[None]:
    """Within, SIGTERM and SIGINT end this process at once and without a word; main thread only.

    For the time in which libraries are loaded: a handler of ours would run after the longest import, or never, for an
    exception raised in the middle of one may be swallowed. A container's first process must listen: it has no default.
    """
    if os.getpid() == 1:
        yield
        return
    heard = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    for number, handler in heard.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    try:
        yield
    finally:
        for number, handler in heard.items():
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, handler)


class _Told(BaseException):
    """A signal came that ends this process."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextlib.contextmanager
def ending_after_all() -> Iterator[None]:
    """Within, a SIGTERM or SIGHUP that would end this process at once ends it once what is under way is cleaned up.

    It comes as an exception, as a Ctrl-C does. Whoever listens to signals already, or is no main thread, is left alone.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ours = [one for one in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(one) is signal.SIG_DFL]

    def tell(number: int, _: object) -> None:
        for one in ours:
            signal.signal(one, signal.SIG_IGN)  # a second one finds the cleaning up under way
        raise _Told(number)

    told = 0
    for one in ours:
        signal.signal(one, tell)
    try:
        yield
    except _Told as ending:
        told = ending.number
    finally:
        for one in ours:
            signal.signal(one, signal.SIG_DFL)
    if told:
        os.kill(os.getpid(), told)


def exit_when_hurried(stop: StopFlag, after_s: float = HURRIED_EXIT_S, *, clock: Clock | None = None) -> None:
    """Have this process end `after_s` after the second request, whatever it is doing then.

    It may be importing, or wait for an environment that hangs. Whoever takes over finds what a SIGKILL leaves.
    """

    def wait() -> None:
        stop.wait_now()
        (clock or SystemClock()).sleep(after_s)
        exit_now(INTERRUPTED, within_s=LAST_WORDS_S)

    threading.Thread(target=wait, name="hurried exit", daemon=True).start()
