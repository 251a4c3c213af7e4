"""Tables and times for people: aligned columns of plain text that a terminal and a pipe show alike.

It never colours: what is printed here may be cut by `awk`.
"""

import re
import shutil
import sys
import textwrap
from collections.abc import Sequence

import click

GAP = "  "
BELOW = "    "
LEAST = 24
"""A last column that is narrower than this is written below its row."""


def print_table(
    header: Sequence[str], rows: Sequence[Sequence[object]], *, empty: str, to_stderr: bool = False
) -> None:
    """Print `rows` under `header`, or `empty` when there are none."""
    if not rows:
        click.echo(empty, err=to_stderr)
        return
    for line in table_lines(header, rows, terminal_columns(to_stderr=to_stderr)):
        click.echo(line, err=to_stderr)


def table_lines(header: Sequence[str], rows: Sequence[Sequence[object]], columns: int | None) -> list[str]:
    """A table, whose last column is broken between words where `columns` end.

    It goes on in its column, or, where that would be too narrow, in lines of its own below its row.
    """
    cells = [[str(cell) for cell in row] for row in [header, *rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    at = sum(widths[:-1]) + len(GAP) * (len(widths) - 1)
    heads = [GAP.join(cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=False)) for row in cells]
    if columns is None or at + widths[-1] <= columns or len(widths) == 1:
        return [f"{head}{GAP}{row[-1]}".rstrip() if head else row[-1] for head, row in zip(heads, cells, strict=True)]
    if columns - at >= LEAST:
        return [
            line
            for head, row in zip(heads, cells, strict=True)
            for line in broken(f"{head}{GAP}", row[-1], columns, " " * at) or [head.rstrip()]
        ]
    lines = [heads[0].rstrip()]
    for head, row in zip(heads[1:], cells[1:], strict=True):
        lines += [head.rstrip(), *broken(BELOW, row[-1], columns, BELOW)]
    return lines


def say(text: str, *, to_stderr: bool = False) -> None:
    """One line, on a terminal broken between words."""
    for line in said(text, terminal_columns(to_stderr=to_stderr)):
        click.echo(line, err=to_stderr)


def said(text: str, columns: int | None) -> list[str]:
    """`text` in lines of at most `columns`; what comes behind "; ", which is often to be copied, begins a new one."""
    if columns is None or len(text) <= columns:
        return [text]
    parts = re.split(r"(?<=;) ", text)
    return [line for number, part in enumerate(parts) for line in broken(BELOW if number else "", part, columns, BELOW)]


def terminal_columns(*, to_stderr: bool = False) -> int | None:
    """How wide the terminal is that is written to; None when it is none, or when -o wide asks for whole lines."""
    context = click.get_current_context(silent=True)
    if context is not None and context.meta.get("heddle.output") == "wide":
        return None
    return shutil.get_terminal_size().columns if (sys.stderr if to_stderr else sys.stdout).isatty() else None


def print_facts(facts: Sequence[tuple[str, object]], *, to_stderr: bool = False) -> None:
    """Print names and values, one a line; empty values are left out."""
    shown = [(name, str(value)) for name, value in facts if value not in ("", None)]
    width = max((len(name) for name, _ in shown), default=0)
    columns = terminal_columns(to_stderr=to_stderr)
    for name, value in shown:
        for line in fact_lines(f"{name:<{width}}  ", value, columns):
            click.echo(line, err=to_stderr)


def fact_lines(head: str, value: str, columns: int | None) -> list[str]:
    """`head` and `value`, broken between words where `columns` end; paths stay whole, to be copied."""
    if columns is None or len(head) + len(value) <= columns or columns < 2 * len(head):
        return [head + value]
    return broken(head, value, columns, " " * len(head))


def broken(head: str, value: str, columns: int, indent: str) -> list[str]:
    """`head` and `value` in lines of at most `columns`, all but the first behind `indent`; [] for no value."""
    return textwrap.wrap(
        value,
        columns,
        initial_indent=head,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def duration(milliseconds: float) -> str:
    """A time span in its two largest units, e.g. "1m12s"."""
    seconds = max(0.0, milliseconds / 1000)
    if seconds < 10:
        return f"{seconds:.1f}s"
    whole = int(seconds)
    for size, unit, small_size, small in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            return f"{whole // size}{unit}{whole % size // small_size}{small}"
    return f"{whole}s"


def number(value: object) -> str:
    """A metric for people; "-" when there is none."""
    return f"{value:,.1f}" if isinstance(value, int | float) else "-"
