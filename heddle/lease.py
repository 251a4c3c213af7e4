"""The keeper: renews a lease, a worker's many, a trainer's seat or a leader's, from its own thread.

It never decides who holds what: the broker's scripts do, and the keeper passes on what they say.

`Keeper` calls `renew` every third of the TTL. `Watchdog` looks at what the process does and calls
back when one single action lasts too long. Both survive anything but their owner.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from heddle.clock import Clock, SystemClock
from heddle.errors import BrokerError, Conflict, Denied, Gone

log = logging.getLogger("heddle.lease")

RENEWALS_PER_TTL = 3
RETRY_FIRST_S = 0.05
RETRY_LAST_S = 1.0  # a process works again within 5 s of the broker's return


def retry_delay_s(
    failures: int, chance: float, *, first_s: float = RETRY_FIRST_S, last_s: float = RETRY_LAST_S
) -> float:
    """How long to wait after `failures` (>= 1) failures in a row: full jitter, doubling.

    Args:
        chance: uniform in [0, 1); never less than a tenth of the bound comes out.
    """
    bound = min(last_s, first_s * 2.0 ** min(failures - 1, 30))
    return bound * (0.1 + 0.9 * chance)


class Keeper:
    """Renews until it is stopped or the lease is lost.

    Args:
        renew: renews once, on a connection that no other thread waits on; True = still held,
            False = lost. BrokerError means "ask again soon": failing to ask is not losing.
            Conflict (SeatLost, LeaderLost, LeaseLost), Gone and Denied mean lost.
        ttl_s: how long the lease lasts; renewed every third of it.
        on_lost: called once, from the keeper's thread, with the reason. The keeper then ends.
        on_back: called, from the keeper's thread, when renewing works again, with the seconds for which it did not.
    """

    def __init__(
        self,
        renew: Callable[[], bool],
        *,
        ttl_s: float,
        on_lost: Callable[[str], None],
        on_back: Callable[[float], None] | None = None,
        name: str = "keeper",
        clock: Clock | None = None,
        rng: np.random.Generator | None = None,
    ) -> None:
        if ttl_s <= 0:
            raise ValueError(f"ttl_s must be positive, not {ttl_s}")
        self._renew = renew
        self._every_s = ttl_s / RENEWALS_PER_TTL
        self._on_lost = on_lost
        self._on_back = on_back
        self._clock = clock or SystemClock()
        self._rng = rng or np.random.default_rng()
        self._wake = threading.Event()
        self._ending = False
        self._lost = threading.Event()
        self._last_ok = self._clock.monotonic()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> "Keeper":
        """Start the thread that renews; the lease counts as renewed now."""
        self._last_ok = self._clock.monotonic()
        self._thread.start()
        return self

    def stop(self, timeout_s: float = 5.0) -> None:
        """End the thread; the lease is left to its owner to release."""
        self._ending = True
        self._wake.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def shorten(self, ttl_s: float) -> None:
        """Renew every third of `ttl_s` from now on if that is more often than before."""
        if ttl_s / RENEWALS_PER_TTL < self._every_s:
            self._every_s = ttl_s / RENEWALS_PER_TTL
            self._wake.set()

    @property
    def lost(self) -> bool:
        """True once the broker said that somebody else holds it."""
        return self._lost.is_set()

    @property
    def seconds_since_renewed(self) -> float:
        """How old the last good answer is; above the TTL the lease may be gone."""
        return self._clock.monotonic() - self._last_ok

    def __enter__(self) -> "Keeper":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        failures = 0
        wait_s = self._every_s
        while True:
            self._wake.wait(wait_s)
            self._wake.clear()
            if self._ending:
                return
            try:
                reason = "" if self._renew() else "another holds it now"
            except BrokerError as error:
                failures += 1
                if failures == 1:
                    log.warning("cannot renew, asking again keeper=%s error=%s", self._thread.name, error)
                wait_s = min(self._every_s, retry_delay_s(failures, self._rng.random()))
                continue
            except (Conflict, Gone, Denied) as error:
                reason = str(error) or type(error).__name__
            except Exception as error:  # noqa: BLE001  top of a thread: a dead keeper must not look alive
                log.exception("keeper failed name=%s", self._thread.name)
                reason = f"keeper failed: {type(error).__name__}: {error}"
            if reason:
                self._lose(reason)
                return
            if failures:
                log.info("renewed again keeper=%s after=%.1fs", self._thread.name, self.seconds_since_renewed)
                if self._on_back is not None:
                    self._on_back(self.seconds_since_renewed)
            failures = 0
            self._last_ok = self._clock.monotonic()
            wait_s = self._every_s

    def _lose(self, reason: str) -> None:
        if self._ending:
            return
        log.warning("lost keeper=%s reason=%s", self._thread.name, reason)
        self._lost.set()
        self._on_lost(reason)


WORDS = {"restore": "restoring the snapshot", "snapshot": "taking a snapshot"}
"""Calls whose short name does not say enough."""


def in_words(what: str) -> str:
    """A call, for people: "step", "restoring the snapshot"."""
    return WORDS.get(what, what)


@dataclass(frozen=True, slots=True)
class Action:
    """One thing that the process does right now and that may hang.

    Attributes:
        what: e.g. "step", "reset", "act", "make".
        since: monotonic seconds at which it began; together with `what` and `subject` its identity.
        limit_s: how long it may last.
        subject: whose it is, e.g. "cartpole-7f3a shard 3".
    """

    what: str
    since: float
    limit_s: float
    subject: str = ""

    @property
    def words(self) -> str:
        """What it is, for people."""
        return in_words(self.what)


class StuckTimer:
    """Counts how long one action has been *seen* lasting.

    A frozen process (SIGSTOP, a sleeping laptop) sees nothing, so time that passes between two
    looks counts for at most twice the distance at which one looks.
    """

    def __init__(self, every_s: float) -> None:
        self._most_s = 2.0 * every_s
        self._action: Action | None = None
        self._seen_at = 0.0
        self.lasted_s = 0.0

    def look(self, action: Action | None, now: float) -> bool:
        """Take note of what happens at `now`, monotonic seconds; True when the action has lasted beyond its limit."""
        if action is None or action != self._action:
            self._action = action
            self.lasted_s = 0.0
        else:
            self.lasted_s += min(now - self._seen_at, self._most_s)
        self._seen_at = now
        return action is not None and self.lasted_s > action.limit_s


class Watchdog:
    """Calls `on_stuck(action, lasted_s)` once when one action lasts beyond its limit.

    Args:
        doing: what happens now; None while the process waits (for room, command, policy, broker).
        on_stuck: called from the watchdog's thread; usually ends the process.
    """

    def __init__(
        self,
        doing: Callable[[], Action | None],
        on_stuck: Callable[[Action, float], None],
        *,
        every_s: float = 0.25,
        clock: Clock | None = None,
    ) -> None:
        self._doing = doing
        self._on_stuck = on_stuck
        self._every_s = every_s
        self._clock = clock or SystemClock()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)

    def start(self) -> "Watchdog":
        """Start the thread that watches."""
        self._thread.start()
        return self

    def stop(self, timeout_s: float = 2.0) -> None:
        """End the thread, waiting for it at most `timeout_s` seconds; from that thread itself without waiting."""
        self._end.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        timer = StuckTimer(self._every_s)
        while not self._end.wait(self._every_s):
            action = self._doing()
            if timer.look(action, self._clock.monotonic()):
                assert action is not None
                self._on_stuck(action, timer.lasted_s)
                return
