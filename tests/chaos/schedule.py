"""Schedules: what is done to whom and when, drawn from a seed.

Pure: the same order gives the same schedule. Which process a `pick` means is decided when its moment has come.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

Deed = Literal["kill", "freeze", "latency", "reset", "cut", "deaf", "mute", "stale"]

ROLES = ("worker", "trainer", "coordinator", "supervisor", "host", "server")
WEIGHTS = {"worker": 10.0, "trainer": 4.0, "coordinator": 3.0, "supervisor": 1.5, "host": 1.0, "child": 5.0}
"""Children that play isolated shards are hit only where it is asked for."""
NETWORK: tuple[Deed, ...] = ("latency", "reset", "cut", "deaf", "mute", "stale")
DOWN_S = (0.02, 2.5)
"""How long a killed server stays away."""


@dataclass(frozen=True, slots=True)
class Action:
    """One attack.

    Attributes:
        at_s: since the start of the siege.
        deed: kill and freeze (SIGSTOP, SIGCONT after `lasts_s`) processes; the others hold for `lasts_s` on a link.
        role: whose process or link.
        pick: which of them, 0 to 1.
        lasts_s: how long it is kept up; of a killed server, until it is started again.
    """

    at_s: float
    deed: Deed
    role: str
    pick: float
    lasts_s: float


@dataclass(frozen=True, slots=True)
class Order:
    """What a siege shall hold.

    Attributes:
        kills: SIGKILLs of any role but the server; freezes: SIGSTOPs past the TTL; restarts: SIGKILLs of the server;
            network: attacks on links; server_freezes: SIGSTOPs of the server, of about as long.
        seconds: over which they are spread.
        ttl_s: what a freeze must outlast.
        roles: who may be hit.
    """

    seed: int
    seconds: float
    kills: int = 0
    freezes: int = 0
    restarts: int = 0
    network: int = 0
    server_freezes: int = 0
    ttl_s: float = 1.0
    roles: tuple[str, ...] = ROLES


def schedule(order: Order) -> list[Action]:
    """All actions of an order, in the order of their moments."""
    rng = np.random.default_rng(order.seed)
    roles = [role for role in order.roles if role in WEIGHTS]
    actions: list[Action] = []
    for _ in range(order.kills if roles else 0):
        actions.append(Action(rng.uniform(0, order.seconds), "kill", _role(rng, roles), rng.random(), 0.0))
    for _ in range(order.freezes if roles else 0):
        lasts_s = order.ttl_s * rng.uniform(1.3, 2.5)
        actions.append(Action(rng.uniform(0, order.seconds), "freeze", _role(rng, roles), rng.random(), lasts_s))
    if "server" in order.roles:
        actions += _restarts(rng, order)
    for _ in range(order.network):
        deed = NETWORK[int(rng.integers(len(NETWORK)))]
        lasts_s = order.ttl_s * rng.uniform(0.3, 3.0)
        actions.append(Action(rng.uniform(0, order.seconds), deed, _role(rng, roles), rng.random(), lasts_s))
    for _ in range(order.server_freezes):
        lasts_s = order.ttl_s * rng.uniform(0.5, 2.5)
        actions.append(Action(rng.uniform(0, order.seconds), "freeze", "server", 0.0, lasts_s))
    return sorted(actions, key=lambda action: action.at_s)


def _restarts(rng: np.random.Generator, order: Order) -> list[Action]:
    """Spread out, so that the fleet works in between."""
    slot_s = order.seconds / max(1, order.restarts)
    made = []
    for number in range(order.restarts):
        at_s = (number + rng.uniform(0.1, 0.9)) * slot_s
        made.append(Action(at_s, "kill", "server", 0.0, rng.uniform(*DOWN_S)))
    return made


def _role(rng: np.random.Generator, roles: Sequence[str]) -> str:
    weights = np.array([WEIGHTS[role] for role in roles])
    return roles[int(rng.choice(len(roles), p=weights / weights.sum()))]
