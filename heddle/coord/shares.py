"""The numbers of the pools that a leader looks after: how many shards each worker should hold.

It never tells a worker what to do: workers read the quota and release or claim by themselves.
"""

import logging
from collections.abc import Iterable

from heddle.broker import Broker
from heddle.broker.faults import Damaged
from heddle.coord import planner
from heddle.coord.telling import Teller
from heddle.coord.watch import Watched
from heddle.errors import BrokerAmiss

log = logging.getLogger("heddle.coordinator")

POOLS_EVERY_MS = 1_000
WRITE_EVERY_MS = 10_000
"""A quota is written when it changes, and this often in case the broker forgot it."""


class PoolShares:
    """Keeps the quota of every pool that has or had an experiment in this term.

    Attributes:
        is_stale: something changed that the quota follows from; it is worked out anew in the next round.
    """

    def __init__(self, broker: Broker, epoch: int, tell: Teller) -> None:
        self._broker = broker
        self._tell = tell
        self._epoch = epoch
        self._written: dict[str, planner.Quota] = {}
        self._looked_ms = 0
        self._refreshed_ms = 0
        self.is_stale = True

    def share(self, experiments: Iterable[Watched], now_ms: int) -> None:
        """Write the quotas that changed; raises LeaderLost."""
        if not self.is_stale and now_ms - self._looked_ms < POOLS_EVERY_MS:
            return
        self.is_stale = False
        self._looked_ms = now_ms
        is_refresh = now_ms - self._refreshed_ms >= WRITE_EVERY_MS
        shards: dict[str, int] = dict.fromkeys(self._written, 0)
        for watched in experiments:
            counted = watched.active if watched.counts_in_quota else 0
            shards[watched.pool] = shards.get(watched.pool, 0) + counted
        for pool, active in shards.items():
            try:
                quota = planner.quota(active, self._held(pool))
                if is_refresh or quota != self._written.get(pool):
                    self._write(pool, quota)
            except BrokerAmiss as error:  # of this pool alone
                self._tell.amiss(error, now_ms)
            except Damaged as error:
                log.warning("cannot share out pool=%s error=%s", pool, error)
        if is_refresh:
            self._refreshed_ms = now_ms

    def tidy(self, now_ms: int) -> int:
        """Delete the ticket groups' consumers of workers that are gone and hold nothing; how many. What a group has
        passed over, set on by somebody's hand, it reads again.

        Workers that fell silent leave the pool's list with every reading of it.
        """
        deleted = 0
        for pool in self._written:
            try:
                gone, was_passed_over = self._broker.pools.tidy_tickets(pool)
                deleted += gone
                if was_passed_over:
                    because = "somebody had set its group behind tickets that nobody has read"
                    self._tell.note(None, "rewound", tickets_of_pool=pool, because=because)
            except BrokerAmiss as error:
                self._tell.amiss(error, now_ms)
        return deleted

    def _held(self, pool: str) -> list[int]:
        """Shards of each worker that is here and not draining."""
        workers = self._broker.pools.workers(pool)
        return [worker.beat.shards for worker in workers if worker.alive and not worker.draining]

    def _write(self, pool: str, quota: planner.Quota) -> None:
        self._broker.pools.set_quota(
            pool,
            leader_epoch=self._epoch,
            floor=quota.floor,
            ceil=quota.ceil,
            below=quota.below,
            live=quota.live,
        )
        self._written[pool] = quota
