"""Gathers snapshots: looks at the fleet again and again and judges what it sees.

It never draws. Shards are looked at the more rarely the more there are; everything else every time.
"""

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from heddle.broker import Broker
from heddle.broker.fleet import Fleet, FleetReader
from heddle.broker.lines import PRINTED, Event, in_time
from heddle.broker.overview import ExperimentGlance
from heddle.broker.types import ShardState
from heddle.cli.history import History
from heddle.cli.top.making import cpu_share, ended_row, judged_workers, pool_row, wait_shares
from heddle.cli.top.rows import ExperimentRow, Snapshot
from heddle.clock import Clock, SystemClock
from heddle.errors import Gone, NotFound
from heddle.states.experiments import Picture, judge, judge_ended
from heddle.states.facts import Facts, PoolFacts, Sight
from heddle.states.judgement import Judgement
from heddle.states.read import Watch
from heddle.states.roles import judge_leader
from heddle.states.slow import RECENT, SlowShards, slow_shards

LOOK_MS_PER_SHARD = 10
"""The shards of an experiment cost about 0.1 ms each: looked at so rarely, that is a percent of a core."""
OPENED_SHARE = 1.5
"""Of the experiment that is shown, so much more: 3 % of a core are the limit with all the rest, however many shards."""
SLOW_S = 5.0
"""What changes rarely is asked for this often."""
EVENTS_KEPT = 500
"""Of events, and of what user code prints as well: neither pushes out the other."""
MOVED = {"reaped": "leases that ran out", "vouched": "workers that were seen to end"}
"""Totals of shards that were taken from their owner, and why they were."""


def look_every_s(shards: int, *, is_opened: bool) -> float:
    """Seconds between two looks at the shards of an experiment, where each of them costs so much."""
    every_s = LOOK_MS_PER_SHARD * shards / 1000
    return max(min(1.0, every_s), every_s / OPENED_SHARE) if is_opened else every_s


@dataclass(slots=True)
class _Kept:
    """What is remembered of one experiment between two looks."""

    history: History = field(default_factory=History)
    ttl_ms: int = 10_000
    budget_steps: int | None = None
    shards: tuple[ShardState, ...] = ()
    picture: Picture | None = None
    judged_at: float = -1e9
    new_ms: int = 0
    points: deque[tuple[int, Mapping[str, float]]] = field(default_factory=lambda: deque(maxlen=RECENT))
    slow: SlowShards | None = None
    slow_at: float = -1e9
    is_new: bool = True


