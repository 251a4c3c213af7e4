"""Markup: facts, tables and curves as HTML for notebooks. Everything that is given is text, and is escaped.

It knows nothing of experiments, loads nothing and draws with SVG alone, so that a saved notebook shows it without us.
"""

import math
from collections.abc import Sequence
from html import escape

WIDTH, HEIGHT, EDGE = 480, 120, 6
MOST_POINTS = 400
"""Of a curve that are drawn: its lowest and highest in each of half as many stretches."""
MOST_ROWS = 200
_GREEN, _RED, _GREY = "#2a7d3f", "#b3261e", "#777"
COLOURS = {
    **dict.fromkeys(("running", "playing", "alive", "training", "leading", "completed"), _GREEN),
    **dict.fromkeys(("failed", "stalled", "dead", "absent", "quarantined", "degraded"), _RED),
}


def text(value: object) -> str:
    """Any value as text that is no markup."""
    if isinstance(value, float):
        return f"{value:,.0f}" if 1_000 <= abs(value) < 1e15 else f"{value:,.4g}"
    return escape(f"{value:,}" if type(value) is int else str(value))


def state(word: str) -> str:
    """A state, in the colour of how good it is."""
    return f'<b style="color:{COLOURS.get(word, _GREY)}">{escape(word)}</b>'


def facts(title: str, word: str, pairs: Sequence[tuple[str, object]]) -> str:
    """A thing, its state, and what is known of it; what is empty is left out."""
    rows = "".join(
        f'<tr><td style="text-align:left;color:{_GREY}">{escape(name)}</td>'
        f'<td style="text-align:left">{text(value)}</td></tr>'
        for name, value in pairs
        if value not in ("", None)
    )
    return f"<div><b>{escape(title)}</b> {state(word) if word else ''}<table>{rows}</table></div>"


def table(header: Sequence[str], rows: Sequence[Sequence[object]], *, empty: str) -> str:
    """A table; of very many rows the first ones, and how many more there are."""
    if not rows:
        return f"<div>{escape(empty)}</div>"
    head = "".join(f'<th style="text-align:left">{escape(name)}</th>' for name in header)
    body = "".join(
        "<tr>" + "".join(f'<td style="text-align:left">{text(cell)}</td>' for cell in row) + "</tr>"
        for row in rows[:MOST_ROWS]
    )
    more = f"<div>and {len(rows) - MOST_ROWS:,} more</div>" if len(rows) > MOST_ROWS else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def curve(points: Sequence[tuple[float, float]], *, label: str) -> str:
    """A line as SVG, with its ends in figures; numbers that are none are left out."""
    known = [point for point in points if math.isfinite(point[0]) and math.isfinite(point[1])]
    if len(known) < 2:
        return f"<div>{escape(label)}: {text(known[0][1]) if known else 'nothing measured yet'}</div>"
    (left, right), (low, high) = (_ends([point[axis] for point in known]) for axis in (0, 1))
    drawn = " ".join(
        f"{_place(x, left, right, WIDTH):.1f},{HEIGHT - _place(y, low, high, HEIGHT):.1f}" for x, y in thinned(known)
    )
    said = f"{label}: {text(known[0][1])} to {text(known[-1][1])}, least {text(low)}, most {text(high)}"
    return (
        f'<div><svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" role="img">'
        f"<title>{escape(said)}</title>"
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#ccc"/>'
        f'<polyline points="{drawn}" fill="none" stroke="#1f6feb" stroke-width="1.5"/></svg>'
        f'<div style="color:{_GREY}">{escape(said)}; steps {text(left)} to {text(right)}</div></div>'
    )


def thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """No more than `MOST_POINTS` of a curve, its ends and its extremes among them."""
    if len(points) <= MOST_POINTS:
        return list(points)
    each = math.ceil(len(points) / (MOST_POINTS // 2 - 1))
    kept = [points[0]]
    for start in range(0, len(points), each):
        some = points[start : start + each]
        ends = {min(some, key=lambda point: point[1]), max(some, key=lambda point: point[1])}
        kept += [point for point in some if point in ends][:2]
    return [*kept, points[-1]]


def _ends(values: Sequence[float]) -> tuple[float, float]:
    return min(values), max(values)


def _place(value: float, low: float, high: float, size: int) -> float:
    share = 0.5 if high == low else (value - low) / (high - low)
    return EDGE + share * (size - 2 * EDGE)
