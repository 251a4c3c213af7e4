"""The courier: carries large weights to the broker in a thread of its own, so that the next update need not wait.

It never chooses a version and never tries again: what came of the way is told to the publisher, who decides. One
parcel is under way at a time. Sending one releases the interpreter, so a learner goes on meanwhile.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from heddle.broker.policies import INLINE_BYTES

LARGE_BYTES = INLINE_BYTES
"""Smaller weights are published in one round trip, which takes less than handing them to a thread is worth."""

Carry = Callable[[int, bytes, int], object]
"""Publishes (version, weights, update). What it raises is what became of it."""


@dataclass(frozen=True, slots=True)
class _Parcel:
    version: int
    data: bytes
    update: int


class Courier:
    """Of one publisher, whose thread alone calls it.

    Args:
        carry: called in the courier's thread.
    """

    def __init__(self, carry: Carry) -> None:
        self._carry = carry
        self._changed = threading.Condition()
        self._parcel: _Parcel | None = None
        self._trouble: BaseException | None = None
        self._is_closed = False
        self._thread: threading.Thread | None = None

    @property
    def is_away(self) -> bool:
        """True while a parcel is under way."""
        with self._changed:
            return self._parcel is not None

    def send(self, version: int, data: bytes, update: int) -> None:
        """Have it carried. The one before has to be there: `wait`."""
        with self._changed:
            assert self._parcel is None and not self._is_closed, "one parcel at a time, and none after the end"
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="courier", daemon=True)
                thread.start()  # raises where there can be no more threads
                self._thread = thread
            self._parcel = _Parcel(version, data, update)
            self._changed.notify_all()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until nothing is under way; False when it still is after `timeout_s`."""
        with self._changed:
            return self._changed.wait_for(lambda: self._parcel is None, timeout_s)

    def trouble(self) -> BaseException | None:
        """What the last way ended with, told once; None when it arrived, or nothing was sent since."""
        with self._changed:
            trouble, self._trouble = self._trouble, None
            return trouble

    def close(self) -> None:
        """Carry nothing more; what is under way arrives, or not."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _run(self) -> None:
        while (parcel := self._next()) is not None:
            trouble: BaseException | None = RuntimeError("the courier's thread was ended")
            try:
                self._carry(parcel.version, parcel.data, parcel.update)
                trouble = None
            except Exception as error:  # noqa: BLE001  top of a thread: told to the publisher
                trouble = error
            finally:
                with self._changed:
                    self._parcel, self._trouble = None, trouble
                    self._changed.notify_all()

    def _next(self) -> _Parcel | None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._parcel is not None)
            return None if self._is_closed else self._parcel
