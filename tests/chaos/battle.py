"""A whole battle: fleet, experiments, observer, siege, end and report.

It never prints; `__main__` and the tests do.
"""

import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from heddle.broker.server import LocalServer
from heddle.plane import root_folder
from tests.chaos.fleet import Fleet, Size, names_of, serve
from tests.chaos.ledger_env import OPAQUE
from tests.chaos.observer import Observer, read_flow
from tests.chaos.proxy import Proxy
from tests.chaos.report import Report, deeds, recoveries
from tests.chaos.schedule import Action, Order, schedule
from tests.chaos.siege import Siege, left_over
from tests.helpers import eventually

START_S = 60.0

FAST: dict[str, Any] = {}
SLOW: dict[str, Any] = {
    "env": {"id": OPAQUE, "num_envs": 4, "envs_per_shard": 2, "kwargs": {"step_s": 0.04}},
    "trainer": {"batch_steps": 16},
}
CARTPOLE: dict[str, Any] = {"env": {"kwargs": {"inner": "CartPole-v1", "step_s": 0.001}}}
SHARED: dict[str, Any] = {"rollout": {"plane": "shm"}}
SYNC: dict[str, Any] = {"rollout": {"sync": True, "max_policy_lag": None}, "trainer": {"sync_timeout": 5.0}}
EVALUATED: dict[str, Any] = {**CARTPOLE, "eval": {"num_envs": 2, "episodes": 2, "every_updates": 5}}
ISOLATED: dict[str, Any] = {"env": {"isolation": "process"}}
EXPERIMENTS: dict[str, dict[str, Any]] = {
    "fast": FAST,
    "slow": SLOW,
    "cartpole": CARTPOLE,
    "shared": SHARED,
    "sync": SYNC,
    "evaluated": EVALUATED,
    "isolated": ISOLATED,
}


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
    server = serve(folder, plan.size)
    proxy = _proxy(plan, server)
    witness = _witness(plan)
    fleet = Fleet(folder, plan.size, server=server, urls=proxy.urls() if proxy else None, witness=witness)
    may_forget = plan.size.durability != "strict" and plan.order.restarts > 0
    kept = folder / "kept"
    observer = Observer(fleet.server, fleet.home, kept, may_forget=may_forget, witness=witness).start()
    fleet.on_dead_server = observer.server_was_killed
    siege = Siege(fleet, observer, schedule(plan.order), on_link=partial(_hurt, proxy) if proxy else None)
    try:
        for name in plan.experiments:
            sections = EXPERIMENTS[name]
            begins_anew = sections.get("env", {}).get("id") == OPAQUE or "child" in plan.order.roles
            observer.watch(fleet.submit(f"ledger-{name}", **sections), continuous=not begins_anew)
        await_play(siege, observer)
        siege.run()
        siege.settle()
        siege.sweep()
        observer.stop()
        observer.settle(fleet.server)
        flows = {name: read_flow(fleet.server.url, name)[0] for name in observer.watched}
    finally:
        fleet.end()
        if proxy is not None:
            proxy.stop()
        if witness is not None:
            shutil.rmtree(witness)
    return _report(plan, siege, observer, flows)


def _witness(plan: Plan) -> Path | None:
    """Where batches in shared memory are kept for the observer."""
    if not any(EXPERIMENTS[name].get("rollout", {}).get("plane") == "shm" for name in plan.experiments):
        return None
    return Path(tempfile.mkdtemp(prefix="heddle-chaos-", dir=root_folder().parent))


def _proxy(plan: Plan, server: LocalServer) -> Proxy | None:
    """A link for every member, where the plan attacks links."""
    socket_file = server.settings.address.socket_path
    if not plan.order.network or socket_file is None:
        return None
    return Proxy(socket_file, names_of(plan.size), seed=plan.order.seed)


def _hurt(proxy: Proxy, action: Action) -> Callable[[], None]:
    """Attack the link of one member of the role; workers share their supervisor's, trainers their host's."""
    role = {"worker": "supervisor", "trainer": "host"}.get(action.role, action.role)
    names = [name for name in proxy.links if name.startswith(role)]
    return proxy.hurt(names[min(int(action.pick * len(names)), len(names) - 1)], action.deed)


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
        claims=sum(shard.claims for one in watched.values() for shard in one.history.shards.values()),
        seats=sum(len(one.history.seats) for one in watched.values()),
        checkpoints=sum(one.checker.checked for one in watched.values()),
        refused=sum(flow.get("discarded", 0) for flow in flows.values()),
        most_files=siege.most_files,
        unknown_steps=sum(one.checker.unknown_steps for one in watched.values()),
        violations=violations,
    )
