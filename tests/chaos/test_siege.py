"""Whole fleets under attack: every accepted step is trained once or set aside and counted, whatever is killed."""

from pathlib import Path

import pytest

from tests.chaos.battle import Plan, fight
from tests.chaos.fleet import Size
from tests.chaos.schedule import Order, schedule

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc"),
]


def test_the_same_seed_gives_the_same_schedule() -> None:
    order = Order(seed=3, seconds=10, kills=20, freezes=5, restarts=2, network=5)
    assert schedule(order) == schedule(order)
    assert schedule(order) != schedule(Order(seed=4, seconds=10, kills=20, freezes=5, restarts=2, network=5))


def test_workers_and_trainers_killed_at_random_lose_nothing_and_train_nothing_twice(tmp_path: Path) -> None:
    order = Order(seed=11, seconds=25, kills=30, roles=("worker", "trainer"))
    report = fight(Plan(order, Size(), ("fast", "slow")), tmp_path)
    print(report.text())
    assert report.kept, report.text()
    assert sum(report.deeds.values()) >= 25
