"""Patience: a broker call that is repeated with jitter until it is answered, or there is no point any more.

It never decides what a lost answer meant: only calls that may be repeated are passed to it.
"""

import logging
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from heddle.broker.faults import Damaged
from heddle.clock import Clock, SystemClock
from heddle.errors import BrokerBlocked, BrokerFull, BrokerUnreachable, HeddleError
from heddle.lease import retry_delay_s

log = logging.getLogger("heddle.consumers")

T = TypeVar("T")


DAMAGE_S = 10.0
"""The leader mends a damaged key within a second or two, or ends the experiment."""


class GivenUp(HeddleError):
    """The caller was asked to end while the broker was away."""


class Patience:
    """Repeats calls while the broker is away.

    Args:
        check: called before every try; raises when trying is over (the seat is lost, the process shall end).
        on_damage: told that a key of the experiment is not what it should be; False when it will not be mended.
    """

    def __init__(
        self,
        *,
        check: Callable[[], None] = lambda: None,
        on_damage: Callable[[Damaged], bool] = lambda _: False,
        clock: Clock | None = None,
        rng: np.random.Generator | None = None,
    ) -> None:
        self._check = check
        self._on_damage = on_damage
        self._clock = clock or SystemClock()
        self._rng = rng or np.random.default_rng()
        self._silent_since: float | None = None

    @property
    def silent_s(self) -> float:
        """Seconds for which no call was answered; 0 while they are."""
        return 0.0 if self._silent_since is None else self._clock.monotonic() - self._silent_since

    def call(
        self, what: str, fn: Callable[[], T], *, on_trouble: Callable[[], None] = lambda: None, full_too: bool = False
    ) -> T:
        """What `fn` returns, once it does.

        Args:
            what: for the log, e.g. "read experience".
            on_trouble: called after each failed try.
            full_too: try again, too, while the broker is out of memory; while it is blocked that is so anyway.
        """
        failures = 0
        since = self._clock.monotonic()
        while True:
            self._check()
            try:
                value = fn()
                self._silent_since = None
            except (BrokerUnreachable, BrokerFull) as error:
                if isinstance(error, BrokerFull) and not (full_too or isinstance(error, BrokerBlocked)):
                    raise
                failures += 1
                if self._silent_since is None:
                    self._silent_since = self._clock.monotonic()
                if failures == 1:
                    log.warning("cannot %s, trying on error=%s", what, error)
                on_trouble()
                self._clock.sleep(retry_delay_s(failures, self._rng.random()))
                continue
            except Damaged as error:
                if self._clock.monotonic() - since > DAMAGE_S or not self._on_damage(error):
                    raise
                failures += 1
                on_trouble()
                self._clock.sleep(retry_delay_s(failures, self._rng.random()))
                continue
            if failures:
                log.info("could %s again after=%.1fs", what, self._clock.monotonic() - since)
            return value

    def pause(self) -> None:
        """Wait a moment, and look whether trying is over. Raises as `check` does."""
        self._check()
        self._clock.sleep(retry_delay_s(4, self._rng.random()))
