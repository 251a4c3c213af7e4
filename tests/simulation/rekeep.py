"""Find a kept schedule again: `python -m tests.simulation.rekeep "NAME OF THE BUG"`.

One command more that some role sends moves every schedule, and a kept one may show its bug no longer. Near it there is
nearly always one that does: its faults a little earlier or later, with other chances. What is found is shrunk and kept.
"""

import argparse
import multiprocessing
import random
import sys
from dataclasses import replace
from functools import partial

from tests.simulation.plan import Fault, Plan
from tests.simulation.shrink import keep, kept, run, shrink

MOST = 4_000
SAME = 0.6
"""Chance that a number of a fault stays as it is."""


def near(plan: Plan, number: int) -> Plan:
    """The number-th schedule near `plan`, always the same one."""
    rng = random.Random(number)
    spread_s = 0.15 if number % 2 else 0.02

    def moved(fault: Fault) -> Fault:
        return replace(
            fault,
            at_s=max(0.0, fault.at_s + rng.gauss(0.0, spread_s)),
            draw=fault.draw if rng.random() < SAME else rng.random(),
            lasts_s=fault.lasts_s if rng.random() < SAME else fault.lasts_s * rng.uniform(0.7, 1.4),
        )

    seed = plan.seed if rng.random() < 0.5 * SAME else rng.randrange(10**6)
    return replace(plan, seed=seed, faults=tuple(moved(fault) for fault in plan.faults))


def shows(plan: Plan, bug: str) -> bool:
    """With the bug it breaks a promise, without it breaks none."""
    return bool(run(plan, bug).problem) and not run(plan).problem


def _shows(number: int, bug: str) -> int | None:
    return number if shows(near(dict(kept())[bug], number), bug) else None


def find(bug: str, most: int, jobs: int) -> Plan | None:
    """A schedule near the kept one that shows `bug`, shrunk; None where there is none among `most`."""
    plan = dict(kept())[bug]
    if shows(plan, bug):
        return plan
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        tried = pool.imap_unordered(partial(_shows, bug=bug), range(most), chunksize=4)
        found = next((number for number in tried if number is not None), None)
        pool.terminate()
    return None if found is None else shrink(near(plan, found), partial(run, bug=bug))


def main() -> int:
    """Exit code 1 where nothing was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.rekeep", description=__doc__)
    parser.add_argument("bug", choices=[bug for bug, _ in kept()], metavar="BUG")
    parser.add_argument("--most", type=int, default=MOST, help="schedules to try (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count())
    asked = parser.parse_args()
    plan = find(asked.bug, asked.most, asked.jobs)
    if plan is None or not shows(plan, asked.bug):
        print(f"none of {asked.most} schedules near the kept one shows: {asked.bug}")
        return 1
    keep([(bug, plan if bug == asked.bug else one) for bug, one in kept()])
    print(f"kept: {run(plan, asked.bug).problem[:120]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
