"""Recovery times keep promise P3: measured thirty times each (HEDDLE_RECOVERIES), with a margin for busy machines.

Each table goes to standard output and, where HEDDLE_RECOVERY_JSON names a folder, to a file there.
"""

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.chaos import outages, recovery
from tests.chaos.bench import LOADING_MARGIN, MARGIN, Measured, table

pytestmark = [
    pytest.mark.alone,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc"),
]

EACH = int(os.environ.get("HEDDLE_RECOVERIES", "30"))

Measure = Callable[..., tuple[list[Measured], list[str]]]

MEASURES: dict[str, Measure] = {
    "workers": recovery.measure_workers,
    "trainers": recovery.measure_trainers,
    "coordinators": recovery.measure_coordinators,
    "server": outages.measure_server,
    "meanwhile": outages.measure_deaths_meanwhile,
    "cuts": outages.measure_cuts,
}
ROUNDS = {name: EACH for name in MEASURES} | {"meanwhile": max(2, EACH // 5)}
"""What takes a server and a host down and waits for two leases has fewer, so that it ends with those beside it."""
TOGETHER = (("workers", "coordinators"), ("trainers", "server", "meanwhile", "cuts"))
"""Fleets that are measured at the same time: each mostly waits for something to run out. Trainers load torch again and
again, so they are not beside the workers, of whose second every tenth counts."""


@pytest.mark.parametrize("names", TOGETHER, ids="-".join)
def test_what_dies_or_is_cut_off_is_back_in_time(names: tuple[str, ...], tmp_path: Path) -> None:
    with ThreadPoolExecutor(len(names)) as pool:
        futures = {name: pool.submit(MEASURES[name], tmp_path / name, each=ROUNDS[name]) for name in names}
    measured = {name: future.result() for name, future in futures.items()}
    for name, (lines, _) in measured.items():
        print("\n" + table(lines))
        if folder := os.environ.get("HEDDLE_RECOVERY_JSON"):
            target = Path(folder) / f"recovery-{name}.json"
            target.write_text(json.dumps([asdict(line) for line in lines], indent=2) + "\n")
    for name, (lines, violations) in measured.items():
        assert violations == []
        for line in lines:
            check(line, ROUNDS[name])


def check(line: Measured, each: int) -> None:
    """Everybody came back, most in time, and nobody much too late."""
    assert line.took.never == 0, table([line])
    assert line.took.count >= each - each // 10, table([line])
    worst, median = (LOADING_MARGIN, (1 + LOADING_MARGIN) / 2) if line.loads else (MARGIN, 1.0)
    assert line.took.p99 <= worst * line.bound_s, table([line])
    assert line.took.median <= median * line.bound_s, table([line])
