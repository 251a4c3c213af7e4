"""Planted bugs, as `bugs.toml` lists them: for each rule of the protocol a change of the shipped code that breaks it.

Each should be found within `MOST_SEEDS` seeds, or the simulation is too weak there. The list has a seed for those that
were, which `python -m tests.simulation --bugs` runs; where code or plans changed so that it finds nothing any more,
`--most 500` looks for another.
"""

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.simulation.mutate import Bug, Edit, planted
from tests.simulation.plan import plan_of
from tests.simulation.world import World

MOST_SEEDS = 500


@dataclass(frozen=True, slots=True)
class Hunt:
    """What came of looking for a bug.

    Attributes:
        seed: that found it; None when none did. seeds: how many were run.
        promise: that it breaks.
    """

    bug: str
    seed: int | None
    seeds: int
    promise: str = ""


@cache
def bugs() -> tuple[Bug, ...]:
    """Every planted bug."""
    listed = tomllib.loads(Path(__file__).with_name("bugs.toml").read_text())["bug"]
    return tuple(
        Bug(one["name"], tuple(Edit(**edit) for edit in one["edit"]), one.get("seed"), one.get("breaks", ""))
        for one in listed
    )


def named(name: str) -> Bug:
    """The bug of that name. Raises StopIteration."""
    return next(bug for bug in bugs() if bug.name == name)


def hunt(name: str, most: int = 0) -> Hunt:
    """Look for a bug with the seed that found it last, or with `most` seeds from the first on. Raises NotThere."""
    bug = named(name)
    known = range(0) if bug.seed is None else range(bug.seed, bug.seed + 1)
    seeds = range(most) if most else known
    with planted(bug) as rewrite:
        for count, seed in enumerate(seeds, start=1):
            outcome = World(plan_of(seed), rewrite=rewrite).run()
            if outcome.problem:
                return Hunt(name, seed, count, outcome.headline)
    return Hunt(name, None, len(seeds))
