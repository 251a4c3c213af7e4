"""The benchmark of waiting environments says what it measured."""

import pytest

from benchmarks.waiting import Case, rows_of
from benchmarks.waiting_env import Waits


def test_waits_have_the_mean_that_was_asked_for_to_the_last_digit() -> None:
    waits = Waits(3, 0.01)
    assert sum(waits.next() for _ in range(256)) / 256 == pytest.approx(0.01)


@pytest.mark.parametrize("case", [Case("threads", 3, 0.002), Case("async", 3, 0.002)])
def test_player_and_bare_loop_are_measured_beside_each_other(case: Case) -> None:
    rows = {row.what: row.value for row in rows_of(case, rounds=1, seconds=0.1)}
    for name in ("player", "bare loop"):
        assert 0 < rows[f"{name}: of ideal"].median <= 1.2
        assert rows[f"{name}: of ideal"].median == pytest.approx(rows[f"{name}: steps/s"].median / case.ideal)
        assert rows[f"{name}: CPU a step"].median > 0
