"""Begun lines: what threads printed of lines that are not over yet, told as they stand once nothing more comes.

It never writes one: whoever made it takes them, from any thread. It has no lock that a print could wait for, for that
may come in the middle of another one, from a destructor or a signal handler.
"""

import contextlib
import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from heddle.clock import Clock, SystemClock
from heddle.subject import Subject, here

IDLE_S = 1.0
"""A line to which nothing was added for so long is told: whoever printed it may hang, and be killed for that."""

_all: "weakref.WeakSet[BegunLines]" = weakref.WeakSet()


@dataclass(frozen=True, slots=True)
class _Rest:
    text: str
    about: Subject
    at: float


class BegunLines:
    """Puts together what is printed in pieces.

    Args:
        tell: takes a line, and what its thread was at work on when it printed the last of it.
        most_chars: of a line; a longer one is over there.
    """

    def __init__(self, tell: Callable[[str, Subject], None], most_chars: int, clock: Clock | None = None) -> None:
        self._tell = tell
        self._most = most_chars
        self._clock = clock or SystemClock()
        self._own = threading.local()
        self._has_ended = False
        self.forget()
        _all.add(self)

    def add(self, stream: str, text: str) -> None:
        """This thread printed something to that stream; lines that are over are told now."""
        key = self._own.__dict__.setdefault(stream, object())
        before = self._rests.pop(key, None)
        *lines, rest = ((before.text if before is not None else "") + text).split("\n")
        if len(rest) > self._most or (rest and self._has_ended):
            lines, rest = [*lines, rest], ""
        about = here()
        if rest:
            self._rests[key] = _Rest(rest, about, self._clock.monotonic())
            self._watch()
        for line in lines:
            self._tell(line, about)

    def tell_all(self, *, idle_s: float = 0.0) -> None:
        """Tell what stands there without an end, of every thread, as far as nothing was added for so long."""
        until = self._clock.monotonic() - idle_s
        for key, rest in list(self._rests.items()):
            if rest.at <= until and (taken := self._rests.pop(key, None)) is not None:
                self._tell(taken.text, taken.about)

    def close(self) -> None:
        """Tell all, and keep nothing from now on."""
        self._has_ended = True
        self._wake.put(True)
        self.tell_all()

    def forget(self) -> None:
        """In a fork: what was begun is its parent's, and no thread watches."""
        self._rests: dict[object, _Rest] = {}
        self._wake: SimpleQueue[bool] = SimpleQueue()
        self._is_watched = False
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def _watch(self) -> None:
        if self._is_watched:
            return
        self._is_watched = True
        self._wake.put(False)
        if self._thread is None and self._starting.acquire(blocking=False):
            thread = threading.Thread(target=self._run, name="begun lines", daemon=True)
            with contextlib.suppress(RuntimeError):  # none can be started: then the end tells
                thread.start()
                self._thread = thread
            self._starting.release()

    def _run(self) -> None:
        """Tell idle ones while there are any, then wait for one."""
        while not self._wake.get():
            while self._rests:
                with contextlib.suppress(Empty):
                    if self._wake.get(timeout=IDLE_S):
                        return
                self.tell_all(idle_s=IDLE_S)
            self._is_watched = False
            if self._rests:  # begun between these two
                self._watch()


def _forget_all() -> None:
    for one in list(_all):
        one.forget()


os.register_at_fork(after_in_child=_forget_all)
