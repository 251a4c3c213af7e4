"""Begun lines: what threads printed of lines that are not over yet, told as they stand once nothing more comes.

It never writes one: whoever made it takes them, from any thread. It has no lock that a print could wait for, for that
may come in the middle of another one, from a destructor or a signal handler.
"""

import _thread
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
LINGER_S = 10.0
"""So long after the last piece somebody looks on by himself: else every `print`, of two pieces, would wake him."""

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
            self._last_at = self._clock.monotonic()
            self._rests[key] = _Rest(rest, about, self._last_at)
            self._watch()
        for line in lines:
            self._tell(line, about)

    def tell_all(self, *, idle_s: float = 0.0) -> None:
        """Tell what stands there without an end, of every thread, as far as nothing was added for so long. One that
        cannot be told keeps no other from it."""
        until = self._clock.monotonic() - idle_s
        for key, rest in self._rests.copy().items():  # other threads print on
            if rest.at <= until and (taken := self._rests.pop(key, None)) is not None:
                with contextlib.suppress(Exception):
                    self._tell(taken.text, taken.about)

    def close(self) -> None:
        """Tell all, and keep nothing from now on."""
        self._has_ended = True
        self._wake.put(True)
        self.tell_all()

    def forget(self) -> None:
        """In a fork: what was begun is its parent's, and no thread watches."""
        self._rests: dict[object, _Rest] = {}
        self._last_at = 0.0
        self._wake: SimpleQueue[bool] = SimpleQueue()
        self._is_watched = False
        self._has_thread = threading.Lock()

    def _watch(self) -> None:
        """Have somebody look. Waits for no lock, as a `threading.Thread` does to start: this is in a print."""
        if self._is_watched:
            return
        self._is_watched = True
        try:
            if self._has_thread.acquire(blocking=False):
                self._start()
            self._wake.put(False)
        except BaseException as error:
            self._is_watched = False
            if not isinstance(error, RuntimeError | MemoryError):
                raise  # of a signal's handler; of those two the end tells, or whoever prints next

    def _start(self) -> None:
        try:
            _thread.start_new_thread(self._run, (self._wake, self._has_thread))
        except BaseException:
            self._has_thread.release()
            raise

    def _run(self, wake: "SimpleQueue[bool]", has_thread: threading.Lock) -> None:
        """Tell idle ones as long as there are some now and then, then wait for one."""
        try:
            while not wake.get():
                while self._rests or self._clock.monotonic() - self._last_at < LINGER_S:
                    with contextlib.suppress(Empty):
                        if wake.get(timeout=IDLE_S):
                            return
                    self.tell_all(idle_s=IDLE_S)
                self._is_watched = False
                if self._rests:  # begun between these two
                    self._watch()
        finally:  # closed, or out of memory: then whoever prints next starts another one
            self._is_watched = False
            has_thread.release()


def _forget_all() -> None:
    for one in list(_all):
        one.forget()


os.register_at_fork(after_in_child=_forget_all)
