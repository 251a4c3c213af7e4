"""The benchmark of waiting environments says what it measured."""

from typing import Any

import pytest

from benchmarks.waiting import BareCoroutines, BareThreads, Case, Hosted, rows_of
from benchmarks.waiting_env import Waits


def test_waits_have_the_mean_that_was_asked_for_to_the_last_digit() -> None:
    waits = Waits(3, 0.01)
    assert sum(waits.next() for _ in range(256)) / 256 == pytest.approx(0.01)


@pytest.mark.parametrize("case", [Case("threads", 3, 0.002), Case("async", 3, 0.002)])
def test_player_and_bare_loop_are_measured_beside_each_other(case: Case) -> None:
    rows = {row.what: row.value for row in rows_of(case, rounds=1, seconds=0.1)}
    for name in ("player", "bare loop"):
        assert rows[f"{name}: of ideal"].median > 0
        assert rows[f"{name}: of ideal"].median == pytest.approx(rows[f"{name}: steps/s"].median / case.ideal)
        assert rows[f"{name}: CPU a step"].median > 0


@pytest.mark.parametrize(
    ("kind", "stepping"),
    [(Hosted, "threads"), (Hosted, "async"), (BareThreads, "threads"), (BareCoroutines, "async")],
)
def test_no_step_counts_that_was_not_waited_for(kind: Any, stepping: str, monkeypatch: pytest.MonkeyPatch) -> None:
    waits, begun = Waits.next, list[float]()

    def counted(self: Waits) -> float:
        begun.append(wait := waits(self))
        return wait

    monkeypatch.setattr(Waits, "next", counted)
    side = kind(Case(stepping, 3, 0.002))
    try:
        assert 0 < side.play(0.1).steps <= len(begun)
    finally:
        if kind is Hosted:
            side.close()
