"""Many seeds, over several processes.

It never prints; `python -m tests.simulation` does.
"""

import multiprocessing
import traceback
from collections.abc import Iterator

from tests.simulation.plan import Outcome, plan_of
from tests.simulation.world import World

AT_ONCE = 20


def run_seed(seed: int) -> Outcome:
    """One seed. Where the simulation itself fails, the problem says so: the seeds behind it are run all the same."""
    plan = plan_of(seed)
    try:
        return World(plan).run()
    except Exception:  # noqa: BLE001 - whatever it is: told as broken
        return Outcome(plan, problem=f"the simulation failed: {traceback.format_exc()[-300:]}")


def run_seeds(first: int, last: int, jobs: int) -> Iterator[Outcome]:
    """Seeds `first` to `last` - 1, in this order."""
    if jobs == 1:
        yield from map(run_seed, range(first, last))
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap(run_seed, range(first, last), chunksize=AT_ONCE)
