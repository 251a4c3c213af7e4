"""The benchmark of being looked at tells a cost from what it cannot tell."""

import pytest

from benchmarks.measure import Played
from benchmarks.observing import CONTROL, DARK, TRACED, WATCHED, by_turns, compare


def rounds(cost: float, noise: list[float]) -> list[Played]:
    """Rounds of 1,000 steps that cost so many microseconds each, times what the machine does."""
    return [Played(1000, 1.0, 1e-3 * cost * one, {"workers": 1e-3 * cost * one}) for one in noise]


def test_a_cost_of_a_twentieth_is_told_and_the_control_says_how_well() -> None:
    machine = [1.0, 1.4, 0.9, 1.2, 1.1, 1.0, 1.3, 0.8]
    told = {DARK: rounds(10.0, machine), CONTROL: rounds(10.0, [one * 1.001 for one in machine])}
    told |= {WATCHED: rounds(10.0, machine), TRACED: rounds(10.5, machine)}
    rows = {row.what: row.value for row in compare("x", told)}
    assert rows[f"CPU a step, {TRACED} / {DARK}"].median == pytest.approx(1.05)
    assert rows[f"CPU a step, {WATCHED} / {DARK}"].high == pytest.approx(1.0)
    control = rows[f"CPU a step, {CONTROL} / {DARK}"]
    assert control.low <= control.median == pytest.approx(1.001)
    assert rows[f"steps/s, {CONTROL} / {DARK}"].median == pytest.approx(1.0)
    assert rows[f"{TRACED}: CPU a step more, workers"].median == pytest.approx(0.5 * sum(machine) / 8)


def test_each_round_begins_with_another_one_and_the_first_is_left_out() -> None:
    order = []

    def play(side: str) -> Played:
        order.append(side)
        return Played(1, 1.0, float(len(order)))

    told = by_turns({side: lambda side=side: play(side) for side in ("a", "b", "c")})  # type: ignore[misc]
    assert order[:9] == ["a", "b", "c", "b", "c", "a", "c", "a", "b"]
    assert len(told["a"]) == len(told["b"]) == len(order) // 3 - 1
    assert told["a"][0].cpu_s == 6.0
