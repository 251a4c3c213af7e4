"""`plot` and `compare`: learning curves of one or several experiments, in the terminal and as a picture.

They never change anything.
"""

import math
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from heddle import markup
from heddle.cli.completion import experiment_names
from heddle.cli.curve import Curve, Shade, braille_cells, save_picture, short
from heddle.cli.options import command, output_option, print_json, redis_option
from heddle.cli.series import (
    AXES,
    Axis,
    Band,
    Series,
    band,
    check_metric,
    find_all,
    grouped,
    interval,
    told_differences,
)
from heddle.cli.tables import print_table
from heddle.errors import MissingExtra, UsageError

COLOURS = ("cyan", "yellow", "magenta", "green", "blue", "red")
NO_DIFFERENCE = "their specs differ in nothing but names and seeds"
Table = tuple[Sequence[str], Sequence[Sequence[object]]]
PICTURES = (".png", ".svg", ".pdf", ".html")

metric_option = click.option("--metric", default="return", show_default=True, help="What is drawn; any metric's name.")
axis_option = click.option(
    "--x", "axis", type=click.Choice(list(AXES)), default="steps", show_default=True, help="What it is drawn over."
)


def _picture(_context: click.Context, _parameter: click.Parameter, value: str | None) -> Path | None:
    if value is not None and Path(value).suffix.lower() not in PICTURES:
        raise click.BadParameter(f"{value!r} must end with {', '.join(PICTURES)}")
    return None if value is None else Path(value)


picture_option = click.option(
    "--to", "--png", "picture", metavar="FILE", callback=_picture, help="Write a picture: .png, .svg, .pdf or .html."
)


@command("plot", example="heddle plot cartpole\nheddle plot runs/cartpole-7f3a2b --metric eval_return --to curve.png")
@click.argument("experiments", metavar="EXP...", nargs=-1, required=True, shell_complete=experiment_names)
@metric_option
@axis_option
@picture_option
@output_option
@redis_option
def plot(
    experiments: Sequence[str], metric: str, axis: Axis, picture: Path | None, output: str, redis_url: str | None
) -> None:
    """Draw a metric of each EXP: a name or id that the broker knows, or the folder of a run."""
    series = find_all(list(dict.fromkeys(experiments)), redis_url)
    check_metric(series, metric)
    curves = [Curve(one.name, one.curve(metric, axis)) for one in series]
    if output == "json":
        told = [
            {"experiment": curve.label, "points": curve.points, "cut": one.cut}
            for curve, one in zip(curves, series, strict=True)
        ]
        print_json({"metric": metric, "x": axis, "curves": told}, ids=[one.name for one in series])
        return
    draw(curves, x_label=AXES[axis][1], title=metric)
    _tell_cut(series)
    if picture is not None:
        save(picture, curves, title=metric, x_label=AXES[axis][1], y_label=metric)


@command("compare", example="heddle compare a-1f0c22 b-7e11aa\nheddle compare runs/cartpole-* --to compare.html")
@click.argument("experiments", metavar="EXP...", nargs=-1, required=True, shell_complete=experiment_names)
@metric_option
@axis_option
@picture_option
@output_option
@redis_option
def compare(
    experiments: Sequence[str], metric: str, axis: Axis, picture: Path | None, output: str, redis_url: str | None
) -> None:
    """Compare runs: those that differ in their seed alone are one line with its mean and 95 % interval."""
    series = find_all(list(dict.fromkeys(experiments)), redis_url)
    check_metric(series, metric)
    groups = grouped(series)
    bands = [made for label, runs in groups if (made := band(label, runs, metric, axis)) is not None]
    rows = [_row(label, runs, metric) for label, runs in groups]
    if output == "json":
        told = {"metric": metric, "groups": rows, "differences": told_differences(series)}
        print_json(told, ids=[one.name for one in series])
        return
    curves = [Curve(one.label, tuple(zip(one.x.tolist(), one.mean.tolist(), strict=True))) for one in bands]
    draw(curves, x_label=AXES[axis][1], title=f"{metric}, mean over runs", notes=[_interval_of(one) for one in bands])
    _tell_cut(series)
    finals, differing = _final_table(rows, metric), _difference_table(series)
    click.echo("")
    print_table(*finals, empty="nothing to compare")
    if len(series) > 1:
        click.echo("")
        print_table(*differing, empty=NO_DIFFERENCE)
    if picture is not None:
        save(
            picture,
            curves,
            title=f"{metric}, mean and 95 % interval over runs" if any(len(one.runs) > 1 for one in bands) else metric,
            x_label=AXES[axis][1],
            y_label=metric,
            shades=[_shade(one) for one in bands],
            below=[markup.table(*finals, empty=""), markup.table(*differing, empty=NO_DIFFERENCE)],
        )


