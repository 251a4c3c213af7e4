"""A deadline for code of the user's that runs in this thread: an environment or policy that never answers is an error.

It never ends the process, and never interrupts native code that does not come back to Python.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Never

from heddle.errors import EnvError
from heddle.spec.objects import Ours, blame

AGAIN_S = 2.0
"""After the deadline: how long cleaning up (an environment's close) may last before it is interrupted, too."""


class _Overrun(Ours):
    """Time is up; no Exception, so that code of the user's does not take it for one of its own."""


@contextmanager
def within(limit_s: float, *, what: str, key: str, value: object, hint: str = "") -> Iterator[None]:
    """Interrupt what runs inside after `limit_s` seconds.

    The alarm is a signal, which only the main thread gets: in any other thread there is no deadline.

    Args:
        what: what it did not get done, e.g. "was not made and played".
        key, value: of the spec, for the error.

    Raises:
        EnvError: time was up; says where the code was.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, _ring)
    timer = signal.setitimer(signal.ITIMER_REAL, limit_s, AGAIN_S)
    try:
        yield
    except _Overrun as overrun:
        place = blame(overrun)
        stood = f"; it was at {place}" if place else ""
        raise EnvError(f"{what} within {limit_s:g} s{stood}", key=key, value=value, hint=hint) from overrun
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *timer)  # of somebody who had set one before


def _ring(_signal: int, _frame: FrameType | None) -> Never:
    raise _Overrun
