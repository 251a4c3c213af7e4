"""Themes: what two thirds of the seeds are about, so that rare meetings of faults are not left to chance alone.

A theme says how often each kind of fault comes, where traps are laid, and what the fleet is like. Pure data.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PERMANENT = ("drift", "jitter", "broken", "deadly", "memory", "poison", "storm", "shy")
"""Kinds of faults that are no events: how things are from the start on."""
MOST = {"kill": 6, "pause": 4, "weather": 3, "term": 3, "command": 3, "trap": 6, "stop": 1}
"""So many events of a kind at most; of others two."""
WAYS = ("freeze", "freeze", "late", "again", "unheard", "deaf", "die", "forget", "outlived", "rewind", "undo")
"""What befalls a process in a trap, see `traps.py`."""
OF_WORKERS = ("append", "claim", "release", "renew")
OF_TRAINERS = ("ack", "dead", "loading", "policy_publish", "roll_back", "seat_claim", "seat_renew", "xreadgroup")
OF_LEADERS = ("create_shards", "leader_claim", "leader_renew", "reap", "set_active", "set_status")
OF_ENDS = ("finish", "release", "seat_release", "set_command", "set_command", "set_command", "set_status", "xreadgroup")


SELDOM = {"shy": 0.0}
"""Chances of permanent kinds in a theme that does not say otherwise, where they are not 1 in 20."""


@dataclass(frozen=True, slots=True)
class Theme:
    """What a seed is about.

    Attributes:
        chances: of kinds of faults, where they are not the usual ones.
        rest: chance of every other kind that is an event.
        traps: commands that traps are laid at. ways: what happens in them.
        at_once: share of traps, and of stops, that are there from the beginning.
        fleet: fields of the plan, each with what it is drawn from.
    """

    traps: tuple[str, ...]
    chances: Mapping[str, float] = field(default_factory=dict)
    rest: float = 0.08
    at_once: float = 0.1
    fleet: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    ways: tuple[str, ...] = WAYS

    def chance(self, kind: str) -> float:
        """How often a seed has that kind of fault."""
        return self.chances.get(kind, SELDOM.get(kind, 0.05) if kind in PERMANENT else self.rest)


ANYTHING = Theme(
    traps=(*OF_WORKERS, *OF_TRAINERS, *OF_LEADERS, *OF_ENDS, "group_tidy"),
    chances={"trap": 0.5, "stop": 0.08, **dict.fromkeys(PERMANENT, 0.2)},
    rest=0.35,
)
THEMES = {
    "clocks": Theme(  # and no other loss: where all is lost and the clock is back, nothing tells what is new
        traps=("claim",),
        chances={"trap": 1.0, "kill": 1.0, "pause": 0.5},
        rest=0.0,
        fleet={"shards": (1,), "evals": (0,), "every": (1, 2), "ack": ("checkpoint",), "steps": (100_000,)},
        ways=("relive",),
    ),
    "ends": Theme(
        traps=OF_ENDS,
        chances={"trap": 1.0, "stop": 0.5, "storm": 0.3, "server kill": 0.4, "kill": 0.3, "backup": 0.2},
        at_once=0.6,
        fleet={"steps": (40,)},
        ways=("die", "forget", "forget", "forget", "freeze", "late", "stray", "stray", "stray", "undo"),
    ),
    "leaders": Theme(
        traps=(*OF_LEADERS, "xgroup"),
        chances={
            "trap": 1.0,
            "stop": 0.3,
            "server kill": 0.25,
            "kill": 0.25,
            "pause": 0.25,
            "full": 0.2,
            "groups": 0.2,
        },
        at_once=0.5,
        fleet={"coordinators": (2,), "steps": (40, 100_000), "forced": (False, True)},
        ways=(*WAYS, "ages", "ages", "bare"),
    ),
    "leases": Theme(
        traps=(*OF_WORKERS, "reap"),
        chances={"trap": 1.0, "pause": 0.7, "kill": 0.4, "cut": 0.3, "server freeze": 0.3, "jump": 0.2},
        fleet={"workers": (2, 3), "vouched": (0.0, 0.5), "steps": (100_000,)},
    ),
    "losses": Theme(
        traps=("ack", "append", "append", "append", "claim", "seat_claim", "xreadgroup"),
        chances={"trap": 1.0, "server kill": 0.7, "backup": 0.4, "kill": 0.4, "weather": 0.3},
        fleet={"every": (2, 3), "ack": ("checkpoint",), "steps": (100_000,), "entries": (8, 100)},
        ways=("forget", "late", "stray", "undo", "undo", "unheard"),
    ),
    "memory": Theme(
        traps=("ack", "append", "seat_claim", "seat_renew", "xgroup", "xreadgroup"),
        chances={"trap": 0.7, "memory": 1.0, "kill": 1.0, "groups": 0.4, "term": 0.3},
        rest=0.0,
        fleet={"vouched": (0.0, 0.5), "steps": (100_000,)},
        ways=("deaf", "die", "freeze", "unheard"),
    ),
    "poison": Theme(
        traps=("dead", "dead", "loading", "ack"),
        chances={"trap": 1.0, "poison": 1.0, "pause": 0.2},
        fleet={"trainers": (2,), "ack": ("checkpoint",), "steps": (100_000,)},
        ways=("freeze", "freeze", "late", "again"),
    ),
    "lone": Theme(
        traps=("append", "append", "append", "xgroup", "seat_renew", "xreadgroup", "checkpoint"),
        chances={"trap": 1.0, "groups": 0.5, "pause": 0.3, "shy": 0.3, "jump": 0.2, "kill": 0.2},
        at_once=0.3,
        fleet={"workers": (1, 1, 2), "trainers": (1,), "coordinators": (1, 2), "vouched": (0.0,), "steps": (100_000,)},
        ways=("bare", "deaf", "deaf", "freeze", "outlived", "outlived"),
    ),
    "reaps": Theme(
        traps=("reap",),
        chances={"trap": 1.0, "pause": 1.0, "kill": 0.5, "cut": 0.3},
        rest=0.0,
        fleet={"workers": (2, 3), "vouched": (0.0,), "steps": (100_000,)},
        ways=("again", "again", "freeze", "late"),
    ),
    "removals": Theme(
        traps=("append", "claim", "create_shards", "set_active", "set_active", "set_status", "xgroup"),
        chances={"trap": 1.0, "kill": 0.2},
        rest=0.0,
        at_once=0.7,
        fleet={"forced": (True,)},
        ways=("ages",),
    ),
    "room": Theme(
        traps=("append", "append", "append", "claim", "renew", "seat_renew"),
        chances={"trap": 1.0, "pause": 0.7, "kill": 0.7, "full": 0.3, "term": 0.7},
        fleet={
            "size": (1024,),
            "entries": (2, 3, 100),
            "snapshots": (1,),
            "every": (1,),
            "workers": (2, 3),
            "steps": (100_000,),
        },
        ways=("die", "die", "freeze", "late", "unheard"),
    ),
    "seats": Theme(
        traps=(*OF_TRAINERS, "checkpoint", "checkpoint"),
        chances={"trap": 1.0, "pause": 0.3, "server kill": 0.3, "backup": 0.3, "kill": 0.2, "term": 0.2},
        fleet={"trainers": (2,), "ack": ("checkpoint",), "steps": (100_000,), "write_s": (0.1,)},
        ways=("freeze", "late", "rewind", "rewind", "undo"),
    ),
}
"""By name."""
MORE = tuple(sorted(THEMES.keys() - {"room"}))
"""All about as often."""
