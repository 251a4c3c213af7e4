"""Planted bugs, as `bugs.toml` lists them: for each rule of the protocol a change of the shipped code that breaks it.

Each must be found within `MOST_SEEDS` seeds, or the simulation is too weak: `python -m tests.simulation --bugs`.
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
    return tuple(Bug(one["name"], tuple(Edit(**edit) for edit in one["edit"])) for one in listed)


def named(name: str) -> Bug:
    """The bug of that name. Raises StopIteration."""
    return next(bug for bug in bugs() if bug.name == name)


def hunt(name: str, most: int = MOST_SEEDS) -> Hunt:
    """Look for a bug with seed after seed. Raises NotThere."""
    with planted(named(name)) as rewrite:
        for seed in range(most):
            outcome = World(plan_of(seed), rewrite=rewrite).run()
            if outcome.problem:
                return Hunt(name, seed, seed + 1, outcome.headline)
    return Hunt(name, None, most)
