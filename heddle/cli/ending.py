"""Ends explained: the summary that `run`, `enqueue --follow`, `enqueue --wait` and `wait` show of an experiment.

It never changes anything.
"""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from heddle.cli.accounts import accounting_line, adds_up
from heddle.cli.live import clock_text
from heddle.cli.tables import number, print_facts

if TYPE_CHECKING:
    from heddle.client import Client
    from heddle.states.ending import Ending

log = logging.getLogger("heddle.cli")

SHOWN = 5
Facts = list[tuple[str, object]]


def tell_ending(client: "Client", experiment: str, *, to_stderr: bool = True) -> None:
    """Print what became of an experiment, as far as it can be asked."""
    from heddle.errors import HeddleError
    from heddle.states.ending import ending_of

    try:
        ending = ending_of(client.broker, experiment)
    except HeddleError as error:
        click.echo(f"what became of it cannot be asked: {' '.join(str(error).split())}", err=True)
        return
    print_facts(facts_of(ending), to_stderr=to_stderr)
    click.echo("next:", err=to_stderr)
    for line in next_lines(ending):
        click.echo(f"  {line}", err=to_stderr)


def facts_of(ending: "Ending") -> Facts:
    """Why it ended, what it reached and what it took, by name."""
    status = ending.status
    cpu = f", {ending.trainer_cpu_s:,.0f} s of processor time in its trainer" if ending.trainer_cpu_s else ""
    how = ", ".join(
        f"{'killed' if name == 'died' else name} {number}" for name, number in ending.followed.items() if number
    )
    again = _times(ending.seats - 1, "new trainer") + (f" ({how})" if how else "") if ending.seats > 1 else ""
    moved = f"{_times(ending.moved, 'shard')} taken from workers that ended" if ending.moved else ""
    return [
        ("ended", f"{status.state}{f': {status.reason}' if status.reason else ''}"),
        ("return", number(ending.returned) + " (last 100 training episodes)" if ending.returned is not None else ""),
        ("eval", number(ending.eval_return) if ending.eval_return is not None else ""),
        ("steps", f"{ending.env_steps:,} in {clock_text(ending.wall_s)}, {ending.speed:,.0f} steps/s{cpu}"),
        ("batches", accounting_line(ending.flow)),
        ("trouble", "" if adds_up(ending.flow) else "the accounting does not add up: a fault of Heddle's own"),
        *_quarantined(ending),
        *listed("failed", ending.failures),
        ("restarts", ", ".join(part for part in (again, moved) if part)),
        *listed("", ending.restarts, newest_last=True),
        ("checkpoint", ending.checkpoint or "none"),
    ]


def _quarantined(ending: "Ending") -> Facts:
    """Which shards nobody played any more: a run that ended well without them trained on less than its spec says."""
    if not ending.unplayed:
        return []
    played = f"{ending.shards - len(ending.unplayed)} of {ending.shards} shards were played to the end"
    return [("quarantined", played), *listed("", ending.quarantined)]


def listed(name: str, lines: Sequence[str], *, newest_last: bool = False) -> Facts:
    """Some of many lines under one name."""
    shown = lines[-SHOWN:] if newest_last else lines[:SHOWN]
    more = len(lines) - len(shown)
    facts: Facts = [(name if not place else "", line) for place, line in enumerate(shown)]
    return [*facts, ("", f"and {more} more: heddle logs --level warning")] if more else facts


def _times(count: int, what: str) -> str:
    return f"{count} {what}{'s' if count != 1 else ''}"


def next_lines(ending: "Ending") -> list[str]:
    """Commands that are worth a try now."""
    experiment, lines = ending.status.experiment, []
    if ending.status.state == "failed":
        lines.append(f"heddle why {experiment}")
        if ending.failures:
            lines.append(f"heddle shards {experiment}")
    lines += [f"heddle repro {experiment}/{shard}" for shard in ending.unplayed[:1]]
    if ending.unplayed and not ending.status.ended:
        lines.append(f"heddle shards release {experiment}")
    if ending.checkpoint:
        lines += [f"heddle eval {ending.checkpoint} --episodes 100", f"heddle plot {experiment}"]
        steps = f" --set budget.env_steps={2 * ending.env_steps}" if ending.status.state == "completed" else ""
        lines.append(f"heddle enqueue --resume {experiment}{steps}")
    return lines or [f"heddle why {experiment}"]


def asked(client: "Client", experiment: str) -> "Ending | None":
    """How it ended; None where the broker cannot be asked any more."""
    from heddle.errors import HeddleError
    from heddle.states.ending import ending_of

    try:
        return ending_of(client.broker, experiment)
    except HeddleError as error:
        log.debug("cannot ask how it ended experiment=%s error=%s", experiment, error)
        return None
