"""Whole fleets under attack: every accepted step is trained once or set aside and counted, whatever is killed.

Together: 200 kills, 50 freezes past the TTL and 10 restarts of the server, on environments that can be snapshotted,
that cannot, that are slow, and on CartPole that is evaluated, whose server freezes, too; and a siege of the network, of
a run with a barrier beside one whose environments play in children. Other numbers: `python -m tests.chaos`.
"""

import os
from pathlib import Path

import pytest

from tests.chaos.battle import Plan, fight
from tests.chaos.fleet import Size
from tests.chaos.report import Report
from tests.chaos.schedule import ROLES, Order, schedule

pytestmark = [
    pytest.mark.alone,  # so many blows in so many seconds
    pytest.mark.timeout(600),
    pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc"),
]


def check(report: Report) -> None:
    """Every promise was kept, and enough was done to say so."""
    print(report.text())
    assert report.kept, report.text()
    assert report.accepted > 0
    assert report.checkpoints > 0


def count(report: Report, deed: str, *, of_server: bool) -> int:
    """How often somebody was hit."""
    return sum(
        n for what, n in report.deeds.items() if what.startswith(f"{deed} ") and what.endswith("server") == of_server
    )


def test_the_same_seed_gives_the_same_schedule() -> None:
    order = Order(seed=3, seconds=10, kills=20, freezes=5, restarts=2, network=5)
    assert schedule(order) == schedule(order)
    assert schedule(order) != schedule(Order(seed=4, seconds=10, kills=20, freezes=5, restarts=2, network=5))


def test_a_hundred_kills_of_every_role_on_a_server_that_keeps_all_lose_nothing_and_train_nothing_twice(
    tmp_path: Path,
) -> None:
    order = Order(seed=11, seconds=60, kills=105, freezes=26, restarts=5)
    report = fight(Plan(order, Size(hosts=(2, 1), durability="strict"), ("fast", "slow")), tmp_path)
    check(report)
    assert report.unknown_steps == 0
    assert report.recovery["killed workers' shards"].count > 0, "nobody knew what a killed worker held"
    assert count(report, "kill", of_server=False) >= 100
    assert count(report, "freeze", of_server=False) >= 25
    assert count(report, "kill", of_server=True) == 5


def test_a_hundred_kills_of_every_role_on_a_server_that_may_forget_two_seconds_train_nothing_twice(
    tmp_path: Path,
) -> None:
    order = Order(seed=12, seconds=60, kills=110, freezes=28, restarts=5, server_freezes=3)
    report = fight(Plan(order, Size(hosts=(2, 1), durability="fast"), ("evaluated",)), tmp_path)
    check(report)
    assert count(report, "kill", of_server=False) >= 100
    assert count(report, "freeze", of_server=False) >= 25
    assert count(report, "kill", of_server=True) == 5
    assert count(report, "freeze", of_server=True) == 3
    assert report.flows and all(flow["evaluated"] for flow in report.flows.values())


def test_delays_resets_and_cuts_in_one_or_both_directions_lose_nothing_and_train_nothing_twice(tmp_path: Path) -> None:
    order = Order(seed=13, seconds=30, network=24, kills=4, roles=tuple(role for role in ROLES if role != "server"))
    report = fight(Plan(order, Size(hosts=(1, 1)), ("sync", "isolated")), tmp_path)
    check(report)
    assert sum(report.deeds.values()) >= 24


@pytest.mark.skipif(not os.environ.get("HEDDLE_SOAK"), reason="the simulation freezes its server, too; HEDDLE_SOAK=1")
def test_a_server_that_freezes_beyond_every_lease_again_and_again_costs_no_shard_its_owner_and_no_trainer_its_seat(
    tmp_path: Path,
) -> None:
    order = Order(seed=14, seconds=60, server_freezes=15, ttl_s=2.0)
    report = fight(Plan(order, Size(hosts=(1,))), tmp_path)
    check(report)
    assert count(report, "freeze", of_server=True) == 15
    assert (report.claims, report.seats) == (4, 1)
