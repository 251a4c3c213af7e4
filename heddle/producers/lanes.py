"""Lanes: threads of one worker of which one plays at a time; one that waits long for a child lets the others go on.

A lane never plays beside another: it parks where it waits for another process, and only goes on when it is told to.
So whatever shards share, policies above all, is used by one lane at a time.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

T = TypeVar("T")

_here = threading.local()


class Lane(Generic[T]):
    """One thread that does what it is given, one thing after the other, while its owner waits.

    Attributes:
        is_parked: it waits for another process, and its owner does not wait for it.
        is_ready: it is parked, and that wait is over.

    Args:
        on_park: called in its thread when it parks; on_go: when it goes on afterwards.
        on_ready: called in its thread when it could go on.
    """

    def __init__(
        self, name: str, *, on_park: Callable[[], None], on_go: Callable[[], None], on_ready: Callable[[], None]
    ) -> None:
        self._on_park, self._on_go, self._on_ready = on_park, on_go, on_ready
        self._turn, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._work: Callable[[], T] | None = None
        self._result: T | None = None
        self._error: BaseException | None = None
        self._interrupt: Callable[[], None] = _nothing
        self._may_park = True
        self.is_parked = self.is_ready = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    # ---- for its owner

    def begin(self, work: Callable[[], T], *, may_park: bool = True) -> bool:
        """Have it do `work`; returns when that is finished (True) or parked (False: see `go_on`)."""
        self._work, self._may_park = work, may_park
        return self.go_on()

    def go_on(self) -> bool:
        """Let a parked one go on, once its wait is over; as `begin`."""
        self._turn.release()
        self._back.acquire()
        return not self.is_parked

    def result(self) -> T:
        """What `work` returned or raised, once it is finished."""
        error, self._error = self._error, None
        if error is not None:
            raise error
        return self._result  # type: ignore[return-value]

    def abandon(self) -> None:
        """Have a parked one end its wait, by ending what it waits for, and finish; what comes of it is not wanted."""
        self._may_park = False
        while self.is_parked:
            self._interrupt()
            self.go_on()
        self._error = None

    def end(self) -> None:
        """It has nothing more to do: the thread ends. Not for a parked one."""
        self._work = None
        self._turn.release()
        self._thread.join()

    # ---- from within

    def park(self, interrupt: Callable[[], None]) -> bool:
        """Give the turn back, for a wait begins that `interrupt` can end; False when it must not park now."""
        if not self._may_park:
            return False
        self._interrupt, self.is_ready, self.is_parked = interrupt, False, True
        self._on_park()
        self._back.release()
        return True

    def unpark(self) -> None:
        """The wait is over; returns when it is this lane's turn."""
        self.is_ready = True
        self._on_ready()
        self._turn.acquire()
        self.is_parked = self.is_ready = False
        self._on_go()

    def _run(self) -> None:
        _here.lane = self
        while True:
            self._turn.acquire()
            if self._work is None:
                return
            try:
                self._result = self._work()
            except BaseException as error:  # noqa: BLE001  told to whoever asks for the result
                self._error = error
            self._back.release()


@contextmanager
def parked(interrupt: Callable[[], None]) -> Iterator[None]:
    """Around a wait for another process, which `interrupt` ends: others play meanwhile. Outside lanes: nothing."""
    lane: Lane[object] | None = getattr(_here, "lane", None)
    if lane is None or not lane.park(interrupt):
        yield
        return
    try:
        yield
    finally:
        lane.unpark()


def _nothing() -> None:
    return
