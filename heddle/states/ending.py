"""Endings: what became of an experiment that is over, from what the broker and its log still hold.

It never changes anything; a line that the log has lost is missing here.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from heddle.broker import Broker
from heddle.broker.experience_types import Flow
from heddle.broker.lines import Event
from heddle.broker.records import Status
from heddle.broker.types import ShardState
from heddle.states.judgement import span
from heddle.states.read import PARTITION

RESTARTS = 200
"""Most lines of the log that are looked for."""
FAILED_SHARDS = 20
"""Most shards whose failures are asked for."""
_ENDED = re.compile(r"^worker \S+ (ended with|gave|left)|^(ended with|gave )|trainer \S* ?ended")


@dataclass(frozen=True, slots=True)
class Ending:
    """How an experiment ended.

    Attributes:
        status: as it was written down.
        flow: what became of its experience.
        env_steps, wall_s: trained on, in how long; those of a run that it continued included.
        trainer_cpu_s: processor time of its last trainer; None when nobody measured it.
        returned, eval_return: the last ones; None without any.
        seats: how often a trainer took the seat; followed: how those ended that another one followed.
        moved: how often a shard was taken from an owner.
        restarts: why workers and trainers ended while it ran, oldest first.
        failures: what its environments did, with shard, worker and line, newest first.
        checkpoint: the best one, else the last; "" for none.
        quarantined: shards that nobody played at its end, in one line each.
        unplayed: their numbers; shards: how many it has.
    """

    status: Status
    flow: Flow
    env_steps: int
    wall_s: float
    trainer_cpu_s: float | None
    returned: float | None
    eval_return: float | None
    seats: int
    moved: int
    restarts: tuple[str, ...]
    failures: tuple[str, ...]
    checkpoint: str
    quarantined: tuple[str, ...] = ()
    unplayed: tuple[int, ...] = ()
    shards: int = 0
    followed: Mapping[str, int] = field(default_factory=dict)

    @property
    def speed(self) -> float:
        """Steps per second of the whole run."""
        return self.env_steps / self.wall_s if self.wall_s > 0 else 0.0


def ending_of(broker: Broker, experiment: str) -> Ending:
    """How an experiment ended, or is ending. Raises Gone."""
    glance = broker.overview.experiments({experiment: None}).get(experiment)
    status = glance.status if glance is not None else broker.experiments.status(experiment)
    latest = broker.events.metrics_last(experiment)
    result = {name: value for name, value in status.result.items() if value is not None}
    events = broker.events.find(lambda event: _tells_an_end(event, status), count=RESTARTS, prints=False)
    shards = broker.shards.shards(experiment, PARTITION)
    unplayed = [shard for shard in shards if shard.state == "quarantined"]
    return Ending(
        status=status,
        flow=broker.experience.flow(experiment, PARTITION),
        env_steps=int(result.get("env_steps", latest.get("env_steps", 0))),
        wall_s=float(result.get("wall_s", latest.get("wall_seconds", 0.0))),
        trainer_cpu_s=latest.get("cpu_seconds"),
        returned=_number(result.get("return", latest.get("return"))),
        eval_return=_number(result.get("eval_return", latest.get("eval_return"))),
        seats=glance.seats if glance is not None else 0,
        moved=glance.totals["reaped"] + glance.totals["vouched"] if glance is not None else 0,
        restarts=tuple(_short(event) for event in events),
        failures=tuple(_failures(broker, experiment, shards)),
        checkpoint=str(result.get("best") or result.get("checkpoint") or ""),
        quarantined=tuple(_unplayed(shard, status) for shard in unplayed),
        unplayed=tuple(shard.shard for shard in unplayed),
        shards=len(shards),
        followed=glance.followed if glance is not None else {},
    )


def _tells_an_end(event: Event, status: Status) -> bool:
    until_ms = status.ended_ms or event.time_ms
    return (
        event.role in ("supervisor", "trainer")
        and event.level in ("warning", "error")
        and status.created_ms <= event.time_ms <= until_ms
        and event.experiment in (None, status.experiment)
        and _ENDED.search(event.message) is not None
    )


def _short(event: Event) -> str:
    """Without the last lines of what it printed."""
    said = event.message.partition("; last lines:")[0].partition("; it printed")[0]
    return f"trainer {said}" if said.startswith(("ended", "gave")) else said


def _unplayed(shard: ShardState, status: Status) -> str:
    """Since when nobody played a quarantined shard, and why."""
    since_ms, until_ms = max(shard.since_ms, status.started_ms), status.ended_ms
    lasted = f" for the last {span(until_ms - since_ms)}" if 0 < since_ms < until_ms else ""
    return f"shard {shard.shard}{lasted}: {shard.last_error or 'its workers died while stepping it'}"


def _failures(broker: Broker, experiment: str, shards: Sequence[ShardState]) -> list[str]:
    """The newest failure of each shard that has one."""
    found = []
    for shard in [one for one in shards if one.last_error or one.deaths][:FAILED_SHARDS]:
        kept = broker.shards.failures(experiment, PARTITION, shard.shard)
        for failure in kept[:1]:
            where = f"environment {failure.env}, " if failure.env >= 0 else ""
            doing = "the policy's act" if failure.doing == "act" else failure.doing
            seed = "" if failure.seed is None else f", seed {failure.seed}"
            place = f", episode {failure.episode}, step {failure.step}{seed}" if failure.episode else ""
            version = f", policy version {failure.version}" if failure.version else ""
            told = f"shard {experiment}/{shard.shard}, {where}in {doing}{place}{version}: {failure.what}"
            found.append((failure.time_ms, f"{told} (worker {failure.worker})"))
        if not kept and shard.last_error:
            found.append((shard.since_ms, f"shard {experiment}/{shard.shard}: {shard.last_error}"))
    return [told for _, told in sorted(found, reverse=True)]


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
