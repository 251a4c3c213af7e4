"""The quick end of a program: libraries are not taken apart.

It never skips what somebody waits for: threads are joined, exit handlers run, output is flushed.
"""

import _thread
import contextlib
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import ClassVar, NoReturn, TypeVar

FAILED = 1
STUCK_CODE, HURRIED_CODE = 70, 130
"""Of a role that named the call which hung, and of one that was told to end twice."""

_Owner = TypeVar("_Owner")

LAST_WORDS_S = 1.0
"""So long an end at once waits for what is still to be told."""
_last_words: list[Callable[[], object]] = []


@contextlib.contextmanager
def with_last_words(say: Callable[[], object]) -> Iterator[None]:
    """Within it `say` is called before this process ends at once, from a thread that nobody waits for long for."""
    _last_words.append(say)
    try:
        yield
    finally:
        _last_words.remove(say)


def keep_last_words(owner: _Owner, say: Callable[[_Owner], object]) -> Callable[[], object]:
    """As `with_last_words`, for as long as `owner` lives, or until what is returned is called."""
    known = weakref.ref(owner)

    def say_it() -> None:
        if (one := known()) is not None:
            say(one)

    _last_words.append(say_it)
    over = weakref.finalize(owner, _last_words.remove, say_it)
    over.atexit = False
    return over


def exit_now(code: int, *, within_s: float = LAST_WORDS_S) -> NoReturn:
    """End this process from any thread, whatever the others are at; what was printed and is still held back is told, as
    far as nobody has to be waited for: who hangs may hang in the middle of a print."""
    try:
        is_said = threading.Event()
        _thread.start_new_thread(_say_last_words, (is_said,))  # a Thread's start takes locks that who hangs may have
        is_said.wait(within_s)
    finally:  # whatever that met: no thread or no memory may be left, or a signal's handler raises here
        os._exit(code)


def _say_last_words(is_said: threading.Event) -> None:
    try:
        for say in reversed(_last_words.copy()):
            with contextlib.suppress(BaseException):  # user code's stream may raise anything; others have words, too
                say()
        _flush()
    finally:
        is_said.set()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # whoever read it went away, or it was closed
            stream.flush()


class QuickExit:
    """Ends this process once threads are joined and exit handlers have run, with what was imported left as it is.

    The interpreter would take torch and its like apart piece by piece first: half a second and more, in which nothing
    is done for anybody.

    Attributes:
        code: the exit status; that of an error that nobody expected until it is set.
        kept: that of this program, if it ends so.
    """

    kept: ClassVar["QuickExit | None"] = None

    def __init__(self) -> None:
        self.code = FAILED
        self.keep()

    def keep(self) -> None:
        """This process is the one to end so, also when it is a fork of the one that said so first."""
        QuickExit.kept, self._pid = self, os.getpid()

    def leave(self) -> None:
        """For `atexit`: registered before all others, it is called after them."""
        if os.getpid() != self._pid:
            return  # a fork of us, which ends its own way
        try:
            _flush()
        finally:
            os._exit(self.code)
