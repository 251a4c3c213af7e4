"""The plan of a seed: what is run, which faults it meets and when. Pure: the same seed, the same plan.

It never runs anything; a plan may be changed (a fault taken out) and run again.
"""

import random
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from typing import Any

from heddle.spec import ExperimentSpec, load_spec
from tests.simulation.themes import ANYTHING, MORE, MOST, PERMANENT, THEMES, Theme

FAULTS = (
    "kill",
    "pause",
    "term",
    "cut",
    "weather",
    "server kill",
    "server freeze",
    "backup",
    "scripts",
    "groups",
    "full",
    "disk",
    "jump",
    "command",
    "trap",
    "stop",
    "drift",
    "jitter",
    "broken",
    "deadly",
    "memory",
    "poison",
    "storm",
    "shy",
)
"""The menu; each seed takes some of it. PERMANENT ones are how things are from the start on, the others events."""
LARGE_SHARE = 0.25
"""Of the plans without a barrier."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One event.

    Attributes:
        at_s: when. kind: of the menu. lasts_s: until it is over, where it is.
        draw: chance for what is left to choose, such as whom it meets.
        what: of a trap: its command and its way.
    """

    at_s: float
    kind: str
    lasts_s: float = 0.0
    draw: float = 0.0
    what: str = ""

    def __str__(self) -> str:
        return f"{self.at_s:.2f}s {self.kind} {self.what} {self.lasts_s:.2f}s ({self.draw:.3f})"


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run.

    Attributes:
        seed: of all chance while it runs. theme: what it is about, "" for anything.
        workers, coordinators, trainers: processes of each role.
        shards, evals: train and eval shards. sync, ack, every, entries, size, steps, snapshots: as the spec has them.
        permanent: faults that are always on. faults: the others, by time. calm_s: when all is healed.
        forced: at the end it is removed while it runs, not stopped.
        vouched: dead workers are reported by whoever started them. write_s: what a checkpoint takes at most, twice.
        large: weights go in chunks, by the courier, and batches are fetched ahead: no barrier, and nothing is small.
    """

    seed: int
    workers: int
    coordinators: int
    trainers: int
    shards: int
    evals: int
    sync: bool
    ack: str
    every: int
    entries: int
    size: int
    steps: int
    snapshots: int
    permanent: frozenset[str] = frozenset()
    faults: tuple[Fault, ...] = ()
    calm_s: float = 6.0
    vouched: float = 0.5
    forced: bool = False
    theme: str = ""
    write_s: float = 0.01
    large: bool = False

    def without(self, index: int) -> "Plan":
        """The same with one fault less."""
        return replace(self, faults=self.faults[:index] + self.faults[index + 1 :])

    def spec(self) -> ExperimentSpec:
        """The experiment."""
        return _spec(
            self.shards, self.evals, self.sync, self.ack, self.every, self.entries, self.size, self.steps,
            self.snapshots, "broken" in self.permanent or "deadly" in self.permanent,
        )  # fmt: skip


def plan_of(seed: int) -> Plan:
    """The plan of a seed: a third are about anything, the others about one part of the protocol."""
    rng = random.Random(f"plan {seed}")
    about = _theme(rng)
    theme = THEMES.get(about, ANYTHING)
    shards, sync, every = rng.choice((1, 2, 2, 3)), rng.random() < 0.4, rng.choice((1, 1, 2, 3))
    chosen = frozenset(kind for kind in FAULTS if rng.random() < theme.chance(kind))
    if "shy" in chosen:  # somebody else must be there
        chosen -= {"broken", "deadly", "memory"}
    if "memory" in chosen:  # what was set aside for its poison would fill it for good
        chosen -= {"poison"}
    least = shards * every if sync else 2 * every
    plan = Plan(
        seed=seed,
        workers=rng.choice((1, 2, 2, 3)),
        coordinators=rng.choice((1, 1, 2)),
        trainers=rng.choice((1, 1, 2)),
        shards=shards,
        evals=rng.choice((0, 0, 1)),
        sync=sync,
        ack="checkpoint" if rng.random() < 0.8 else "update",
        every=every,
        entries=least + rng.choice((0, 1, 2, 8, 100)),
        size=rng.choice((1024, 2048, 1 << 20)),
        steps=rng.choice((40, 100_000, 100_000)),
        snapshots=rng.choice((0, 1, 1, 3)),
        permanent=chosen & frozenset(PERMANENT),
        calm_s=rng.uniform(3.0, 6.0),
        vouched=rng.choice((0.0, 0.5, 1.0)),
        forced=rng.random() < 0.2,
        theme=about,
    )
    plan = replace(plan, **{name: rng.choice(values) for name, values in theme.fleet.items()})
    if "shy" in chosen:
        plan = replace(plan, workers=max(2, plan.workers))
    least = plan.shards * plan.every if plan.sync else 2 * plan.every
    plan = replace(plan, entries=max(plan.entries, least), large=not plan.sync and _is_large(seed))
    return replace(plan, faults=_faults(rng, plan, sorted(chosen - frozenset(PERMANENT)), theme))


@cache
def theme_of(seed: int) -> str:
    """What the plan of a seed is about, without making it."""
    return _theme(random.Random(f"plan {seed}"))


def _is_large(seed: int) -> bool:
    """By chance of its own, so that all else of a plan is what it was."""
    return random.Random(f"large {seed}").random() < LARGE_SHARE


def _theme(rng: random.Random) -> str:
    share = rng.random()
    if share < 0.6:
        return rng.choice(MORE)
    return "room" if share < 0.68 else ""


def _faults(rng: random.Random, plan: Plan, kinds: list[str], theme: Theme) -> tuple[Fault, ...]:
    found = []
    for kind in kinds:
        for _ in range(rng.randint(1, MOST.get(kind, 2))):
            at_s, lasts_s, draw = rng.uniform(0.3, plan.calm_s), _lasts(rng, kind), rng.random()
            if kind == "trap":
                at_s = 0.0 if rng.random() < theme.at_once else at_s
                found.append(Fault(at_s, kind, lasts_s, draw, f"{rng.choice(theme.traps)} {rng.choice(theme.ways)}"))
            else:
                early = kind == "stop" and rng.random() < theme.at_once
                found.append(Fault(rng.uniform(0.05, 1.0) if early else at_s, kind, lasts_s, draw))
    return tuple(sorted(found, key=lambda fault: fault.at_s))


def _lasts(rng: random.Random, kind: str) -> float:
    """Short, about as long as a lease, or longer than any TTL."""
    if kind in ("pause", "cut", "server freeze", "server kill", "trap"):
        return rng.choice((rng.uniform(0.05, 0.6), rng.uniform(0.9, 1.4), rng.uniform(0.6, 3.5)))
    return rng.uniform(0.2, 2.0)


@lru_cache(maxsize=1024)
def _spec(
    shards: int,
    evals: int,
    sync: bool,
    ack: str,
    every: int,
    entries: int,
    size: int,
    steps: int,
    snapshots: int,
    poisoned: bool,
) -> ExperimentSpec:
    raw: dict[str, Any] = {
        "experiment": {"name": "sim"},
        "env": {"id": "CartPole-v1", "num_envs": shards, "envs_per_shard": 1},
        "rollout": {"steps": 2, "sync": sync},
        "trainer": {"learner": "simulation.learn:Nothing", "ack": ack, "checkpoint_every": every, "sync_timeout": 3.0},
        "budget": {"env_steps": steps},
        "faults": {"lease_ttl": 1.0, "snapshot_every": snapshots, "barren_deaths": 3 if poisoned else 1000},
        "limits": {"max_entries": entries, "max_bytes": size, "batch_bytes": 1024},
    }
    if not sync:
        raw["trainer"]["batch_steps"] = 4
        raw["rollout"]["max_policy_lag"] = 3
    if evals:
        raw["eval"] = {"num_envs": evals, "episodes": evals, "every_updates": 4}
    return load_spec(raw).spec


def with_faults(plan: Plan, faults: tuple[Fault, ...]) -> Plan:
    """The same with other events."""
    return replace(plan, faults=faults)


@dataclass(slots=True)
class Outcome:
    """What came of a plan.

    Attributes:
        problem: the promise that was broken, "" for none.
        events: commands that the server executed. virtual_s: time that passed in there.
        facts: numbers for those who look on; trace: see `Watcher`; stacks: where threads stood.
    """

    plan: Plan
    problem: str = ""
    events: int = 0
    virtual_s: float = 0.0
    facts: dict[str, Any] = field(default_factory=dict)
    trace: list[str] | None = None
    stacks: list[str] = field(default_factory=list)

    @property
    def headline(self) -> str:
        """The problem in one line of bounded length: its last, for one that is a traceback."""
        lines = self.problem.strip().splitlines() or [""]
        return (lines[0] if len(lines) == 1 else lines[-1])[:120]
