"""The siege over shared memory: producers, consumers and server are killed, and no batch and no file goes astray."""

from pathlib import Path

import pytest

from tests.chaos.battle import Plan, fight
from tests.chaos.fleet import Size
from tests.chaos.schedule import Order

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc"),
]


@pytest.mark.parametrize("durability", ["strict", "fast"])
def test_kills_of_every_role_over_shared_memory_lose_nothing_train_nothing_twice_and_leave_no_file(
    tmp_path: Path, durability: str
) -> None:
    order = Order(seed=21, seconds=30, kills=50, freezes=8, restarts=2)
    size = Size(hosts=(2, 1), durability="strict" if durability == "strict" else "fast")
    report = fight(Plan(order, size, ("shared",)), tmp_path)
    print(report.text())
    assert report.kept, report.text()
    (flow,) = report.flows.values()
    assert flow["mapped"] > 0.5 * flow["appended"], "batches lay in memory, but for the first of each claim"
    assert report.checkpoints > 0
    assert report.most_files > 0
