"""A watch: the call into user code that runs right now, written down so that one that hangs can be seen and ended.

It never ends anything itself: a watchdog looks at `doing` from its own thread.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from heddle.clock import Clock
from heddle.lease import Action

Noted = Callable[[str, float], AbstractContextManager[None]]
"""`noted(what, limit_s)`: around one call into user code that may last so long."""


class Watch:
    """Notes one call at a time.

    Args:
        subject: whose code it is, for people.
    """

    def __init__(self, subject: str, clock: Clock) -> None:
        self._subject = subject
        self._clock = clock
        self._action: Action | None = None

    def doing(self) -> Action | None:
        """The call that runs now; None between two."""
        return self._action

    @contextmanager
    def noted(self, what: str, limit_s: float) -> Iterator[None]:
        """Written down while the block lasts."""
        self._action = Action(what, self._clock.monotonic(), limit_s, self._subject)
        try:
            yield
        finally:
            self._action = None


@contextmanager
def unwatched(what: str, limit_s: float) -> Iterator[None]:
    """Nobody looks how long it takes."""
    yield