def draw(curves: Sequence[Curve], *, x_label: str, title: str, notes: Sequence[str] = ()) -> None:
    """Curves on the terminal, each in its colour, with a legend that says the last and the best value.

    Args:
        notes: more to say of each.
    """
    coloured = sys.stdout.isatty()
    width = max(20, min(100, shutil.get_terminal_size().columns - 12)) if coloured else 72
    click.echo(title)
    for line in braille_cells(curves, width=width, height=14, x_label=x_label):
        parts = [click.style(text, fg=_colour(owner)) if coloured and owner >= 0 else text for owner, text in line]
        click.echo("".join(parts))
    for place, curve in enumerate(curves):
        values = [y for _, y in curve.points if math.isfinite(y)]
        told = f"last {short(values[-1])}, highest {short(max(values))}" if values else "nothing measured"
        mark = click.style("━━", fg=_colour(place)) if coloured else f"{place + 1}."
        note = f", {notes[place]}" if place < len(notes) else ""
        click.echo(f"  {mark} {curve.label}  {told}{note}")


def _tell_cut(series: Sequence[Series]) -> None:
    for one in series:
        if one.cut:
            begins = f"begins at update {one.points[0][0]:,}" if one.points else "has no curve left"
            click.echo(
                f"{one.name} {begins}: the broker has let go of {one.cut:,} measurements. "
                f"All are in the run's folder, where its trainer ran: heddle plot runs/{one.name}"
            )


def save(picture: Path, curves: Sequence[Curve], **look: Any) -> None:
    """Write the picture. Raises MissingExtra, HeddleError."""
    try:
        save_picture(picture, curves, **look)
    except ImportError as error:
        raise MissingExtra("a picture of curves", "torch") from error
    except OSError as error:
        raise UsageError(f"cannot write {picture}: {error.strerror or error}") from error
    click.echo(f"\nwrote {picture}")


def _row(label: str, runs: Sequence[Series], metric: str) -> dict[str, Any]:
    """The final numbers of one setting."""
    finals = [value for one in runs if math.isfinite(value := one.last(metric))]
    steps = [one.last("env_steps") for one in runs]
    wall = [one.last("wall_seconds") for one in runs]
    speeds = [s / w for s, w in zip(steps, wall, strict=True) if w > 0]
    best = [max(y for _, y in curve) for one in runs if (curve := one.curve(metric, "updates"))]
    return {
        "label": label,
        "runs": [one.name for one in runs],
        "cut": sum(one.cut for one in runs),
        "final": _mean(finals),
        "interval": interval(finals),
        "highest": _mean(best),
        "env_steps": _mean(steps),
        "wall_s": _mean(wall),
        "steps_per_second": _mean(speeds),
    }


def _final_table(rows: Sequence[dict[str, Any]], metric: str) -> Table:
    """The final numbers of each setting, for people."""
    shown = []
    for row in rows:
        half = f" ± {short(row['interval'])}" if math.isfinite(row["interval"]) else ""
        numbers = [short(row[name]) for name in ("highest", "env_steps", "wall_s", "steps_per_second")]
        shown.append((row["label"], len(row["runs"]), f"{short(row['final'])}{half}", *numbers))
    return ("SETTING", "RUNS", f"LAST {metric.upper()}", "HIGHEST", "STEPS", "SECONDS", "STEPS/S"), shown


def _difference_table(series: Sequence[Series]) -> Table:
    """What the specs differ in, and of what the runs were made, side by side."""
    from heddle.origin import shortened

    found = told_differences(series)
    rows = [(key, *(shortened(v) if key == "commit" else v for v in values)) for key, values in found.items()]
    return ("KEY", *(one.name for one in series)), rows


def _interval_of(one: Band) -> str:
    """What the ± of a setting is, in figures at its end."""
    if not math.isfinite(half := float(one.half[-1])):
        return "one run, so without an interval"
    mean = float(one.mean[-1])
    return f"95 % interval of the mean over {len(one.runs)} runs {short(mean - half)} to {short(mean + half)}"


def _mean(values: Sequence[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else math.nan


def _shade(one: Band) -> Shade:
    low, high = one.mean - one.half, one.mean + one.half
    return Shade(tuple(one.x.tolist()), tuple(low.tolist()), tuple(high.tolist()))


def _colour(place: int) -> str:
    return COLOURS[place % len(COLOURS)]
