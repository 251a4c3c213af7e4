"""Curves: a learning curve in the terminal, in braille dots, and as a PNG.

It never reads the broker; the points are arguments.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

Point = tuple[float, float]

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of a braille character by row and column of its dots, Unicode block 2800."""
_BARS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a plot.

    Attributes:
        label: for the legend.
        points: (x, y), x rising; not finite ones are left out.
    """

    label: str
    points: tuple[Point, ...]


def sparkline(values: Sequence[float], width: int = 24) -> str:
    """The last values as bars, at most `width` of them; longer series are averaged down."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return ""
    shrunk = shrink(finite, width)
    low, high = min(shrunk), max(shrunk)
    if high <= low:
        return _BARS[3] * len(shrunk)  # level, neither lowest nor highest
    return "".join(_BARS[min(7, int(8 * (value - low) / (high - low)))] for value in shrunk)


def shrink(values: Sequence[float], count: int) -> list[float]:
    """`values` as at most `count` means of neighbours."""
    if len(values) <= count:
        return list(values)
    edges = [round(i * len(values) / count) for i in range(count + 1)]
    return [sum(values[a:b]) / (b - a) for a, b in zip(edges, edges[1:], strict=False)]


def braille(curves: Sequence[Curve], *, width: int = 64, height: int = 12, x_label: str = "") -> list[str]:
    """A plot of `curves` as lines of text with axes; [] when there is nothing to draw.

    Args:
        width, height: of the field in characters; each holds 2 x 4 dots.
        x_label: below the field.
    """
    points = [point for curve in curves for point in _finite(curve.points)]
    if not points:
        return []
    x_low, x_high = min(x for x, _ in points), max(x for x, _ in points)
    y_low, y_high = _round_range(min(y for _, y in points), max(y for _, y in points))
    field = [[0] * width for _ in range(height)]
    for curve in curves:
        _draw(field, _scaled(curve.points, (x_low, x_high), (y_low, y_high), (2 * width - 1, 4 * height - 1)))
    return _with_axes(field, (x_low, x_high), (y_low, y_high), x_label)


def _finite(points: Sequence[Point]) -> list[Point]:
    return [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]


def _round_range(low: float, high: float) -> tuple[float, float]:
    """A range that holds both and ends on round numbers."""
    if high <= low:
        return low - 1, high + 1
    step = 10.0 ** math.floor(math.log10(high - low))
    step = step / 2 if (high - low) / step < 4 else step
    return math.floor(low / step) * step, math.ceil(high / step) * step


def _scaled(
    points: Sequence[Point], x_range: tuple[float, float], y_range: tuple[float, float], dots: tuple[int, int]
) -> list[tuple[int, int]]:
    (x_low, x_high), (y_low, y_high), (right, bottom) = x_range, y_range, dots
    x_scale = right / (x_high - x_low) if x_high > x_low else 0.0
    y_scale = bottom / (y_high - y_low)
    return [(round((x - x_low) * x_scale), bottom - round((y - y_low) * y_scale)) for x, y in _finite(points)]


def _draw(field: list[list[int]], dots: Sequence[tuple[int, int]]) -> None:
    """Put a line through `dots` (column, row) into the field."""
    if len(dots) == 1:
        _put(field, *dots[0])
    for (x0, y0), (x1, y1) in zip(dots, dots[1:], strict=False):
        steps = max(abs(x1 - x0), abs(y1 - y0), 1)
        for i in range(steps + 1):
            _put(field, round(x0 + (x1 - x0) * i / steps), round(y0 + (y1 - y0) * i / steps))


def _put(field: list[list[int]], x: int, y: int) -> None:
    field[y // 4][x // 2] |= _DOTS[y % 4][x % 2]


def _with_axes(
    field: list[list[int]], x_range: tuple[float, float], y_range: tuple[float, float], x_label: str
) -> list[str]:
    (y_low, y_high), height, width = y_range, len(field), len(field[0])
    marks = {0: y_high, height // 2: (y_low + y_high) / 2 if height > 4 else None, height - 1: y_low}
    labels = [short(mark) if (mark := marks.get(row)) is not None else "" for row in range(height)]
    margin = max(len(label) for label in labels)
    lines = [
        f"{label:>{margin}} {'┤' if label else '│'}{''.join(chr(0x2800 + bits) for bits in row)}"
        for label, row in zip(labels, field, strict=True)
    ]
    left, right = short(x_range[0]), short(x_range[1])
    middle = x_label.center(max(0, width - len(left) - len(right)))
    return [*lines, f"{'':>{margin}} └{'─' * width}", f"{'':>{margin}}  {left}{middle}{right}"]


def short(number: float) -> str:
    """A number in few characters: 1.2k, 35, 0.25."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.3g}"


def save_png(
    path: Path, curves: Sequence[Curve], *, title: str, x_label: str, y_label: str, goal: float | None
) -> None:
    """Write a plot of `curves` as PNG.

    Args:
        goal: a level to mark with a dashed line.

    Raises:
        ImportError: matplotlib is not installed.
        OSError: the file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for curve, colour, width in zip(curves, ("#9db4c0", "#1f6f8b", "#e4572e"), (1.0, 2.2, 2.2), strict=False):
        points = _finite(curve.points)
        if points:
            marker = "o" if len(points) <= 60 and width > 1.5 else None
            axes.plot(*zip(*points, strict=True), label=curve.label, color=colour, linewidth=width, marker=marker, ms=4)
    if goal is not None:
        axes.axhline(goal, color="#777777", linestyle="--", linewidth=1, label=f"goal {goal:g}")
    axes.set(title=title, xlabel=x_label, ylabel=y_label)
    axes.xaxis.set_major_formatter(lambda value, _position: short(value))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    axes.margins(x=0.01)
    axes.legend(frameon=False, loc="lower right")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Software": "heddle"})
