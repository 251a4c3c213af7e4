"""Curves in the terminal and as pictures."""

from pathlib import Path

import pytest

from heddle.cli.curve import Curve, braille, save_png, short, shrink, sparkline


def test_a_sparkline_goes_from_lowest_to_highest() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([3.0, 3.0]) == "▄▄"
    assert sparkline([float("nan")]) == ""
    assert len(sparkline(range(1000), 24)) == 24


def test_shrinking_keeps_the_mean() -> None:
    assert shrink([1, 3, 5, 7], 2) == [2, 6]
    assert shrink([1, 2], 5) == [1, 2]


def test_a_plot_has_axes_and_rises_from_left_below_to_right_above() -> None:
    lines = braille([Curve("a", tuple((float(x), float(x)) for x in range(100)))], width=20, height=5, x_label="steps")
    assert lines[0].startswith("100 ┤")
    assert lines[4].strip().startswith("0 ┤")
    assert lines[0][-1] != "\u2800"
    assert lines[0][6] == "\u2800"
    assert lines[4][5] != "\u2800"
    assert "steps" in lines[-1]
    assert len({len(line) for line in lines}) == 1


def test_nothing_finite_draws_nothing() -> None:
    assert braille([]) == []
    assert braille([Curve("a", ((0.0, float("nan")),))]) == []


def test_a_single_point_can_be_drawn() -> None:
    assert any(any(0x2800 < ord(letter) <= 0x28FF for letter in line) for line in braille([Curve("a", ((1.0, 2.0),))]))


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0"), (950, "950"), (1200, "1.2k"), (2_500_000, "2.5M"), (-1500, "-1.5k")]
)
def test_numbers_are_short(number: float, text: str) -> None:
    assert short(number) == text


def test_a_picture_is_written_as_png(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "curve.png"
    curves = [Curve("training", ((0, 1), (1, 2))), Curve("evaluation", ())]
    save_png(path, curves, title="t", x_label="x", y_label="y", goal=1.5)
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
