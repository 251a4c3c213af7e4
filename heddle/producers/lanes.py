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
    """One thread that does what it is given, one thing after the other, while somebody waits for it.

    Args:
        on_park: called in its thread when it parks; on_go: when it goes on afterwards.
    """

    def __init__(
        self, name: str, *, on_park: Callable[[], None] = lambda: None, on_go: Callable[[], None] = lambda: None
    ) -> None:
        self._on_park, self._on_go = on_park, on_go
        self._turn = threading.Semaphore(0)  # its turn to run
        self._back = threading.Semaphore(0)  # the turn is given back: finished, or parked
        self._work: Callable[[], T] | None = None
        self._result: T | None = None
        self._error: BaseException | None = None
        self._ending = False
        self.is_parked = False
        self.is_ready = False
        self.on_ready: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def begin(self, work: Callable[[], T]) -> bool:
        """Have it do `work`; returns when that is finished (True) or parked (False: see `go_on`)."""
        self._work = work
        return self._give_turn()

    def go_on(self) -> bool:
        """Let a parked one whose wait is over go on; as `begin`."""
        return self._give_turn()

    def result(self) -> T:
        """What `work` returned or raised, once it is finished."""
        error, self._error = self._error, None
        if error is not None:
            raise error
        return self._result  # type: ignore[return-value]

    def end(self) -> None:
        """It has nothing more to do: the thread ends. Not for a parked one."""
        self._ending = True
        self._turn.release()

    def park(self) -> None:
        """From within: give the turn back, for a wait begins."""
        self.is_ready = False
        self.is_parked = True
        self._on_park()
        self._back.release()

    def unpark(self) -> None:
        """From within: the wait is over; returns when it is this lane's turn."""
        self.is_ready = True
        self.on_ready()
        self._turn.acquire()
        self.is_parked = False
        self._on_go()

    def _give_turn(self) -> bool:
        self._turn.release()
        self._back.acquire()
        return not self.is_parked

    def _run(self) -> None:
        _here.lane = self
        while True:
            self._turn.acquire()
            if self._ending:
                return
            assert self._work is not None
            try:
                self._result = self._work()
            except BaseException as error:  # noqa: BLE001  told to whoever waits
                self._error = error
            self._back.release()


@contextmanager
def parked() -> Iterator[None]:
    """Around a wait for another process: in a lane, others may play meanwhile. Elsewhere nothing happens."""
    lane: Lane[object] | None = getattr(_here, "lane", None)
    if lane is None:
        yield
        return
    lane.park()
    try:
        yield
    finally:
        lane.unpark()
