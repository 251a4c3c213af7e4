"""Rows made of what was looked at.

It never reads the broker or a clock.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from heddle.broker.fleet import Fleet
from heddle.broker.overview import PoolGlance
from heddle.broker.records import Status
from heddle.cli.top.rows import ExperimentRow, PoolRow, WorkerRow
from heddle.states.experiments import judge_ended
from heddle.states.facts import Sight
from heddle.states.workers import judge_worker


def wait_shares(latest: Mapping[str, float], workers: int) -> tuple[float | None, float | None]:
    """Share of the last update's time in which the trainer, and its workers on average, waited."""
    if not {"wait_seconds", "update_seconds"} <= latest.keys():
        return None, None
    waited, whole = latest["wait_seconds"], latest["wait_seconds"] + latest["update_seconds"]
    if whole <= 0:
        return None, None
    theirs = latest.get("worker_wait_seconds", 0.0) / (whole * max(1, workers))
    return min(1.0, waited / whole), min(1.0, theirs)


def cpu_share(points: Sequence[tuple[int, Mapping[str, float]]]) -> float | None:
    """Share of a core that a trainer used between the first and the last of these updates.

    None where that was not measured, or another process trained meanwhile: it counts from 0.
    """
    measured = [(v["wall_seconds"], v["cpu_seconds"]) for _, v in points if {"wall_seconds", "cpu_seconds"} <= v.keys()]
    if len(measured) < 2 or any(later[1] < one[1] for one, later in pairwise(measured)):
        return None
    lasted = measured[-1][0] - measured[0][0]
    return (measured[-1][1] - measured[0][1]) / lasted if lasted > 0 else None


def judged_workers(fleet: Fleet, seen: Sight) -> dict[str, list[WorkerRow]]:
    """The workers of each pool, as far as they were looked at, with how they really are."""
    return {
        name: [WorkerRow(info, judge_worker(info, seen, tuple(fleet.pools[name].hosts))) for info in some.values()]
        for name, some in fleet.workers.items()
    }


def pool_row(name: str, pool: PoolGlance, workers: list[WorkerRow]) -> PoolRow:
    """A pool in numbers."""
    states: dict[str, int] = {}
    for row in workers:
        states[row.judged.state] = states.get(row.judged.state, 0) + 1
    working = [row for row in workers if row.judged.state in ("alive", "waiting", "draining")]
    speed = sum(row.info.beat.steps_per_second for row in working)
    return PoolRow(name, pool.wanted, states, len(pool.seen), speed, pool.hosts, pool.deaths)


def ended_row(status: Status, now_ms: int) -> ExperimentRow:
    """An experiment that is over, by what it left."""
    steps = status.result.get("env_steps")
    return ExperimentRow(
        experiment=status.experiment,
        pool=status.pool,
        judged=judge_ended(status),
        ended=True,
        steps=int(steps) if isinstance(steps, int | float) else 0,
        version=status.policy,
        age_ms=now_ms - status.created_ms,
        result=status.result,
    )
