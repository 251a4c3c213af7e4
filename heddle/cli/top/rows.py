"""Rows: what there is to see, at one moment, as plain values.

It never reads the broker or a clock.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from heddle.broker.experience_types import Flow
from heddle.broker.lines import Event
from heddle.broker.presence import HostReport, WorkerInfo
from heddle.broker.types import ShardState
from heddle.states.judgement import Judgement
from heddle.states.slow import SlowShards

Value = float | str
AWAY = ("absent", "stalled")
"""A trainer that is so is what everybody waits for."""


@dataclass(frozen=True, slots=True)
class ExperimentRow:
    """One experiment.

    Attributes:
        experiment, pool, version, ended: as its status says.
        judged: how it really is.
        steps, budget_steps: trained so far, and of its budget (None without one in steps).
        speed: trained steps per second of late.
        returns: (env steps, return) of its last updates; eval_return: of the last evaluation, None before.
        latest: last value of every metric.
        flow: what is in flight and what became of the rest; max_bytes, max_entries: the caps.
        leased, shards, waiting: shards that are played, all of them, and those that wait for room.
        moved: how often a shard was taken from an owner that died.
        trainer_waits, workers_wait: share of the last update's time in which the trainer, and its workers, waited.
        age_ms: since it was submitted.
        result: what it left when it ended.
        doing: what its trainer does.
        slow: shards that it waits for, None for none.
        trainer: how its trainer is; None before it was looked at.
        cpu: share of a core that the trainer used of late, None where it was not measured.
        moved_by: how often a shard was taken, by why.
    """

    experiment: str
    pool: str
    judged: Judgement
    ended: bool = False
    steps: int = 0
    budget_steps: int | None = None
    speed: float = 0.0
    version: int = 0
    returns: tuple[tuple[float, float], ...] = ()
    eval_return: float | None = None
    latest: Mapping[str, float] = field(default_factory=dict)
    flow: Flow | None = None
    max_bytes: int = 0
    max_entries: int = 0
    leased: int = 0
    shards: int = 0
    moved: int = 0
    trainer_waits: float | None = None
    workers_wait: float | None = None
    age_ms: int = 0
    result: Mapping[str, Any] = field(default_factory=dict)
    doing: str = ""
    slow: SlowShards | None = None
    trainer: Judgement | None = None
    cpu: float | None = None
    moved_by: Mapping[str, int] = field(default_factory=dict)

    @property
    def last_return(self) -> float | None:
        """Of its last update; of one that is over what it left."""
        if self.returns:
            return self.returns[-1][1]
        left = self.result.get("return")
        return float(left) if isinstance(left, int | float) else None

    @property
    def done(self) -> float | None:
        """Share of the budget that is used."""
        return min(1.0, self.steps / self.budget_steps) if self.budget_steps else None

    @property
    def full(self) -> float | None:
        """Share of the cap that is in flight, of the one that is nearer."""
        if self.flow is None:
            return None
        shares = [used / cap for used, cap in self._used() if cap]
        return max(shares, default=None)

    def _used(self) -> tuple[tuple[int, int], ...]:
        assert self.flow is not None
        return (self.flow.bytes, self.max_bytes), (self.flow.entries, self.max_entries)

    @property
    def waits(self) -> str:
        """Who waits for whom, and how much of the time; the shards that all wait for."""
        if any(one.subject.startswith("trainer") and one.state in AWAY for one in self.judged.because[:1]):
            return "for trainer"
        shares = {"trainer": self.trainer_waits or 0.0, "workers": self.workers_wait or 0.0}
        who = max(shares, key=lambda name: shares[name])
        if self.flow is not None and self.flow.waiting:
            return f"room {self.flow.waiting} shards"
        if self.slow is not None:
            return self.slow.short
        return f"{who} {shares[who]:.0%}" if shares[who] >= 0.05 else "-"


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """One worker: what it said, how it really is."""

    info: WorkerInfo
    judged: Judgement

    @property
    def waits(self) -> float | None:
        """Share of its time of late in which it could play none of its shards; None where it holds none."""
        return self.info.beat.waits


@dataclass(frozen=True, slots=True)
class PoolRow:
    """One pool.

    Attributes:
        pool, wanted: which, and how many workers it shall have, None when nobody says.
        states: how many of its workers are in each state; of those only that were looked at.
        present: workers that it lists.
        speed: environment steps per second of all of them.
        hosts: what its supervisors say.
        deaths: workers that ended by themselves, by how.
    """

    pool: str
    wanted: int | None
    states: Mapping[str, int]
    present: int
    speed: float
    hosts: Mapping[str, HostReport | None] = field(default_factory=dict)
    deaths: Mapping[str, int] = field(default_factory=dict)

    @property
    def alive(self) -> int:
        """How many are there and work or could."""
        return sum(self.states.get(state, 0) for state in ("alive", "waiting", "draining"))


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything at one moment.

    Attributes:
        now_ms, uptime_ms, used_bytes, max_bytes, ops_per_second, version: of the broker.
        keeps: the name of its durability.
        leader: the coordinator.
        experiments, workers, pools: rows.
        shards: of the experiment that is open, with how each is.
        events: the last lines of the log, oldest first.
        problem: why nothing newer is known; "" while the broker answers.
        cost_ms: what gathering this took.
    """

    now_ms: int = 0
    uptime_ms: int = 0
    used_bytes: int = 0
    max_bytes: int = 0
    ops_per_second: int = 0
    version: str = ""
    keeps: str = ""
    leader: Judgement | None = None
    experiments: tuple[ExperimentRow, ...] = ()
    workers: tuple[WorkerRow, ...] = ()
    pools: tuple[PoolRow, ...] = ()
    shards: tuple[tuple[ShardState, Judgement], ...] = ()
    events: tuple[Event, ...] = ()
    problem: str = ""
    cost_ms: float = 0.0

    def experiment(self, name: str) -> ExperimentRow | None:
        """One of them."""
        return next((row for row in self.experiments if row.experiment == name), None)

    def worker(self, name: str) -> WorkerRow | None:
        """One of them."""
        return next((row for row in self.workers if row.info.beat.worker == name), None)


