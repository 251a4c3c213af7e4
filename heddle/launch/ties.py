"""Ties: a process that we started ends with the one that started it, whatever way that ends, frozen or not.

It never ends anything else, and a process that somebody else started is not tied to anybody.
"""

import ctypes
import os
import signal
import sys
import threading

from heddle.clock import Clock, SystemClock

PARENT_ENV = "HEDDLE_PARENT_PID"
PR_SET_PDEATHSIG = 1
WATCH_S = 0.5


def die_with_parent(sent: signal.Signals = signal.SIGTERM, *, clock: Clock | None = None) -> None:
    """Have this process receive `sent` when the process that spawned it ends, and wake up for it if it was stopped.

    Only when `Child` started it (it leaves its pid in the environment). Linux asks the kernel; elsewhere, or when that
    fails, a thread looks twice a second who the parent is, and a stopped process ends when somebody wakes it.
    """
    expected = os.environ.pop(PARENT_ENV, "")
    if not expected.isdigit():
        return
    parent = int(expected)
    if sys.platform.startswith("linux") and ask_kernel(sent):
        _start(_wake_with_parent)
    else:
        _start(_watch_parent, parent, sent, clock or SystemClock())
    if os.getppid() != parent:  # it ended before we asked
        os.kill(os.getpid(), sent)


def _start(target: object, *args: object) -> None:
    threading.Thread(target=target, args=args, name="parent", daemon=True).start()  # type: ignore[arg-type]


def ask_kernel(sent: signal.Signals) -> bool:
    """That the calling thread's process gets `sent` when its parent ends; each thread has one wish of its own."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        return int(libc.prctl(PR_SET_PDEATHSIG, int(sent), 0, 0, 0)) == 0
    except (OSError, AttributeError):
        return False


def _wake_with_parent() -> None:
    """A stopped process cannot act on what it is sent: this thread's wish is that it goes on then."""
    if ask_kernel(signal.SIGCONT):
        threading.Event().wait()


def _watch_parent(parent: int, sent: signal.Signals, clock: Clock) -> None:
    while os.getppid() == parent:
        clock.sleep(WATCH_S)
    os.kill(os.getpid(), sent)
