"""Run seeds: `python -m tests.simulation --seeds 0:2000 --jobs 2`, or one with what happened: `--seed 7 --trace`.

Exit code 1 when a promise was broken; each failing seed is named with the command that shows it. The last line is JSON.
A long run may be cut short and gone on with: `--seeds 0:200000 --state soak.json`.
"""

import argparse
import json
import multiprocessing
import os
import sys
import time
from functools import partial
from pathlib import Path

from tests.simulation.bugs import MOST_SEEDS, bugs, hunt
from tests.simulation.figures import load
from tests.simulation.plan import plan_of
from tests.simulation.seeds import run_seeds
from tests.simulation.shown import shown, shows
from tests.simulation.shrink import run, shrink, to_json
from tests.simulation.world import World

SAVE_EVERY = 20


def hunt_all(jobs: int, most: int, least: int | None, *, missed_too: bool) -> int:
    """Look for every planted bug; a table. 1 when fewer than `least` are found.

    Every command more that a role sends moves all schedules, so a noted seed may miss its bug without anybody's fault.
    """
    missed, looked_at, wanted = 0, 0, [bug.name for bug in bugs() if missed_too or not bug.missed]
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for found in pool.imap(partial(hunt, most=most), wanted):
            missed, looked_at = missed + (found.seed is None), looked_at + found.seeds
            print(
                f"| {found.bug} | {'not found' if found.seed is None else found.seed} | {found.promise} |", flush=True
            )
    print(f"bugs={len(bugs())} looked_for={len(wanted)} not_found={missed} most_seeds={most} seeds_run={looked_at}")
    return int(len(wanted) - missed < (len(wanted) if least is None else least))


def show_all(jobs: int, name: str) -> int:
    """Plant each bug that a test shows, or the one named, and run that test. 1 when one of them does not fail."""
    wanted, passed = [name] if name else shown(), 0
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for bug, problem in zip(wanted, pool.imap(shows, wanted), strict=True):
            passed += bool(problem)
            print(f"| {bug} | {problem or 'shown'} |", flush=True)
    print(f"shown_by_tests={len(wanted) - passed} not_shown={passed}")
    return int(passed > 0)


def _show(seed: int, *, traced: bool) -> int:
    outcome = World(plan_of(seed), traced=traced).run()
    for line in [*(outcome.trace or []), *outcome.stacks]:
        print(line)
    print(f"plan {outcome.plan}", *outcome.plan.faults, outcome.facts, sep="\n")
    print(f"events={outcome.events} virtual_s={outcome.virtual_s:.1f}", outcome.problem or "every promise was kept")
    return int(bool(outcome.problem))


def _many(first: int, last: int, *, jobs: int, minutes: float | None, state: Path | None) -> int:
    figures = load(state, first)
    before_s, began = figures.took_s, time.monotonic()
    for outcome in run_seeds(figures.next, last, jobs):
        figures.add(outcome)
        figures.took_s = before_s + time.monotonic() - began
        if outcome.problem:
            seed = outcome.plan.seed
            print(f"seed {seed}: {outcome.problem[:400]}")
            print(f"  python -m tests.simulation --seed {seed} --trace", flush=True)
        if state is not None and (figures.seeds % SAVE_EVERY == 0 or outcome.problem):
            figures.save(state)
        if minutes is not None and time.monotonic() - began >= 60.0 * minutes:
            break
    if state is not None:
        figures.save(state)
    print(figures.line(jobs))
    return int(bool(figures.broken))


def _range(asked: str, parser: argparse.ArgumentParser) -> tuple[int, int]:
    """The first seed and the one behind the last. Ends the process where that is no range."""
    first, _, last = asked.partition(":")
    if not (first.isdecimal() and last.isdecimal() and int(first) < int(last)):
        parser.error(f"--seeds {asked}: expected A:B with A below B, such as 0:2000; one seed alone: --seed 7")
    return int(first), int(last)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this one and show its plan")
    parser.add_argument("--trace", action="store_true", help="with --seed: every command and its reply")
    parser.add_argument("--seeds", default="0:2000", metavar="A:B", help="from A to B - 1")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--minutes", type=float, help="stop after so long")
    parser.add_argument("--state", type=Path, metavar="FILE", help="go on behind what is in there, and note it there")
    parser.add_argument("--bugs", action="store_true", help="plant every bug in turn, and look for it")
    parser.add_argument("--most", type=int, default=MOST_SEEDS, help="with --bugs: look in so many seeds for each")
    parser.add_argument("--missed", action="store_true", help="with --bugs: also those that were not found last time")
    parser.add_argument("--shown", action="store_true", help="plant each bug that a test shows, and see the test fail")
    parser.add_argument("--least", type=int, help="with --bugs: so many must be found; all when not given")
    parser.add_argument("--shrink", action="store_true", help="with --seed: take away what is not needed to break it")
    parser.add_argument("--bug", default="", metavar="NAME", help="with --shrink, --shown: this one")
    asked = parser.parse_args()
    if asked.shrink:
        print(json.dumps(to_json(shrink(plan_of(asked.seed), partial(run, bug=asked.bug))), indent=1))
        return 0
    if asked.shown:
        return show_all(asked.jobs, asked.bug)
    if asked.bugs:
        return hunt_all(asked.jobs, asked.most, asked.least, missed_too=asked.missed)
    if asked.seed is not None:
        return _show(asked.seed, traced=asked.trace)
    first, last = _range(asked.seeds, parser)
    return _many(first, last, jobs=asked.jobs, minutes=asked.minutes, state=asked.state)


if __name__ == "__main__":
    sys.exit(main())
