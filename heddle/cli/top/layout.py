"""Layout: columns that fit, and lines that are never wider than the screen.

Pure: values in, rich texts out.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from heddle.cli.live import STATE_COLOURS

GAP = 1
STYLES = {
    **STATE_COLOURS,
    "playing": "green",
    "alive": "green",
    "training": "green",
    "leading": "green",
    "draining": "yellow",
    "quarantined": "bold red",
    "absent": "bold red",
    "dead": "red",
    "ended": "dim",
}
HEAD = "bold reverse"
CURSOR = "on grey23"


@dataclass(frozen=True, slots=True)
class Cell:
    """What stands in one place of a table, and how."""

    text: str
    style: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table.

    Attributes:
        title, width: above it; in characters. A width of 0 takes what is left.
        right: numbers stand at the right.
        from_columns: shown only on a screen that is at least so wide.
    """

    title: str
    width: int
    right: bool = False
    from_columns: int = 0


def fitting(columns: Sequence[Column], width: int) -> list[int]:
    """Which of `columns` are shown on a screen that is `width` wide."""
    return [place for place, column in enumerate(columns) if column.from_columns <= width]


def header(columns: Sequence[Column], shown: Sequence[int], width: int) -> Text:
    """The line with the titles."""
    cells = [Cell(columns[place].title) for place in shown]
    return Text(row([columns[place] for place in shown], cells, width).plain, HEAD)


def row(columns: Sequence[Column], cells: Sequence[Cell], width: int, *, chosen: bool = False) -> Text:
    """One line of a table, exactly `width` wide."""
    line = Text("▸ " if chosen else "  ", no_wrap=True)
    left = width - 2
    for column, cell in zip(columns, cells, strict=True):
        size = min(column.width or left, left)
        if size <= 0:
            break
        line.append(fit(cell.text, size, right=column.right), cell.style)
        line.append(" " * GAP)
        left -= size + GAP
    whole = exactly(line, width)
    if chosen:
        whole.stylize(CURSOR)
    return whole


def fit(text: str, width: int, *, right: bool = False) -> str:
    """`text` in exactly `width` characters, cut with a mark."""
    size = cell_len(text)
    if size > width:
        return set_cell_size(text, max(0, width - 1)) + "…"
    return " " * (width - size) + text if right else text + " " * (width - size)


def exactly(line: Text, width: int) -> Text:
    """`line`, exactly `width` wide."""
    line.truncate(width, overflow="ellipsis" if line.cell_len > width + GAP else "crop", pad=True)
    return line


def parts(*pieces: tuple[str, str] | str, width: int) -> Text:
    """Pieces of one line, those that are empty left out."""
    line = Text(no_wrap=True)
    for piece in pieces:
        text, style = piece if isinstance(piece, tuple) else (piece, "")
        if text:
            line.append(text, style)
    return exactly(line, width)


def filled(lines: Sequence[Text], height: int, width: int) -> list[Text]:
    """Exactly `height` lines."""
    found = list(lines[:height])
    return found + [exactly(Text(""), width) for _ in range(height - len(found))]


def state_cell(state: str) -> Cell:
    """A state in its colour."""
    return Cell(state, STYLES.get(state, ""))


def short(value: float | None) -> str:
    """A number in at most six characters: 950, 12.3k, 4.56M; "-" for none."""
    if value is None or value != value:
        return "-"
    size = abs(value)
    for limit, divisor, unit in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if size >= limit:
            scaled = value / divisor
            return f"{scaled:.3g}{unit}" if abs(scaled) < 999.5 else f"{scaled:.0f}{unit}"
    return f"{value:.0f}"


def score(value: float | None) -> str:
    """A return: few digits, but never none."""
    if value is None or value != value:
        return "-"
    size = abs(value)
    return f"{value:.0f}" if size >= 1000 else f"{value:.1f}" if size >= 1 or value == 0 else f"{value:.3g}"


def percent(value: float | None) -> str:
    """A share; "-" for none."""
    return "-" if value is None else f"{value:.0%}"


def size(count: float) -> str:
    """Bytes for people."""
    for limit, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= limit:
            scaled = count / limit
            return f"{scaled:.1f} {unit}" if scaled < 10 else f"{scaled:.0f} {unit}"
    return f"{count:.0f} B"
