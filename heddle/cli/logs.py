"""`logs`: what every role said, from the one log in the broker, filtered and followed.

It never changes anything.
"""

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import click

from heddle.cli.audience import has_left
from heddle.cli.commands import seconds
from heddle.cli.completion import experiment_names, worker_names
from heddle.cli.options import (
    FORMATS,
    SCHEMA,
    command,
    connect,
    output_form,
    print_json,
    redis_option,
    remember_output,
)
from heddle.cli.tables import BELOW, broken, terminal_columns
from heddle.cli.why import clock_time, spans_days
from heddle.clock import Clock, SystemClock

if TYPE_CHECKING:
    from heddle.broker import Broker
    from heddle.broker.lines import Event, Place

LEVELS = ("debug", "info", "warning", "error")
COLOURS = {"debug": "bright_black", "warning": "yellow", "error": "red"}
ROLES = ("coordinator", "supervisor", "worker", "trainer", "tracker", "client", "user")
FOLLOW_S = 0.5
PAGE = 1_000


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which lines are shown.

    Attributes:
        experiment: an id, None for all; a line about no experiment is of none.
        worker: start of a worker's id; role: who says it; "" for all.
        shard: which one a line is about, None for all.
        level: the least.
        pattern: what must be in the line; None for anything.
        after_ms: server ms from which on.
        known: roles and ids of lines that were shown already.
    """

    experiment: str | None = None
    worker: str = ""
    role: str = ""
    level: str = "info"
    pattern: re.Pattern[str] | None = None
    after_ms: int = 0
    known: frozenset[tuple[str, str]] = frozenset()
    shard: int | None = None

    def matches(self, event: "Event") -> bool:
        """Whether a line is one of them; a line that names the worker is about it, whoever says it."""
        if (event.role, event.entry_id) in self.known:
            return False
        if self.experiment is not None and event.experiment != self.experiment:
            return False
        if self.shard is not None and event.shard != self.shard:
            return False
        if self.worker and not event.worker.startswith(self.worker) and self.worker not in event.message:
            return False
        if self.role and event.role != self.role:
            return False
        if LEVELS.index(event.level if event.level in LEVELS else "info") < LEVELS.index(self.level):
            return False
        if event.time_ms < self.after_ms:
            return False
        return self.pattern is None or self.pattern.search(event.message) is not None


def _pattern(_context: click.Context, _parameter: click.Parameter, value: str | None) -> re.Pattern[str] | None:
    try:
        return None if value is None else re.compile(value)
    except re.error as error:
        raise click.BadParameter(f"{value!r} is no regular expression: {error}") from error


@command(
    "logs",
    example="heddle logs -f\nheddle logs cartpole --level warning --since 10m\nheddle logs --worker host-12w1",
)
@click.argument("named", metavar="[EXP]", required=False, shell_complete=experiment_names)
@click.option("-f", "--follow", is_flag=True, help="Go on with what is said from now on, also by who starts later.")
@click.option("--exp", "experiment", metavar="EXP", help="As EXP.", shell_complete=experiment_names)
@click.option(
    "--worker",
    metavar="ID",
    default="",
    shell_complete=worker_names,
    help="Only of or about this worker; the start of its id is enough.",
)
@click.option("--shard", metavar="N", type=click.IntRange(0), help="Only about shard N, where a line says it of one.")
@click.option("--role", type=click.Choice(ROLES), help="Only what this role says.")
@click.option("--level", type=click.Choice(LEVELS), default="info", show_default=True, help="Nothing below it.")
@click.option("--since", metavar="TIME", callback=seconds, help="Not older than this, e.g. 10m.")
@click.option("--grep", metavar="RE", callback=_pattern, help="Only lines in which this regular expression is found.")
@click.option("-n", "--last", "count", type=click.IntRange(0), default=200, show_default=True, help="How many at most.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["lines", *FORMATS[1:]]),
    default="lines",
    show_default=True,
    callback=remember_output,
    expose_value=False,
    help="What to print: lines, lines that are not broken, an object, an object a line, or ids of lines.",
)
@redis_option
def logs(
    named: str | None,
    follow: bool,
    experiment: str | None,
    worker: str,
    shard: int | None,
    role: str | None,
    level: str,
    since: float | None,
    grep: re.Pattern[str] | None,
    count: int,
    redis_url: str | None,
) -> None:
    """Show what coordinator, supervisors, workers, trainers and trackers said of EXP (a name or an id), oldest first;
    without EXP of everything."""
    if named and experiment and named != experiment:
        raise click.UsageError(f"two experiments are named, {named} and {experiment}", click.get_current_context())
    form = output_form()
    if follow and form == "json":
        raise click.UsageError("what goes on is no one document: -f takes -o jsonl", click.get_current_context())
    experiment = named or experiment
    with connect(redis_url) as client:
        found = client.experiment(experiment).id if experiment else None
        now_ms = client.broker.conn.now_ms()
        after_ms = now_ms - int(1000 * since) if since is not None else 0
        wanted = Wanted(found, worker, role or "", level, grep, after_ms, shard=shard)
        end = client.broker.events.end()
        shown = client.broker.events.find(wanted.matches, count=count) if count else []
        if form == "json":
            print_json({"lines": [asdict(event) for event in shown]})
            return
        dated = spans_days((event.time_ms for event in shown), now_ms)
        show = SHOWS.get(form, partial(_show, dated=dated, began_ms=now_ms))
        for event in shown:
            show(event)
        if not shown and count:
            is_all = wanted == Wanted(None)
            rest = "waiting for one" if follow else "heddle logs shows all that is there"
            rest = "nobody has said anything yet" if is_all and not follow else rest
            click.echo(rest if is_all else f"no line of the log is like that; {rest}", err=True)
        if follow:
            known = {(event.role, event.entry_id) for event in shown}  # some may have come between the two looks
            fresh = replace(wanted, known=frozenset(known))
            _follow(client.broker, fresh, show, place=end, clock=SystemClock())


def _follow(broker: "Broker", wanted: Wanted, show: Callable[["Event"], None], *, place: "Place", clock: Clock) -> None:
    """For as long as somebody reads; an absence of the broker is told and outlasted."""
    from heddle.errors import BrokerError

    away = False
    while True:
        try:
            events, place = broker.events.after(place, count=PAGE)
        except BrokerError as error:
            if not away:
                click.echo(f"heddle: {error}; waiting for it", err=True)
            away, events = True, []
        else:
            away = False
        for event in events:
            if wanted.matches(event):
                show(event)
        if len(events) < PAGE:
            if has_left(1):
                return  # with nothing to say it would not meet the error
            clock.sleep(FOLLOW_S)


def _show(event: "Event", *, dated: bool, began_ms: int) -> None:
    """One line; with its date where some are of another day than that on which this began."""
    who = " ".join(part for part in (event.role, event.worker) if part)
    shard = f"/{event.shard}" if event.role == "user" and event.shard is not None else ""  # others' messages say it
    about = f" [{event.experiment}{shard}]" if event.experiment else ""
    dated = dated or spans_days([event.time_ms], began_ms)
    head = f"{clock_time(event.time_ms, dated=dated)} {event.level:<7} {who}{about}"
    columns = terminal_columns()  # none with -o wide
    lines = [f"{head} {event.message}"] if columns is None else broken(f"{head} ", event.message, columns, BELOW)
    coloured = click.style(head, fg=COLOURS.get(event.level, "cyan"))
    for line in lines or [head]:
        click.echo(f"{coloured}{line.removeprefix(head)}" if line.startswith(head) else line)


def _show_jsonl(event: "Event") -> None:
    from heddle.broker.records import dump_json

    click.echo(dump_json({"schema": SCHEMA, **asdict(event)}))


def _show_id(event: "Event") -> None:
    click.echo(event.entry_id)


SHOWS: dict[str, Callable[["Event"], None]] = {"jsonl": _show_jsonl, "name": _show_id}
