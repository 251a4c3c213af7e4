"""Hearing: what the broker tells of this supervisor's workers, and for how long nothing was heard of each.

It never reads a clock and never asks: both are the caller's. Silence is counted by our own monotonic time between two
answers in which the server's note of a worker stayed the same, so neither clock can make it long by jumping.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from heddle.broker.presence import Pulse
from heddle.launch.vigil import Silence

GAP_S = 5.0
"""Between two answers: whoever was out of touch for longer begins to count anew."""


@dataclass(slots=True)
class _Heard:
    """Of one worker: what was heard last and when that was new to us."""

    at: float
    pulse: Pulse | None = None
    limit_ms: int = 0


class Hearing:
    """Remembers what is heard. For one thread, or under one lock. `now` is monotonic seconds everywhere."""

    def __init__(self) -> None:
        self._heard: dict[str, _Heard] = {}
        self._since = 0.0
        self._last: float | None = None

    def hear(self, now: float, workers: Iterable[str], said: Mapping[str, Pulse]) -> None:
        """The broker answered at `now`, asked for `workers`, with what it knows of each; others are forgotten."""
        if self._last is None or now - self._last > GAP_S:
            self._since = now
        self._last = now
        before, self._heard = self._heard, {}
        for worker in workers:
            one = self._heard[worker] = before.get(worker) or _Heard(now)
            pulse = said.get(worker)
            if pulse is None:
                continue
            if one.pulse is None or pulse.seen_ms != one.pulse.seen_ms:
                one.at = now
            one.pulse = pulse
            one.limit_ms = max(one.limit_ms, pulse.limit_ms)

    def was_heard(self, worker: str) -> bool:
        """It beat at least once since it is listened for."""
        return worker in self._heard and self._heard[worker].pulse is not None

    def experiment(self, worker: str) -> str | None:
        """The one of which it held shards when it beat last; None for none or several."""
        one = self._heard.get(worker)
        held = one.pulse.experiments if one is not None and one.pulse is not None else ()
        return held[0] if len(held) == 1 else None

    def silence(self, worker: str, now: float) -> Silence | None:
        """For how long nothing was heard of a worker; None when it could not have been."""
        one = self._heard.get(worker)
        if one is None or self._last is None or now - self._last > GAP_S:
            return None
        for_s = max(0.0, self._last - max(one.at, self._since))
        if one.pulse is None:
            return Silence(for_s)
        return Silence(for_s, True, one.pulse.ttl_ms / 1000, one.limit_ms / 1000)
