"""Planted bugs, as `bugs.toml` lists them: for each rule of the protocol a change of the shipped code that breaks it.

The list notes the seed that found it last, which is looked at first; where code or plans have moved its schedule, the
seeds of its theme come next. Those with a seed must be found within `MOST_SEEDS` seeds. Those that no seed of their
theme found stand as `missed`: the simulation is too weak there, and a kept schedule or a test shows them.
"""

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.simulation.mutate import Bug, Edit, planted
from tests.simulation.plan import plan_of, theme_of
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
        Bug(
            one["name"],
            tuple(Edit(**edit) for edit in one["edit"]),
            one.get("theme", ""),
            one.get("seed"),
            one.get("missed", False),
            one.get("breaks", ""),
            one.get("shown", ""),
        )
        for one in listed
    )


def named(name: str) -> Bug:
    """The bug of that name. Raises StopIteration."""
    return next(bug for bug in bugs() if bug.name == name)


def order(bug: Bug, most: int) -> list[int]:
    """The seeds below `most` in the order in which a bug is looked for.

    First the one that found it last, then those of its own theme, then the others: a change that moves all schedules
    moves the seed, hardly ever the theme.
    """
    known = [] if bug.seed is None else [bug.seed]
    rest = [seed for seed in range(most) if seed not in known]
    return known + sorted(rest, key=lambda seed: (not bug.theme or theme_of(seed) != bug.theme, seed))


def hunt(name: str, most: int = MOST_SEEDS) -> Hunt:
    """Look for a bug in the seeds below `most`, at least in the one that is noted. Raises NotThere."""
    bug = named(name)
    seeds = order(bug, most)
    with planted(bug) as rewrite:
        for count, seed in enumerate(seeds, start=1):
            outcome = World(plan_of(seed), rewrite=rewrite).run()
            if outcome.problem:
                return Hunt(name, seed, count, outcome.headline)
    return Hunt(name, None, len(seeds))