class Gatherer:
    """Makes one snapshot after the other; for one thread.

    Args:
        pools: shown even where no experiment names them.
    """

    def __init__(self, broker: Broker, *, pools: Collection[str] = ("default",), clock: Clock | None = None) -> None:
        self._broker = broker
        self._reader = FleetReader(broker, pools=pools)
        self._clock = clock or SystemClock()
        self._watch = Watch()
        self._kept: dict[str, _Kept] = {}
        self._events: deque[Event] = deque(maxlen=EVENTS_KEPT)
        self._prints: deque[Event] = deque(maxlen=EVENTS_KEPT)
        self._slow: tuple[float, str, str] = (-1e9, "", "")
        self._opened_before = ""

    def snapshot(self, *, opened: str = "", watched: Collection[str] = (), everything: bool = False) -> Snapshot:
        """Look once.

        Args:
            opened: the experiment whose shards are shown.
            watched: workers that are shown.
            everything: leave nothing for later.

        Raises:
            BrokerError, Denied: the broker cannot be asked.
        """
        began = self._clock.monotonic()
        fleet = self._reader.read(watched=watched, everything=everything)
        server, now = fleet.server, self._clock.monotonic()
        seen = Sight(server.now_ms, min(server.uptime_ms, self._watch.look(server.now_ms)))
        self._events.extend(event for event in fleet.events if event.role != PRINTED)
        self._prints.extend(event for event in fleet.events if event.role == PRINTED)
        keeps, blocked = self._rarely(now)
        workers = judged_workers(fleet, seen)
        pools = {name: PoolFacts(name, fleet.workers[name], pool.wanted, tuple(pool.hosts)) for name, pool in
                 fleet.pools.items()}  # fmt: skip
        rows = []
        for experiment, glance in fleet.experiments.items():
            is_opened = experiment == opened
            is_urgent = everything or (is_opened and experiment != self._opened_before)
            every_s = 0.0 if is_urgent else look_every_s(glance.shards, is_opened=is_opened)
            rows.append(self._row(glance, fleet, seen, pools, blocked=blocked, now=now, every_s=every_s))
        self._opened_before = opened
        rows += [ended_row(status, server.now_ms) for status in fleet.ended.values()]
        self._kept = {name: kept for name, kept in self._kept.items() if name in fleet.experiments}
        return Snapshot(
            now_ms=server.now_ms,
            uptime_ms=server.uptime_ms,
            used_bytes=server.used_bytes,
            max_bytes=server.max_bytes,
            ops_per_second=server.ops_per_second,
            version=server.version,
            keeps=keeps,
            leader=judge_leader(seen, server.leader),
            experiments=tuple(rows),
            workers=tuple(row for some in workers.values() for row in some),
            pools=tuple(pool_row(name, pool, workers[name]) for name, pool in fleet.pools.items()),
            shards=self._opened(opened),
            events=tuple(in_time([*self._events, *self._prints])),
            cost_ms=1000 * (self._clock.monotonic() - began),
        )

    def _rarely(self, now: float) -> tuple[str, str]:
        """What the broker keeps, and why it takes no write."""
        if now - self._slow[0] >= SLOW_S:
            self._slow = (now, self._broker.conn.kept().name, self._broker.conn.blocked())
        return self._slow[1], self._slow[2]

    def _row(
        self,
        glance: ExperimentGlance,
        fleet: Fleet,
        seen: Sight,
        pools: Mapping[str, PoolFacts],
        *,
        blocked: str,
        now: float,
        every_s: float,
    ) -> ExperimentRow:
        status = glance.status
        kept = self._kept.get(status.experiment) or self._begin(status.experiment)
        for metric in glance.metrics:
            kept.history.add_update(metric.update, metric.values)
            kept.new_ms = metric.time_ms
            kept.points.append((metric.update, metric.values))
        latest = kept.history.latest
        if kept.picture is None or now - kept.judged_at >= every_s:
            self._judge(glance, kept, fleet, seen, pools, blocked=blocked)
            kept.judged_at = now
        if now - kept.slow_at >= SLOW_S:
            kept.slow, kept.slow_at = slow_shards(kept.points, kept.shards), now
        judged = kept.picture.experiment if kept.picture is not None else judge_ended(status)
        holders = [one for one in fleet.workers.get(status.pool, {}).values() if status.experiment in
                   one.beat.experiments]  # fmt: skip
        trainer_waits, workers_wait = wait_shares(latest, len(holders))
        return ExperimentRow(
            experiment=status.experiment,
            pool=status.pool,
            judged=judged,
            steps=kept.history.steps(glance.flow.trained.steps),
            budget_steps=kept.budget_steps,
            speed=_speed(kept, now, glance.flow.trained.steps, seen.now_ms),
            version=status.policy,
            returns=tuple(kept.history.returns[-512:]),
            eval_return=kept.history.eval_returns[-1][1] if kept.history.eval_returns else None,
            latest=dict(latest),
            flow=glance.flow,
            max_bytes=glance.ctl.max_bytes,
            max_entries=glance.ctl.max_entries,
            leased=glance.leased,
            shards=glance.shards,
            moved=sum(glance.totals[name] for name in MOVED),
            moved_by={why: glance.totals[name] for name, why in MOVED.items()},
            trainer=kept.picture.trainer if kept.picture is not None else None,
            cpu=cpu_share(kept.points),
            trainer_waits=trainer_waits,
            workers_wait=workers_wait,
            age_ms=seen.now_ms - status.created_ms,
            doing=glance.sitter.doing,
            slow=kept.slow if judged.state == "running" else None,
        )

    def _begin(self, experiment: str) -> _Kept:
        kept = self._kept[experiment] = _Kept()
        try:
            spec = self._broker.experiments.spec(experiment)
        except (Gone, NotFound, ValueError):
            return kept  # removed since it was listed, or not ours
        kept.ttl_ms = round(1000 * spec.number("faults", "lease_ttl", 10.0))
        kept.budget_steps = round(spec.number("budget", "env_steps", 0)) or None
        return kept

    def _judge(
        self,
        glance: ExperimentGlance,
        kept: _Kept,
        fleet: Fleet,
        seen: Sight,
        pools: Mapping[str, PoolFacts],
        *,
        blocked: str,
    ) -> None:
        try:
            kept.shards = tuple(self._broker.shards.shards(glance.status.experiment, 0))
        except Gone:
            return  # it is being removed
        facts = Facts(
            sight=seen,
            status=glance.status,
            ctl=glance.ctl,
            shards=kept.shards,
            flow=glance.flow,
            ttl_ms=kept.ttl_ms,
            pool=pools[glance.status.pool],
            sitter=glance.sitter,
            leader=fleet.server.leader,
            room=glance.waiting,
            updated_ms=kept.new_ms,
            update_s=kept.history.latest.get("update_seconds", 0.0),
            out_of_memory=fleet.server.out_of_memory,
            blocked=blocked,
        )
        kept.picture = judge(facts)

    def _opened(self, experiment: str) -> tuple[tuple[ShardState, Judgement], ...]:
        kept = self._kept.get(experiment)
        if kept is None or kept.picture is None:
            return ()
        judged = kept.picture.shards
        return tuple((shard, judged[shard.shard]) for shard in kept.shards if shard.shard in judged)


def _speed(kept: _Kept, now: float, steps: int, now_ms: int) -> float:
    """Trained steps per second of late; at the first look what the trainer said, if that was a moment ago."""
    counted = kept.history.speed(now, steps)
    if kept.is_new:
        kept.is_new = False
        is_fresh = now_ms - kept.new_ms < 1000 * SLOW_S
        return kept.history.latest.get("steps_per_second", 0.0) if is_fresh else 0.0
    return counted
