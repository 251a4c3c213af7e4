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


def exit_when_hurried(stop: StopFlag, after_s: float = HURRIED_EXIT_S, *, clock: Clock | None = None) -> None:
    """Have this process end `after_s` after the second request, whatever it is doing then.

    It may be importing, or wait for an environment that hangs. Whoever takes over finds what a SIGKILL leaves.
    """

    def wait() -> None:
        stop.wait_now()
        (clock or SystemClock()).sleep(after_s)
        exit_now(INTERRUPTED, within_s=LAST_WORDS_S)

    threading.Thread(target=wait, name="hurried exit", daemon=True).start()
