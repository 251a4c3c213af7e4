"""`results`: what the experiments of a group reached, one line for each combination.

It never changes anything.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from heddle.cli.completion import group_names
from heddle.cli.options import command, connect, output_option, print_json, redis_option
from heddle.cli.tables import duration, print_table

if TYPE_CHECKING:
    from heddle.broker.records import Status
    from heddle.states.results import Result


@command("results", example="heddle results\nheddle results lr\nheddle results lr --metric best_return -o json")
@click.argument("group", metavar="[GROUP]", required=False, shell_complete=group_names)
@click.option("--metric", metavar="NAME", help="What to compare; eval_return, or return without evaluations.")
@output_option
@redis_option
def results(group: str | None, metric: str | None, output: str, redis_url: str | None) -> None:
    """Show what the experiments of GROUP reached: per combination the mean over seeds and its 95 % interval; without
    GROUP which groups there are.

    Those that still run count with what they have now, failed ones not at all; of a spec that ran twice the newest run
    counts.
    """
    from heddle.errors import NotFound

    if group is None:
        if metric is not None:
            raise click.UsageError("--metric is of a group, say which", click.get_current_context())
        list_groups(output, redis_url)
        return
    with connect(redis_url) as client:
        chosen, found = client.group(group).results(metric)
    if metric is not None and not any(score is not None for one in found for score in one.scores):
        raise NotFound(f"no experiment of {group} has measured {metric!r}; heddle status EXP -o json shows the metrics")
    if output == "json":
        told = {"group": group, "metric": chosen, "results": [_as_json(one) for one in found]}
        print_json(told, ids=[experiment for one in found for experiment in one.experiments])
        return
    header = ("COMBINATION", "DONE", "STEPS", chosen.upper(), "95 % INTERVAL", "WORST", "BEST", "REST")
    print_table(header, [_row(one) for one in found], empty="nothing yet")


def list_groups(output: str, redis_url: str | None) -> None:
    """Show every group, newest first: how many experiments, since when, and how they are."""
    with connect(redis_url) as client:
        known = client.experiments()
        now_ms = client.broker.conn.now_ms()
    groups: dict[str, list[Status]] = {}
    for status in known:
        if status.group:
            groups.setdefault(status.group, []).append(status)
    if output == "json":
        facts = [
            {"group": name, "experiments": [one.experiment for one in ones], "created_ms": min(map(_created, ones))}
            for name, ones in groups.items()
        ]
        print_json({"groups": facts})
        return
    rows = [
        (name, len(ones), duration(now_ms - min(map(_created, ones))), counted([one.state for one in ones]))
        for name, ones in groups.items()
    ]
    header = ("GROUP", "EXPERIMENTS", "AGE", "STATES")
    print_table(header, rows, empty="no group; make one with: heddle enqueue exp.toml --seeds 3")


def _created(status: "Status") -> int:
    return status.created_ms


def counted(states: Sequence[str]) -> str:
    """How many there are of each, e.g. "2 completed, 1 running"."""
    return ", ".join(f"{states.count(state)} {state}" for state in sorted(set(states)))


def _as_json(result: "Result") -> dict[str, Any]:
    values = dict(value.partition("=")[::2] for value in result.values)
    return {**asdict(result), "values": values, "done": result.done}


def _row(result: "Result") -> Sequence[object]:
    known = [score for score in result.scores if score is not None]
    interval = "-" if result.low is None or result.high is None else f"{result.low:,.2f} .. {result.high:,.2f}"
    steps = sum(result.env_steps) / len(result.env_steps)
    return (
        " ".join(result.values) or result.name,
        f"{result.done}/{len(result.states)}",
        f"{steps:,.0f}",
        _score(result.mean),
        interval,
        _score(min(known, default=None)),
        _score(max(known, default=None)),
        counted([state for state in result.states if state not in ("completed", "stopped")]),
    )


def _score(value: float | None) -> str:
    return "-" if value is None else f"{value:,.2f}"
