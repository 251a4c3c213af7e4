"""An event loop whose timers are kept to microseconds where the system can; elsewhere the usual one.

The usual loop on Linux rounds every wait up to whole milliseconds, because epoll counts in them. Of environments that
wait 10 ms a step that alone takes a twentieth.
"""

import asyncio
import select
import selectors

MOST_DESCRIPTORS = 1024
"""select(2) cannot look at descriptors from this number on."""


def new_loop() -> asyncio.AbstractEventLoop:
    """An event loop that nobody has run yet."""
    selector = selectors.DefaultSelector()
    if not isinstance(selector, selectors.EpollSelector):
        return asyncio.SelectorEventLoop(selector)
    selector.close()
    return asyncio.SelectorEventLoop(_FineSelector())


class _FineSelector(selectors.EpollSelector):
    """Waits by select(2), which counts in microseconds, for its one epoll, which looks at everything else."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout > 0 and self.fileno() < MOST_DESCRIPTORS:
            select.select([self], [], [], timeout)
            timeout = 0
        return super().select(timeout)
