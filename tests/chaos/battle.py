"""A whole battle: fleet, experiments, observer, siege, end and report.

It never prints; `__main__` and the tests do.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.fleet import Fleet, Size
from tests.chaos.ledger_env import OPAQUE
from tests.chaos.observer import Observer, read_flow
from tests.chaos.report import Report, deeds, recoveries
from tests.chaos.schedule import Order, schedule
from tests.chaos.siege import Siege, left_over
from tests.helpers import eventually

START_S = 60.0

FAST: dict[str, Any] = {}
SLOW: dict[str, Any] = {
    "env": {"id": OPAQUE, "num_envs": 4, "envs_per_shard": 2, "kwargs": {"step_s": 0.04}},
    "trainer": {"batch_steps": 16},
}
CARTPOLE: dict[str, Any] = {"env": {"kwargs": {"inner": "CartPole-v1", "step_s": 0.001}}}
EXPERIMENTS: dict[str, dict[str, Any]] = {"fast": FAST, "slow": SLOW, "cartpole": CARTPOLE}


@dataclass(frozen=True, slots=True)
class Plan:
    """A battle.

    Attributes:
        experiments: names of `EXPERIMENTS` to play at once.
    """

    order: Order
    size: Size = field(default_factory=Size)
    experiments: tuple[str, ...] = ("fast",)
    sections: Mapping[str, Any] = field(default_factory=dict)


def fight(plan: Plan, folder: Path) -> Report:
    """Fight it in `folder`, from start to end."""
    fleet = Fleet(folder, plan.size)
    may_forget = plan.size.durability != "strict" and plan.order.restarts > 0
    observer = Observer(fleet.server, fleet.home, folder / "kept", may_forget=may_forget).start()
    siege = Siege(fleet, observer, schedule(plan.order))
    try:
        for name in plan.experiments:
            observer.watch(fleet.submit(f"ledger-{name}", **EXPERIMENTS[name]))
        await_play(siege, observer)
        siege.run()
        siege.settle()
        observer.stop()
        observer.settle(fleet.server)
        flows = {name: read_flow(fleet.server.url, name)[0] for name in observer.watched}
    finally:
        fleet.end()
    return _report(plan, siege, observer, flows)


def await_play(siege: Siege, observer: Observer) -> None:
    """Wait until every experiment has been trained on."""

    def plays() -> bool:
        siege.step()
        return all(one.history.updates for one in observer.watched.values())

    eventually(plays, timeout_s=START_S, what="every experiment is trained")


def _report(plan: Plan, siege: Siege, observer: Observer, flows: dict[str, dict[str, int]]) -> Report:
    watched = observer.watched
    violations: list[str] = [*siege.problems, *left_over(siege.fleet)]
    for name, one in watched.items():
        violations += [f"{name}: {violation}" for violation in one.violations()]
    return Report(
        seed=plan.order.seed,
        seconds=plan.order.seconds,
        deeds=deeds(siege.hits),
        missed=len(siege.missed),
        recovery=recoveries(siege.hits, {name: one.history for name, one in watched.items()}),
        flows=flows,
        accepted=sum(len(one.history.batches) for one in watched.values()),
        claims=_sum(shard.claims for one in watched.values() for shard in one.history.shards.values()),
        seats=_sum(len(one.history.seats) for one in watched.values()),
        checkpoints=_sum(one.checker.checked for one in watched.values()),
        refused=_sum(flow.get("discarded", 0) for flow in flows.values()),
        unknown_steps=_sum(one.checker.unknown_steps for one in watched.values()),
        violations=violations,
    )


def _sum(numbers: "Sequence[int] | Any") -> int:
    return sum(numbers)