_BADNESS: dict[str, float] = {"stalled": 5.0, "dead": 4.0, "unknown": 3.0, "draining": 2.0, "waiting": 1.0}
EXPERIMENT_SORTS: dict[str, Callable[[ExperimentRow], Value]] = {
    "newest": lambda row: -float(row.age_ms),
    "speed": lambda row: row.speed,
    "return": lambda row: row.last_return if row.last_return is not None else -math.inf,
    "steps": lambda row: float(row.steps),
    "flight": lambda row: row.full or 0.0,
    "state": lambda row: row.judged.state,
    "name": lambda row: row.experiment,
}
WORKER_SORTS: dict[str, Callable[[WorkerRow], Value]] = {
    "state": lambda row: _BADNESS.get(row.judged.state, 0.0),
    "speed": lambda row: row.info.beat.steps_per_second,
    "waits": lambda row: row.waits or 0.0,
    "ms/step": lambda row: row.info.beat.ms_per_step,
    "shards": lambda row: float(row.info.beat.shards),
    "host": lambda row: row.info.beat.host,
    "name": lambda row: row.info.beat.worker,
}
RISING = ("state", "name", "host")
"""Sorted from a to z by themselves; numbers from the largest."""


def sorted_experiments(
    rows: tuple[ExperimentRow, ...], sort: str, *, reverse: bool, containing: str
) -> list[ExperimentRow]:
    """Those whose name, state, pool or reason contains some text; those that are over last."""
    wanted = [
        row
        for row in rows
        if containing.lower() in f"{row.experiment} {row.judged.state} {row.pool} {row.judged.why}".lower()
    ]
    falling = (sort not in RISING) != reverse
    ordered = sorted(wanted, key=EXPERIMENT_SORTS[sort], reverse=falling)
    return sorted(ordered, key=lambda row: row.ended)


def sorted_workers(rows: tuple[WorkerRow, ...], sort: str, *, reverse: bool, containing: str) -> list[WorkerRow]:
    """Those whose name, host, state, experiments or reason contains some text."""
    wanted = [row for row in rows if not containing or containing.lower() in _words(row)]
    falling = (sort not in ("name", "host")) != reverse
    return sorted(wanted, key=WORKER_SORTS[sort], reverse=falling)


def _words(row: WorkerRow) -> str:
    beat = row.info.beat
    return f"{beat.worker} {beat.host} {row.judged.state} {' '.join(beat.experiments)} {row.judged.why}".lower()


def as_json(snapshot: Snapshot) -> dict[str, Any]:
    """A snapshot for programs."""
    return {
        "now_ms": snapshot.now_ms,
        "broker": {
            "version": snapshot.version,
            "uptime_s": snapshot.uptime_ms // 1000,
            "used_bytes": snapshot.used_bytes,
            "max_bytes": snapshot.max_bytes or None,
            "ops_per_second": snapshot.ops_per_second,
            "durability": snapshot.keeps,
        },
        "coordinator": snapshot.leader.in_short(snapshot.now_ms) if snapshot.leader is not None else None,
        "experiments": [_experiment_json(row, snapshot.now_ms) for row in snapshot.experiments],
        "pools": [
            {
                "pool": row.pool,
                "desired": row.wanted,
                "alive": row.alive,
                "states": dict(row.states),
                "steps_per_second": round(row.speed, 1),
                "deaths": dict(row.deaths),
            }
            for row in snapshot.pools
        ],
        "lines": [asdict(event) for event in snapshot.events],
    }


def _experiment_json(row: ExperimentRow, now_ms: int) -> dict[str, Any]:
    return {
        "experiment": row.experiment,
        "pool": row.pool,
        **row.judged.in_short(now_ms),
        "env_steps": row.steps,
        "steps_per_second": round(row.speed, 1),
        "return": row.last_return,
        "eval_return": row.eval_return,
        "policy": row.version,
        "lag_mean": row.latest.get("lag_mean"),
        "in_flight_batches": row.flow.entries if row.flow is not None else None,
        "in_flight_bytes": row.flow.bytes if row.flow is not None else None,
        "max_bytes": row.max_bytes or None,
        "max_batches": row.max_entries or None,
        "shards": row.shards,
        "leased": row.leased,
        "reassigned": row.moved,
        "reassigned_by": dict(row.moved_by),
        "trainer": row.trainer.in_short(now_ms) | {"subject": row.trainer.subject} if row.trainer else None,
        "trainer_cpu": row.cpu,
        "trainer_waits": row.trainer_waits,
        "workers_wait": row.workers_wait,
        "slow_shards": row.slow.as_json() if row.slow is not None else [],
    }
