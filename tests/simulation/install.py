"""Where the shipped modules meet the simulation: names in them that stand for time, threads, chance, files and play.

It never replaces a decision. Each name must be there: a module that changed makes the installation fail, not the
simulation weaker.
"""

import importlib
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from heddle.broker import Broker
from heddle.clock import SystemClock
from heddle.spec import spec_from_json
from tests.simulation import play
from tests.simulation.disk import Disk, NoCurveFile
from tests.simulation.hub import Hub
from tests.simulation.news import SimNews
from tests.simulation.threads import Threading

MODULES = (
    "heddle.broker.shards",
    "heddle.broker.experience",
    "heddle.broker.experiments",
    "heddle.broker.policies",
    "heddle.broker.pools",
    "heddle.broker.events",
    "heddle.broker.seats",
    "heddle.broker.coordinators",
    "heddle.coord.coordinator",
    "heddle.producers.worker",
    "heddle.consumers.trainer",
)
FOLLOW_EVERY_S = 0.15
NO_FOLDER = Path("/nowhere/heddle")
"""What lies in this machine's shared memory is no part of a world."""
LEADER_TTL_MS = 1_000
"""As short as the other leases, so that a leader that stands still is replaced."""
CHUNK_BYTES = 64
"""A few to each version."""
CHUNK_TTL_MS = 1_500
_parsed = lru_cache(maxsize=64)(spec_from_json)


class Installed:
    """Replaces names, and puts them back."""

    def __init__(self) -> None:
        self._before: list[tuple[object, str, Any]] = []

    def put(self, owner: object, name: str, value: Any) -> None:
        """Raises AttributeError when there is no such name."""
        self._before.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    def take_out(self) -> None:
        for owner, name, value in reversed(self._before):
            setattr(owner, name, value)


@contextmanager
def installed(
    hub: Hub, nature: play.Nature, disk: Disk, connect: Callable[[], Broker], *, large: bool = False
) -> Iterator[None]:
    """Within it the shipped code runs in the simulation; where `large`, its weights and batches count as large."""
    for name in MODULES:
        importlib.import_module(name)
    level = logging.root.manager.disable
    swap = Installed()
    try:
        _time_and_threads(swap, hub)
        _chance(swap, hub)
        _play(swap, nature)
        module = sys.modules
        swap.put(module["heddle.consumers.saver"], "files", disk)
        swap.put(module["heddle.consumers.trainer"], "highest_epoch", disk.highest_epoch)
        swap.put(module["heddle.consumers.building"], "CurveFile", NoCurveFile)
        swap.put(module["heddle.coord.coordinator"], "open_broker", lambda url, role: connect())
        swap.put(module["heddle.broker.events"], "NewsListener", partial(SimNews, hub))
        _hurry(swap)
        if large:
            _enlarge(swap)
        for name in ("heddle.producers.heartbeat", "heddle.consumers.report"):  # the real host's differ each time
            swap.put(module[name], "cpu_seconds", lambda: 1.0)
            swap.put(module[name], "resident_bytes", lambda: 1 << 20)
        swap.put(module["heddle.broker.plane_sweep"], "root_folder", lambda: NO_FOLDER)
        for name in ("heddle.coord.admit", "heddle.producers.stage", "heddle.consumers.setting"):
            swap.put(module[name], "spec_from_json", _parsed)
        logging.disable(logging.CRITICAL)
        yield
    finally:
        logging.disable(level)
        swap.take_out()


def _time_and_threads(swap: Installed, hub: Hub) -> None:
    def monotonic(_: object) -> float:
        return hub.task().process.monotonic()

    def sleep(_: object, seconds: float) -> None:
        hub.wait(seconds)

    swap.put(SystemClock, "monotonic", monotonic)
    swap.put(SystemClock, "wall", monotonic)
    swap.put(SystemClock, "sleep", sleep)
    simulated = Threading(hub)
    for module in _threaded(len(sys.modules)):
        swap.put(module, "threading", simulated)


@lru_cache(maxsize=2)
def _threaded(_loaded: int) -> list[ModuleType]:
    """The loaded modules of Heddle that have `import threading`; looked for anew when there are others."""
    found = [module for name, module in sys.modules.items() if name.startswith("heddle.")]
    return [module for module in found if getattr(module, "threading", None) is threading]


def _chance(swap: Installed, hub: Hub) -> None:
    made = np.random.default_rng

    def default_rng(seed: Any = None) -> np.random.Generator:
        return made(hub.rng.getrandbits(64) if seed is None else seed)

    swap.put(np.random, "default_rng", default_rng)
    trainers = sys.modules["heddle.consumers.trainer"]
    swap.put(trainers, "trainer_id", lambda: f"trainer-{hub.rng.getrandbits(40):x}")


def _hurry(swap: Installed) -> None:
    """What is tidied up after minutes is tidied up after a second, so that it happens in a short life."""
    module = sys.modules
    swap.put(module["heddle.coord.leader"], "TIDY_EVERY_MS", 1_000)
    for owner in (module["heddle.broker.experience"].Experience.tidy, module["heddle.broker.pools"].Pools.tidy_tickets):
        swap.put(owner, "__kwdefaults__", {**owner.__kwdefaults__, "idle_ms": 1_500})
    swap.put(module["heddle.broker.queue"].tidy, "__defaults__", (1_500,))
    leaders = module["heddle.broker.coordinators"].Coordinators
    for owner in (leaders.claim_leader, leaders.renew_leader):
        swap.put(owner, "__kwdefaults__", {**owner.__kwdefaults__, "ttl_ms": LEADER_TTL_MS})
    swap.put(module["heddle.coord.coordinator"], "LEADER_TTL_MS", LEADER_TTL_MS)
    swap.put(module["heddle.coord.coordinator"], "FOLLOW_EVERY_S", FOLLOW_EVERY_S)


def _enlarge(swap: Installed) -> None:
    """Weights go in chunks, some of which run out of time, and by the courier; batches are fetched ahead."""
    module = sys.modules
    policies = module["heddle.broker.policies"]
    made = policies.Policies.__init__
    swap.put(made, "__kwdefaults__", {**made.__kwdefaults__, "inline_bytes": 0, "chunk_bytes": CHUNK_BYTES})
    swap.put(policies, "CHUNK_TTL_MS", CHUNK_TTL_MS)
    swap.put(module["heddle.consumers.publisher"], "LARGE_BYTES", 0)
    swap.put(module["heddle.consumers.prefetch"], "LARGE_BYTES", 0)


def _play(swap: Installed, nature: play.Nature) -> None:
    module = sys.modules
    stage, packing = module["heddle.producers.stage"], module["heddle.producers.packing"]
    swap.put(stage, "Player", partial(play.SimPlayer, nature))
    for one in (stage, module["heddle.consumers.setting"]):
        swap.put(one, "make_policy", lambda *args, **options: play.SimPolicy())
    swap.put(stage, "hold_torch_to_one_thread", lambda: None)
    swap.put(packing, "encode", play.encode)
    swap.put(packing, "encode_like", lambda layout, segments, *_: None)  # no batch is like any other
    swap.put(module["heddle.consumers.opening"], "decode_stacks", play.decode)
