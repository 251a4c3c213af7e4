"""The sampler: what a worker's playing thread is at, looked at many times a second, for `heddle profile`.

It never stops or slows the thread that it looks at; counting in the loop itself would.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from heddle.lease import Action
from heddle.producers.appender import Appender
from heddle.producers.desk import Desk
from heddle.producers.user_code import UserCode

SAMPLE_S = 0.067
"""No divisor of the times of heartbeats, timeouts and polls. A look takes 0.1 ms, most of it for being woken beside a
thread that computes: twice as many of them were 0.3 % of a worker."""
PHASES = {"step": "env", "reset": "env", "make": "env", "close": "env", "act": "policy", "load": "weights"} | {
    "restore": "snapshot"
}
"""A call into user code -> what it is counted as; a call of another name counts under its own."""
SENDING = "sending"
"""Beside the others: how often the thread that delivers had a batch in its hands."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The worker at one moment.

    Attributes:
        action: the call into user code that runs; is_playing: a segment is played; is_stepping: a shard has its turn;
            is_waiting: nothing can be played; is_sending: a batch is being delivered.
    """

    action: Action | None
    is_playing: bool
    is_stepping: bool
    is_waiting: bool
    is_sending: bool


def seen_of(user_code: UserCode, desk: Desk, appender: Appender) -> Seen:
    """A worker as it is now."""
    return Seen(
        action=user_code.doing(),
        is_playing=user_code.is_playing,
        is_stepping=desk.stepping is not None,
        is_waiting=desk.is_waiting,
        is_sending=appender.is_sending,
    )


def phase_of(seen: Seen) -> str:
    """What the playing thread is at: env, policy, weights, snapshot, ...; books are those of the player, encode is what
    becomes of a segment that was played, other is all between two turns."""
    if seen.action is not None:
        return PHASES.get(seen.action.what, seen.action.what)
    if seen.is_playing:
        return "books"
    if seen.is_stepping:
        return "encode"
    return "wait" if seen.is_waiting else "other"


class Sampler:
    """Looks and counts, in a thread of its own.

    Attributes:
        counts: samples by phase, and of `SENDING`, since it started.
    """

    def __init__(self, look: Callable[[], Seen], *, every_s: float = SAMPLE_S) -> None:
        self.counts: dict[str, int] = {}
        self._look, self._every_s = look, every_s
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def start(self) -> None:
        """Start the thread that looks."""
        self._thread.start()

    def stop(self, timeout_s: float = 2.0) -> None:
        """End the thread; one that never started needs none of it."""
        self._end.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def sample(self) -> None:
        """Look once."""
        seen = self._look()
        phase = phase_of(seen)
        self.counts[phase] = self.counts.get(phase, 0) + 1
        if seen.is_sending:
            self.counts[SENDING] = self.counts.get(SENDING, 0) + 1

    def _run(self) -> None:
        while not self._end.wait(self._every_s):
            self.sample()
