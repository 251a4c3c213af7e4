"""Curves: a learning curve in the terminal, in braille dots, and as a PNG.

It never reads the broker; the points are arguments.
"""

import html
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Point = tuple[float, float]

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of a braille character by row and column of its dots, Unicode block 2800."""
_BARS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class Shade:
    """The interval around a curve: x, and y from low to high; nothing where they are not finite."""

    x: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


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
    cells = braille_cells(curves, width=width, height=height, x_label=x_label)
    return ["".join(text for _, text in line) for line in cells]


def braille_cells(
    curves: Sequence[Curve], *, width: int = 64, height: int = 12, x_label: str = ""
) -> list[list[tuple[int, str]]]:
    """As `braille`, each line in pieces of (place of the curve that is drawn there, or -1; text)."""
    points = [point for curve in curves for point in _finite(curve.points)]
    if not points:
        return []
    x_range = min(x for x, _ in points), max(x for x, _ in points)
    y_range = _round_range(min(y for _, y in points), max(y for _, y in points))
    dots = (2 * width - 1, 4 * height - 1)
    field = [[0] * width for _ in range(height)]
    owners = [[-1] * width for _ in range(height)]
    for place, curve in enumerate(curves):
        own = [[0] * width for _ in range(height)]
        _draw(own, _scaled(curve.points, x_range, y_range, dots))
        for row in range(height):
            for column in range(width):
                if own[row][column]:
                    field[row][column] |= own[row][column]
                    owners[row][column] = place
    lines = _with_axes(field, x_range, y_range, x_label)
    margin = len(lines[0]) - width
    drawn = [[(-1, line[:margin]), *_runs(line[margin:], owners[row])] for row, line in enumerate(lines[:height])]
    return [*drawn, *([(-1, line)] for line in lines[height:])]


def _runs(text: str, owners: Sequence[int]) -> list[tuple[int, str]]:
    """`text` in pieces of one owner each."""
    pieces: list[tuple[int, str]] = []
    for letter, owner in zip(text, owners, strict=True):
        if pieces and pieces[-1][0] == owner:
            pieces[-1] = (owner, pieces[-1][1] + letter)
        else:
            pieces.append((owner, letter))
    return pieces


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


PALETTE = ("#1f6f8b", "#e4572e", "#7a5195", "#3a9d5d", "#c99700", "#5b6770")


def save_png(
    path: Path, curves: Sequence[Curve], *, title: str, x_label: str, y_label: str, goal: float | None
) -> None:
    """Write one run's curves as a picture, the first of them pale.

    Args:
        goal: a level to mark with a dashed line.

    Raises:
        ImportError: matplotlib is not installed.
        OSError: the file cannot be written.
    """
    colours = ("#9db4c0", *PALETTE)
    save_picture(path, curves, title=title, x_label=x_label, y_label=y_label, goal=goal, colours=colours)


def save_picture(
    path: Path,
    curves: Sequence[Curve],
    *,
    title: str,
    x_label: str,
    y_label: str,
    goal: float | None = None,
    shades: Sequence[Shade] = (),
    colours: Sequence[str] = PALETTE,
    below: Sequence[str] = (),
) -> None:
    """Write curves as .png, .svg or .pdf, or as a page (.html) that holds the drawing.

    Args:
        goal: a level to mark with a dashed line.
        shades: the interval of each curve.
        colours: of the curves in turn.
        below: pieces of HTML that stand below the drawing of a page.

    Raises:
        ImportError: matplotlib is not installed.
        OSError: the file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    _draw_curves(axes, curves, shades, colours)
    if goal is not None:
        axes.axhline(goal, color="#777777", linestyle="--", linewidth=1, label=f"goal {goal:g}")
    axes.set(title=title, xlabel=x_label, ylabel=y_label)
    axes.xaxis.set_major_formatter(lambda value, _position: short(value))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    axes.margins(x=0.01)
    axes.legend(frameon=False, loc="best", fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix.lower() == ".html":
        path.write_text(_page(figure, title, below), encoding="utf-8")
    else:
        figure.savefig(path, metadata={"Software": "heddle"} if path.suffix.lower() == ".png" else None)


def _draw_curves(axes: Any, curves: Sequence[Curve], shades: Sequence[Shade], colours: Sequence[str]) -> None:
    """Lines, with marks where there are few points, and behind each line its interval."""
    for place, curve in enumerate(curves):
        colour, points = colours[place % len(colours)], _finite(curve.points)
        if points:
            few = len(points) <= 60 and (place > 0 or len(curves) == 1)
            axes.plot(
                *zip(*points, strict=True), label=curve.label, color=colour, lw=1.8, marker="o" if few else None, ms=4
            )
        if place < len(shades):
            shade = shades[place]
            axes.fill_between(shade.x, shade.low, shade.high, color=colour, alpha=0.18, linewidth=0)


def _page(figure: "Figure", title: str, below: Sequence[str]) -> str:
    """A page that holds the drawing itself, what stands below it, and asks for nothing."""
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg")
    svg = drawn.getvalue()
    style = "body{margin:2rem auto;max-width:60rem;font-family:sans-serif}svg{width:100%;height:auto}"
    style += "table{margin-top:1.5rem;border-spacing:1rem .2rem}"
    head = f'<meta charset="utf-8"><title>{html.escape(title)}</title><style>{style}</style>'
    return f"<!doctype html><html><head>{head}</head><body>{svg[svg.index('<svg') :]}{''.join(below)}</body></html>\n"
