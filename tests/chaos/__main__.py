"""`python -m tests.chaos --kills N --seconds S --seed K`: attacks a fleet, reports, exits 1 on any violation."""

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

from tests.chaos.battle import EXPERIMENTS, Plan, fight
from tests.chaos.fleet import Size
from tests.chaos.schedule import ROLES, Order


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--kills", type=int, default=60, help="SIGKILLs of random roles")
    parser.add_argument("--stops", type=int, default=0, help="SIGSTOPs past the TTL, with SIGCONT")
    parser.add_argument("--restarts", type=int, default=0, help="SIGKILLs of the server, with a restart")
    parser.add_argument("--server-stops", type=int, default=0, help="SIGSTOPs of the server, with SIGCONT")
    parser.add_argument("--proxy", type=int, default=0, help="attacks on links: latency, resets, cuts one or both ways")
    parser.add_argument("--seconds", type=float, default=60.0, help="over which they are spread")
    parser.add_argument("--seed", type=int, default=1, help="of the schedule")
    parser.add_argument("--roles", default=",".join(ROLES), help="who may be hit, comma between")
    parser.add_argument("--experiments", default="fast,slow", help=f"of {', '.join(EXPERIMENTS)}")
    parser.add_argument("--workers", default="2", help="of each supervisor, comma between")
    parser.add_argument("--durability", choices=["strict", "fast"], default="fast")
    parser.add_argument("--full-ttl", action="store_true", help="seat and lead last as long as shipped, not a second")
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    parser.add_argument("--keep", metavar="DIR", help="work there and leave logs, data and bad checkpoints")
    return parser.parse_args(argv)


def plan_of(given: argparse.Namespace) -> Plan:
    """The battle that was ordered."""
    order = Order(
        seed=given.seed,
        seconds=given.seconds,
        kills=given.kills,
        freezes=given.stops,
        restarts=given.restarts,
        network=given.proxy,
        server_freezes=given.server_stops,
        roles=tuple(given.roles.split(",")),
    )
    size = Size(
        hosts=tuple(int(number) for number in given.workers.split(",")),
        durability=given.durability,
        short="restarts" if given.full_ttl else "all",
    )
    return Plan(order, size, tuple(given.experiments.split(",")))


def main(argv: list[str] | None = None) -> int:
    given = arguments(argv)
    folder = Path(given.keep) if given.keep else Path(tempfile.mkdtemp(prefix="heddle-chaos-"))
    report = fight(plan_of(given), folder.resolve())
    print(report.text())
    if given.json:
        Path(given.json).write_text(json.dumps(report.as_json(), indent=2) + "\n")
    if given.keep or not report.kept:
        print(f"logs and data are in {folder}")
    else:
        shutil.rmtree(folder)
    return 0 if report.kept else 1


if __name__ == "__main__":
    sys.exit(main())
