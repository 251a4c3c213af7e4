"""The long version, by hand: `python -m tests.chaos.soak --kills 3000 --stops 1000 --restarts 100 --minutes 30`.

It runs round after round, each a fleet of its own with a seed of its own, and tells one line a round and the sums at
the end; `--first` and `--rounds` cut it into pieces. Exit code 1 on any violation; such a round's folder is kept.
"""

import argparse
import json
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from tests.chaos import memory
from tests.chaos.battle import Plan, fight
from tests.chaos.fleet import Size
from tests.chaos.report import Report
from tests.chaos.schedule import Order

KILLS_A_ROUND = 120
ROUND_S = 100.0
EXPERIMENTS = (("fast", "slow"), ("cartpole",), ("sync",), ("fast", "evaluated"), ("slow",), ("fast", "isolated"))
NETWORK_EVERY = 4
"""Rounds from one with attacks on links to the next."""
MOST_GROWTH_MIB = 8.0
"""Of one role in the time that memory is watched, its warming up left out."""


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.soak", description=__doc__)
    parser.add_argument("--kills", type=int, default=3000)
    parser.add_argument("--stops", type=int, default=1000, help="SIGSTOPs past the TTL, with SIGCONT")
    parser.add_argument("--restarts", type=int, default=100, help="of the server, after a SIGKILL")
    parser.add_argument("--server-stops", type=int, default=50, help="SIGSTOPs of the server, with SIGCONT")
    parser.add_argument("--minutes", type=float, default=30.0, help="for which memory is watched; 0 leaves it out")
    parser.add_argument("--seed", type=int, default=1, help="of the first round; the next ones count on")
    parser.add_argument("--first", type=int, default=0, help="round to begin with")
    parser.add_argument("--rounds", type=int, help="how many to run now; all that are left when not given")
    parser.add_argument("--json", metavar="FILE", help="write all figures there")
    return parser.parse_args(argv)


def plans(given: argparse.Namespace) -> list[Plan]:
    """Every round of the whole."""
    count = max(1, -(-given.kills // KILLS_A_ROUND))
    made = []
    for number in range(count):
        order = Order(
            seed=given.seed + number,
            seconds=ROUND_S,
            kills=_part(given.kills, count, number),
            freezes=_part(given.stops, count, number),
            restarts=_part(given.restarts, count, number),
            server_freezes=_part(given.server_stops, count, number),
            network=20 if number % NETWORK_EVERY == NETWORK_EVERY - 1 else 0,
        )
        size = Size(hosts=(2, 2), durability="strict" if number % 2 else "fast")
        made.append(Plan(order, size, EXPERIMENTS[number % len(EXPERIMENTS)]))
    return made


def _part(total: int, count: int, number: int) -> int:
    """The number-th of `count` parts that are as even as can be."""
    return total * (number + 1) // count - total * number // count


def siege(plan: Plan, number: int) -> Report:
    """One round, told in a line."""
    folder = Path(tempfile.mkdtemp(prefix=f"heddle-soak-{number}-"))
    report = fight(plan, folder.resolve())
    shown = ", ".join(f"{n} {name}" for name, n in sorted(_grouped([report]).items()))
    kept = "kept" if report.kept else "BROKEN"
    compared = f"{report.accepted} batches, {report.checkpoints} checkpoints"
    print(f"round {number} seed {report.seed}: {shown}; {compared}: {kept}", flush=True)
    if report.kept:
        shutil.rmtree(folder)
    else:
        print(report.text())
        print(f"logs and data are in {folder}")
    return report


def _grouped(reports: list[Report]) -> Counter[str]:
    """Deeds of all roles together; those of the server apart."""
    deeds: Counter[str] = Counter()
    for report in reports:
        for what, count in report.deeds.items():
            deed, _, role = what.partition(" ")
            deeds[f"{deed}s{' of the server' if role == 'server' else ''}"] += count
    return deeds


def sums(reports: list[Report]) -> dict[str, Any]:
    """Over all rounds."""
    zombies = sum("zombie" in one for report in reports for one in report.violations)
    return {
        "rounds": len(reports),
        **_grouped(reports),
        "batches accepted": sum(report.accepted for report in reports),
        "checkpoints compared": sum(report.checkpoints for report in reports),
        "shards claimed": sum(report.claims for report in reports),
        "seats taken": sum(report.seats for report in reports),
        "late writes refused": sum(report.refused for report in reports),
        "late writes accepted": zombies,
        "trained steps the server forgot": sum(report.unknown_steps for report in reports),
        "violations": sum(len(report.violations) for report in reports),
    }


def main(argv: list[str] | None = None) -> int:
    given = arguments(argv)
    chosen = list(enumerate(plans(given)))[given.first :][: given.rounds]
    reports = [siege(plan, number) for number, plan in chosen]
    total = sums(reports)
    print("\n".join(f"{name:<34}{value}" for name, value in total.items()))
    series: dict[str, memory.Series] = {}
    if given.minutes:
        folder = Path(tempfile.mkdtemp(prefix="heddle-soak-memory-"))
        series = memory.watch(folder.resolve(), minutes=given.minutes)
        print(memory.table(series))
        shutil.rmtree(folder)
    grew = {name: one.growth_mib for name, one in series.items() if one.growth_mib > MOST_GROWTH_MIB}
    if grew:
        print(f"GREW by more than {MOST_GROWTH_MIB:g} MiB: {grew}")
    if given.json:
        shown = {name: {"growth_mib": one.growth_mib, "slope_mib_h": one.slope_mib_h} for name, one in series.items()}
        figures = {"total": total, "rounds": [report.as_json() for report in reports], "memory": shown}
        Path(given.json).write_text(json.dumps(figures, indent=2) + "\n")
    return 1 if total["violations"] or grew else 0


if __name__ == "__main__":
    sys.exit(main())
