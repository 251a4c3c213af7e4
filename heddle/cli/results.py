"""`results`: what the experiments of a group reached, one line for each combination.

It never changes anything.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from heddle.cli.options import command, connect, output_option, print_json, redis_option
from heddle.cli.tables import print_table

if TYPE_CHECKING:
    from heddle.states.results import Result


@command("results", example="heddle results lr\nheddle results lr --metric best_return -o json")
@click.argument("group", metavar="GROUP")
@click.option("--metric", metavar="NAME", help="What to compare; eval_return, or return without evaluations.")
@output_option
@redis_option
def results(group: str, metric: str | None, output: str, redis_url: str | None) -> None:
    """Show what the experiments of GROUP reached: per combination the mean over seeds and its 95 % interval.

    Those that still run count with what they have now, failed ones not at all; of a spec that ran twice the newest run
    counts.
    """
    from heddle.errors import NotFound

    with connect(redis_url) as client:
        chosen, found = client.group(group).results(metric)
    if metric is not None and not any(score is not None for one in found for score in one.scores):
        raise NotFound(f"no experiment of {group} has measured {metric!r}; heddle status EXP -o json shows the metrics")
    if output == "json":
        print_json({"group": group, "metric": chosen, "results": [_as_json(one) for one in found]})
        return
    header = ("COMBINATION", "DONE", "STEPS", chosen.upper(), "95 % INTERVAL", "WORST", "BEST", "STATES")
    print_table(header, [_row(one) for one in found], empty="nothing yet")


def _as_json(result: "Result") -> dict[str, Any]:
    values = dict(value.partition("=")[::2] for value in result.values)
    return {**asdict(result), "values": values, "done": result.done}


def _row(result: "Result") -> Sequence[object]:
    known = [score for score in result.scores if score is not None]
    interval = "-" if result.low is None or result.high is None else f"{result.low:,.2f} .. {result.high:,.2f}"
    steps = sum(result.env_steps) / len(result.env_steps)
    states = [f"{result.states.count(state)} {state}" for state in sorted(set(result.states))]
    return (
        " ".join(result.values) or result.name,
        f"{result.done}/{len(result.states)}",
        f"{steps:,.0f}",
        _score(result.mean),
        interval,
        _score(min(known, default=None)),
        _score(max(known, default=None)),
        ", ".join(states),
    )


def _score(value: float | None) -> str:
    return "-" if value is None else f"{value:,.2f}"
