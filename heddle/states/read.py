"""Reads the facts that judgements follow from: a handful of round trips an experiment.

It never judges, never waits and never writes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from heddle.broker import Broker
from heddle.broker.experience_types import Flow
from heddle.broker.faults import Damaged
from heddle.broker.pointers import read_flow
from heddle.broker.records import Status, read_ctl
from heddle.broker.seats import Sitter
from heddle.broker.types import ShardState
from heddle.states.facts import Facts, PoolFacts, Sight

T = TypeVar("T")

PARTITION = 0
TTL_MS = 10_000
"""Of leases, where a spec does not say."""
EVER_MS = 1 << 62
"""For whoever looks once: nothing limits its sight but how long the broker has been up."""


@dataclass(slots=True)
class Watch:
    """Remembers since when whoever looks again and again has been in touch with the broker without a gap.

    Attributes:
        gap_ms: between two looks; what is longer begins anew.
    """

    gap_ms: int = 2_000
    _since_ms: int = 0
    _last_ms: int = 0

    def look(self, now_ms: int) -> int:
        """Note that the broker answered; for how long it has now."""
        if not self._last_ms:
            self._since_ms = now_ms - EVER_MS
        elif now_ms - self._last_ms > self.gap_ms or now_ms < self._last_ms:
            self._since_ms = now_ms
        self._last_ms = now_ms
        return now_ms - self._since_ms


def sight(broker: Broker, watch: Watch | None = None) -> Sight:
    """How far whoever looks now can see."""
    now_ms = broker.conn.now_ms()
    up_ms = broker.conn.uptime_ms()
    return Sight(now_ms, min(up_ms, watch.look(now_ms)) if watch is not None else up_ms)


def pool_facts(broker: Broker, pool: str) -> PoolFacts:
    """The workers of a pool and how many it shall have."""
    workers = {info.beat.worker: info for info in broker.pools.workers(pool)}
    return PoolFacts(pool, workers, broker.pools.wanted(pool), tuple(broker.pools.supervisors(pool)))


def facts_of(
    broker: Broker,
    experiment: str,
    *,
    seen: Sight,
    pool: PoolFacts | None = None,
    status: Status | None = None,
    flow: Flow | None = None,
    shards: list[ShardState] | None = None,
) -> Facts:
    """The facts of one experiment; what the caller read already is taken from there.

    Raises:
        Gone: it was removed.
    """
    known = status if status is not None else broker.experiments.status(experiment)
    read = _Reading()
    newest = None if known.ended else read.whole(lambda: broker.events.metrics_newest(experiment), None)
    return Facts(
        sight=seen,
        status=known,
        ctl=read.whole(lambda: broker.experiments.ctl(experiment), read_ctl({"command": known.command})),
        shards=tuple(
            shards if shards is not None else read.whole(lambda: broker.shards.shards(experiment, PARTITION), [])
        ),
        flow=flow
        if flow is not None
        else read.whole(lambda: broker.experience.flow(experiment, PARTITION), read_flow({}, 0)),
        ttl_ms=read.whole(lambda: _ttl_ms(broker, experiment), TTL_MS),
        pool=pool if pool is not None else pool_facts(broker, known.pool),
        sitter=read.whole(lambda: broker.seats.last(experiment), Sitter()),
        leader=broker.coordinators.leader(),
        room=read.whole(lambda: broker.shards.waiting(experiment, PARTITION), {}),
        updated_ms=newest.time_ms if newest is not None else 0,
        update_s=newest.values.get("update_seconds", 0.0) if newest is not None else 0.0,
        out_of_memory=broker.conn.out_of_memory(),
        blocked=broker.conn.blocked(),
        damaged=known.damaged or read.damage,
    )


@dataclass(slots=True)
class _Reading:
    """Reads an experiment as far as its keys are what they should be.

    Attributes:
        damage: what is wrong with the first that is not; "" for nothing.
    """

    damage: str = ""

    def whole(self, ask: Callable[[], T], instead: T) -> T:
        """What is asked for, or `instead` where it cannot be read."""
        try:
            return ask()
        except Damaged as error:
            self.damage = self.damage or str(error)
            return instead


def _ttl_ms(broker: Broker, experiment: str) -> int:
    """Of its leases, as its spec says; the default where that cannot be read."""
    return round(1000 * broker.experiments.spec(experiment).number("faults", "lease_ttl", TTL_MS / 1000))
