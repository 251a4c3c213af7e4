"""The outbox: finished spans on their way to a collector, in a thread of its own.

It never makes anybody wait: what it has no room for, and what the collector does not take, is dropped and counted.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from heddle.clock import Clock, SystemClock
from heddle.tracing.spans import Span

log = logging.getLogger("heddle.trace")

MOST = 16_384
"""Spans that may wait: some 10 MB, and half a minute of a worker that gives 250 batches a second."""
AT_ONCE = 512
EVERY_S = 1.0
TOLD_EVERY_S = 60.0
"""A collector that stays away is told of once in so long."""

Send = Callable[[Sequence[Span]], str]
"""Sends spans; why they were not taken, "" when they were. May take as long as it likes."""


@dataclass(frozen=True, slots=True)
class Tally:
    """What became of spans: taken by the collector, not taken, and without room to wait."""

    sent: int
    refused: int
    dropped: int


class Outbox:
    """Sends what is added, in batches.

    Args:
        send: asked from the outbox's own thread alone.
        most: spans that may wait.
        every_s: how long a span waits for others to go with it.
    """

    def __init__(self, send: Send, *, most: int = MOST, every_s: float = EVERY_S, clock: Clock | None = None) -> None:
        self._send = send
        self._most = most
        self._every_s = every_s
        self._clock = clock or SystemClock()
        self._changed = threading.Condition()
        self._spans: deque[Span] = deque()
        self._sent = self._refused = self._dropped = 0
        self._told_at: float | None = None
        self._ending = False
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)

    def start(self) -> "Outbox":
        """Start the thread that sends."""
        self._thread.start()
        return self

    def add(self, spans: Sequence[Span]) -> None:
        """Take spans along; returns at once. Those for which there is no room are dropped."""
        with self._changed:
            room = max(0, self._most - len(self._spans))
            self._spans.extend(spans[:room])
            self._dropped += max(0, len(spans) - room)
            if len(self._spans) >= AT_ONCE:
                self._changed.notify_all()

    def tally(self) -> Tally:
        """What became of them so far."""
        with self._changed:
            return Tally(self._sent, self._refused, self._dropped)

    def close(self, within_s: float) -> None:
        """Send what waits, for at most `within_s`; what is left then is dropped. Says how much was lost."""
        with self._changed:
            self._ending = True
            self._changed.notify_all()
        self._thread.join(within_s)
        with self._changed:
            self._dropped += len(self._spans)
            self._spans.clear()
            sent, refused, dropped = self._sent, self._refused, self._dropped
        lost = refused + dropped
        log.log(logging.WARNING if lost else logging.INFO, "traced spans sent=%d lost=%d", sent, lost)

    def _run(self) -> None:
        while spans := self._next():
            try:
                why = self._send(spans)
            except Exception as error:  # noqa: BLE001  top of a thread: work goes on without traces
                why = f"{type(error).__name__}: {error}"
            with self._changed:
                if why:
                    self._refused += len(spans)
                else:
                    self._sent += len(spans)
            if why:
                self._tell(why)

    def _next(self) -> list[Span]:
        """Wait for spans; [] when it ends and none are left."""
        with self._changed:
            if len(self._spans) < AT_ONCE and not self._ending:
                self._changed.wait(self._every_s)
            while not self._spans and not self._ending:
                self._changed.wait(self._every_s)
            return [self._spans.popleft() for _ in range(min(AT_ONCE, len(self._spans)))]

    def _tell(self, why: str) -> None:
        now = self._clock.monotonic()
        if self._told_at is None or now - self._told_at >= TOLD_EVERY_S:
            self._told_at = now
            tally = self.tally()
            lost = tally.refused + tally.dropped
            log.warning("loses traces, the collector does not take them lost=%d because %s", lost, why)
