"""News: a thread that hears of new policies and commands the moment they are set.

This module never is the only way to learn them: a missed hint costs at most one renewal.
"""

import logging
import threading
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from redis.exceptions import RedisError

from heddle.broker import keys
from heddle.broker.connection import Connection, retry_delays
from heddle.broker.faults import Damaged
from heddle.broker.records import integer, text
from heddle.clock import Clock, SystemClock
from heddle.errors import BrokerUnreachable, HeddleError

log = logging.getLogger("heddle.broker")

POLL_S = 0.1
"""How soon a newly watched experiment is subscribed to, at the latest."""

MOST_DIGITS = 16
"""No version is longer."""
ASK_S = 3.0
"""After this long without news the server is asked whether it is there."""
DEAF_S = 8.0
"""After this long without an answer the socket is given up: a cut cable says nothing."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The last that was heard of an experiment.

    Attributes:
        policy, eval_policy: latest and eval-pinned versions, 0 for none.
        command: run, pause or stop; "" when it is gone.
    """

    policy: int
    eval_policy: int
    command: str


class NewsListener:
    """Listens in a daemon thread on a socket of its own, and connects again with jitter when it is cut off."""

    def __init__(self, conn: Connection, *, rng: np.random.Generator | None = None, clock: Clock | None = None) -> None:
        self._conn = conn
        self._rng = rng if rng is not None else np.random.default_rng()
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._watched: set[str] = set()
        self._facts: dict[str, Facts] = {}
        self._news = threading.Event()
        self._wake = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="heddle-news", daemon=True)
        self._thread.start()

    def watch(self, experiment: str) -> None:
        """Hear of an experiment from now on; its facts arrive soon after, as news."""
        with self._lock:
            self._watched.add(experiment)
        self._wake.set()

    def unwatch(self, experiment: str) -> None:
        """Hear of it no more."""
        with self._lock:
            self._watched.discard(experiment)
            self._facts.pop(experiment, None)
        self._wake.set()

    def facts(self, experiment: str) -> Facts | None:
        """The last that was heard; None before anything was."""
        with self._lock:
            return self._facts.get(experiment)

    def wait(self, timeout_s: float) -> bool:
        """Wait for any news; True when there were some since the last call."""
        came = self._news.wait(timeout_s)
        self._news.clear()
        return came

    def close(self) -> None:
        """End the thread and let its socket go."""
        self._closed = True
        self._wake.set()
        self._thread.join(timeout=5.0)

    # ---- the thread

    def _run(self) -> None:
        delays = retry_delays(self._rng)
        while not self._closed:
            try:
                if self._listen():
                    delays = retry_delays(self._rng)
            except (HeddleError, RedisError, OSError) as error:
                delay_s = next(delays)
                log.debug("lost the news, listening again in delay_s=%.2f error=%s", delay_s, error)
                self._clock.sleep(delay_s)

    def _listen(self) -> bool:
        """Listen until closed or until nothing is watched; True when it was subscribed to anything."""
        while not self._closed and not self._wanted():
            self._wake.wait(1.0)
            self._wake.clear()
        subscribed: set[str] = set()
        pubsub: Any = self._conn.main.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]
        heard_at = asked_at = self._clock.monotonic()
        try:
            while not self._closed:
                self._wake.clear()
                subscribed = self._follow(pubsub, subscribed)
                if not subscribed:
                    return True
                message = pubsub.get_message(timeout=POLL_S)
                now = self._clock.monotonic()
                if message is not None:
                    heard_at = now
                    if message["type"] == "message":
                        self._hear(text(message["channel"]), text(message["data"]))
                if now - heard_at > DEAF_S:
                    raise BrokerUnreachable(f"nothing heard for {DEAF_S:g} s")
                if now - max(heard_at, asked_at) > ASK_S:
                    pubsub.ping()
                    asked_at = now
        finally:
            pubsub.close()
        return True

    def _wanted(self) -> set[str]:
        with self._lock:
            return set(self._watched)

    def _follow(self, pubsub: Any, subscribed: set[str]) -> set[str]:
        """Subscribe to what is watched and only that; facts are read after subscribing: no gap."""
        wanted = self._wanted()
        if left := subscribed - wanted:
            pubsub.unsubscribe(*(keys.news(experiment) for experiment in left))
        if new := wanted - subscribed:
            pubsub.subscribe(*(keys.news(experiment) for experiment in new))
            for experiment in sorted(new):
                self._look(experiment)
        return wanted

    def _look(self, experiment: str) -> None:
        try:
            fields = self._conn.main.hmget(keys.ctl(experiment), "policy", "eval_policy", "command")
            self._tell(experiment, Facts(integer(fields[0]), integer(fields[1]), text(fields[2])))
        except Damaged as error:  # of this one alone; its renewals tell whoever holds it
            log.debug("no facts experiment=%s error=%s", experiment, error)

    def _hear(self, channel: str, data: str) -> None:
        word, _, value = data.partition(" ")
        experiment = channel.removeprefix("heddle:{").rpartition(".")[0]
        known = self.facts(experiment) or Facts(0, 0, "run")
        if word in ("policy", "eval") and not (value.isascii() and value.isdigit() and len(value) < MOST_DIGITS):
            return  # somebody's hand: no more than a hint is lost
        if word == "policy":
            self._tell(experiment, replace(known, policy=integer(value)))
        elif word == "eval":
            self._tell(experiment, replace(known, eval_policy=integer(value)))
        elif word == "command" and value in ("run", "pause", "stop"):
            self._tell(experiment, replace(known, command=value))

    def _tell(self, experiment: str, facts: Facts) -> None:
        with self._lock:
            if experiment not in self._watched:
                return
            self._facts[experiment] = facts
        self._news.set()
