"""The coordinator's loop: wait for the lead, lead, hand it over, and never give up on the broker.

It never decides anything about experiments; `leader.py` asks the planner. Any number may run; one leads.
"""

import logging
import os
import socket

import numpy as np

from heddle.broker import Broker, open_broker
from heddle.broker.coordinators import HIGHEST_EPOCH, LEADER_TTL_MS
from heddle.broker.faults import Damaged
from heddle.clock import Clock, SystemClock
from heddle.coord.leader import Leader
from heddle.coord.watch import Step, contact_since, longest_gap_ms, step_between
from heddle.errors import BrokerAmiss, BrokerBlocked, BrokerError, Denied, LeaderLost
from heddle.lease import Keeper, retry_delay_s
from heddle.stop import StopFlag

log = logging.getLogger("heddle.coordinator")

FOLLOW_EVERY_S = 0.5
"""A follower asks this often, so that it leads at most this long after the leader's lease is over."""
RETRY_LAST_S = 2.0


class Coordinator:
    """One coordinator process.

    Args:
        url: of the broker.
        stop: ends it after the current round, with the lead handed over.
        coordinator_id: unique name; made up when None.
        clock, rng: time and chance.
    """

    def __init__(
        self,
        url: str,
        *,
        stop: StopFlag,
        coordinator_id: str | None = None,
        clock: Clock | None = None,
        rng: np.random.Generator | None = None,
    ) -> None:
        self._url = url
        self._stop = stop
        self._clock = clock or SystemClock()
        self._rng = rng or np.random.default_rng()
        self.id = coordinator_id or f"{socket.gethostname()}-{os.getpid()}-{int(self._rng.integers(1 << 24)):06x}"
        self._contact_since_ms = 0
        self._floor_ms = 0
        self._last_ms: int | None = None
        self._step: Step | None = None
        self._blind = False
        self._was_away = False
        self._born_ms = 0
        self._asked_ms = 0.0
        self._answered_ms = 0.0
        self._waited_ms = 0.0
        self._away_at = 0.0
        self._fenced = 0

    def run(self) -> int:
        """Coordinate until told to stop; the exit code is 0.

        Raises:
            BrokerError, Denied: the broker could not be used at the start; later it is waited for.
        """
        broker = open_broker(self._url, role="coordinator")
        keeper_broker = open_broker(self._url, role="coordinator-keeper")
        try:
            log.info("started coordinator=%s", self.id)
            failures = 0
            while not self._stop.draining:
                try:
                    self._term(broker, keeper_broker)
                    failures = 0
                except LeaderLost as error:
                    log.warning("lost coordinator=%s reason=%s", self.id, error)
                except (BrokerError, Damaged, Denied) as error:
                    failures = self._wait_for_broker(failures, error)
        finally:
            keeper_broker.close()
            broker.close()
        log.info("ended coordinator=%s reason=%s", self.id, self._stop.reason)
        return 0

    def _term(self, broker: Broker, keeper_broker: Broker) -> None:
        """Ask for the lead once; with it, lead until it is lost or handed over."""
        now_ms = self._touch(broker)
        epoch = broker.coordinators.claim_leader(self.id, above=self._fenced)
        if epoch is None:
            self._stop.wait(FOLLOW_EVERY_S * (0.75 + 0.25 * self._rng.random()))
            return
        log.info("leads coordinator=%s epoch=%d", self.id, epoch)
        broker.events.log(None, "coordinator", self.id, "info", f"leads epoch={epoch}")
        leader = Leader(broker, self.id, epoch, contact_since_ms=self._contact_since_ms, born_ms=self._born_ms)
        keeper = Keeper(
            lambda: keeper_broker.coordinators.renew_leader(self.id, epoch),
            ttl_s=LEADER_TTL_MS / 1000,
            on_lost=lambda reason: log.warning("lost lead coordinator=%s reason=%s", self.id, reason),
            name="leader-keeper",
            clock=self._clock,
        )
        try:
            with keeper:
                self._lead(broker, leader, keeper, now_ms)
        except LeaderLost as error:
            # Where the broker forgot a later leader, who then wrote once more, the lease is ours, its epoch worthless;
            # and where somebody wrote a huge one by hand, no epoch counts that does not lie above that.
            self._fenced = max(epoch, self._fence(broker, error.key, epoch))
            raise
        if keeper.lost:
            broker.events.log(None, "coordinator", self.id, "warning", f"lost the lead of epoch={epoch}")
        elif self._stop.draining:
            broker.coordinators.release_leader(self.id, epoch)
            broker.events.log(None, "coordinator", self.id, "info", f"handed the lead over epoch={epoch}")

    def _lead(self, broker: Broker, leader: Leader, keeper: Keeper, now_ms: int) -> None:
        """Rounds until the lead is lost or handed over; a broker that is away is waited for, with the lead kept."""
        failures = 0
        has_taken_over = False
        while not self._stop.draining and not keeper.lost:
            try:
                now_ms = self._touch(broker)
                leader.contact_since_ms = self._contact_since_ms
                leader.in_touch_since(self._floor_ms)
                leader.answered_late(now_ms, self._waited_ms)
                if self._step is not None:
                    leader.clock_was_set(self._step, now_ms)
                if not has_taken_over:
                    leader.take_over(now_ms)
                    has_taken_over = True
                leader.tick(now_ms)
                self._wait(leader, now_ms)
                if failures:
                    log.info("reached broker again coordinator=%s failures=%d", self.id, failures)
                    away_s = self._clock.monotonic() - self._away_at
                    told = f"reached the broker again after {away_s:.1f} s"
                    broker.events.log(None, "coordinator", self.id, "warning", told)
                failures = 0
            except (BrokerError, Damaged, Denied) as error:
                has_taken_over = False  # a broker that was killed may have forgotten that an experiment was over
                failures = self._wait_for_broker(failures, error)

    def _wait(self, leader: Leader, now_ms: int) -> None:
        """Until the next round; where nobody can read the queue, as a follower does."""
        try:
            leader.wait(now_ms)
        except BrokerAmiss as error:
            leader.amiss(error, now_ms)
            self._stop.wait(FOLLOW_EVERY_S)

    def _touch(self, broker: Broker) -> int:
        """The broker's time; notes since when it has been in reach."""
        asked_ms = 1000.0 * self._clock.monotonic()
        now_ms = broker.conn.now_ms()
        answered_ms = 1000.0 * self._clock.monotonic()
        least_ms, most_ms = asked_ms - self._answered_ms, answered_ms - self._asked_ms
        self._asked_ms, self._answered_ms = asked_ms, answered_ms
        if self._last_ms is None:
            # This process is new, but a broker that has been up for long had every renewal it should have, unless it
            # was frozen just now: the leader holds off for a moment.
            self._born_ms = now_ms
            self._contact_since_ms = now_ms - broker.conn.uptime_ms()
        else:
            self._contact_since_ms = contact_since(self._contact_since_ms, self._last_ms, now_ms, LEADER_TTL_MS)
            # Its clock may have been set back in a silence, which then looks shorter than it was, or so soon before it
            # was set forward that neither shows: leases that were renewed between ended at once. What is watched
            # already is told of it and has its own TTL to compare it with.
            self._step = step_between(least_ms, most_ms, now_ms - self._last_ms)
            self._waited_ms = answered_ms - asked_ms
            if self._step is not None or self._waited_ms > longest_gap_ms(LEADER_TTL_MS):
                self._contact_since_ms = now_ms
        if self._blind:
            self._floor_ms = now_ms
        elif self._was_away:
            # Started again with what it had saved before the last renewals, however quickly: nobody could renew there.
            self._floor_ms = now_ms - broker.conn.uptime_ms()
        self._blind = self._was_away = False
        self._floor_ms = min(self._floor_ms, now_ms)  # a clock that stepped back
        self._contact_since_ms = max(self._contact_since_ms, self._floor_ms)
        self._last_ms = now_ms
        return now_ms

    def _wait_for_broker(self, failures: int, error: Exception) -> int:
        """Wait with full jitter; returns how often it has failed in a row now."""
        failures += 1
        self._blind = self._blind or isinstance(error, BrokerBlocked)
        self._was_away = self._was_away or isinstance(error, BrokerError)
        if failures == 1:
            self._away_at = self._clock.monotonic()
            log.warning("waits for broker coordinator=%s error=%s", self.id, error)
        self._stop.wait(retry_delay_s(failures, self._rng.random(), last_s=RETRY_LAST_S))
        return failures

    def _fence(self, broker: Broker, key: str, epoch: int) -> int:
        """The epoch that fenced this one; 0 where that is none that a leader may have, which is mended, or where it
        cannot be told now: whoever is fenced again asks again."""
        if not key:
            return 0
        try:
            found = broker.coordinators.fence(key)
            if found <= HIGHEST_EPOCH:
                return found
            if was := broker.coordinators.mend_fence(key, epoch):
                told = f"mended key={key} field=leader_epoch was={was} now={epoch}; no leader ever had that epoch"
                log.warning("%s", told)
                broker.events.log(None, "coordinator", self.id, "warning", told)
            return 0
        except (BrokerError, Damaged, Denied) as error:
            log.debug("cannot tell what fenced key=%s error=%s", key, error)
            return 0
