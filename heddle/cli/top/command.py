"""`top`: the command.

It never changes anything but what a key asks for: pause, resume, and the size of a pool.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from heddle.cli.completion import experiment_names, pool_names
from heddle.cli.options import command, connect, output_option, print_json, redis_option
from heddle.cli.tables import duration, number, print_table, say

if TYPE_CHECKING:
    from heddle.cli.top.gathering import Gathering
    from heddle.cli.top.keys import Order, View
    from heddle.cli.top.rows import ExperimentRow, PoolRow, Snapshot
    from heddle.cli.top.terminal import Terminal
    from heddle.client import Client

POLL_S = 0.1
WORKERS_SHOWN = 20


@command("top", example="heddle top\nheddle top cartpole\nheddle top --plain --interval 10\nheddle top --once -o json")
@click.argument("experiment", metavar="[EXP]", required=False, shell_complete=experiment_names)
@click.option("--interval", type=click.FloatRange(0.2, 3600), default=1.0, show_default=True, help="Seconds.")
@click.option(
    "--pool",
    "pools",
    multiple=True,
    metavar="POOL",
    shell_complete=pool_names,
    help="Show it even if no experiment names it.",
)
@click.option("--filter", "containing", default="", metavar="TEXT", help="Only rows that contain it.")
@click.option("--plain", is_flag=True, help="Lines instead of a screen: for logs and where there is no terminal.")
@click.option("--once", is_flag=True, help="Look once, print tables and end.")
@output_option
@redis_option
def top(
    experiment: str | None,
    interval: float,
    pools: tuple[str, ...],
    containing: str,
    plain: bool,
    once: bool,
    output: str,
    redis_url: str | None,
) -> None:
    """Watch experiments, workers, shards and trainers: what runs, how fast, who waits for whom, and why.

    ? shows the keys: sort, filter, open an experiment or a worker, pause, scale. Where the output is no terminal it is
    as with --plain.
    """
    from heddle.cli.top.gather import Gatherer
    from heddle.cli.top.rows import as_json

    with connect(redis_url) as client:
        opened = client.experiment(experiment).id if experiment else ""
        gatherer = Gatherer(client.broker, pools=("default", *pools))
        if output == "json" or once:
            snapshot = gatherer.snapshot(opened=opened, everything=True)
            if output == "json":
                print_json(as_json(snapshot))
            else:
                print_once(snapshot, containing)
            return
        if plain or not (sys.stdin.isatty() and sys.stdout.isatty()):
            _follow(client, gatherer.snapshot, interval, containing or opened)
            return
        from heddle.cli.top.gathering import Gathering

        gathering = Gathering(gatherer, interval_s=interval).start()
        try:
            _watch(client, gathering, opened, containing)
        finally:
            gathering.stop()


def _watch(client: "Client", gathering: "Gathering", opened: str, containing: str) -> None:
    """Draw and take keys until told to quit."""
    from heddle.cli.top.keys import View
    from heddle.cli.top.terminal import Terminal

    view = View(screen="experiment", subject=opened) if opened else View(containing=containing)
    with Terminal().open() as terminal:
        shown: tuple[object, ...] = ()
        snapshot = gathering.latest
        while True:
            if gathering.failure is not None:
                raise gathering.failure
            if not view.frozen:
                snapshot = gathering.latest
            now = (view, snapshot, terminal.size())
            if now != shown:
                shown = now
                _draw(terminal, gathering, view, snapshot)
            for key in terminal.keys(POLL_S):
                view, is_over = _press(client, gathering, view, key, snapshot)
                if is_over:
                    return


def _draw(terminal: "Terminal", gathering: "Gathering", view: "View", snapshot: "Snapshot") -> None:
    from heddle.cli.top.keys import identity
    from heddle.cli.top.screens import screen

    width, height = terminal.size()
    terminal.draw(screen(view, snapshot, width, height))
    around: list[str] = [view.subject] if view.screen == "worker" else []
    if view.screen == "workers":
        rows = view.rows(snapshot)
        around = [identity(row) for row in rows[max(0, view.at - height) : view.at + height]]
    gathering.want(view.subject if view.screen == "experiment" else "", around)


def _press(
    client: "Client", gathering: "Gathering", view: "View", key: str, snapshot: "Snapshot"
) -> tuple["View", bool]:
    """What a key makes of the view, and whether that is the end."""
    from heddle.cli.top.keys import press

    view, order = press(view, key, snapshot)
    if order is None:
        return view, False
    if order.verb == "quit":
        return view, True
    view = replace(view, told=obey(client, order))
    gathering.soon()
    return view, False


def obey(client: "Client", order: "Order") -> str:
    """Do what a key asks for; one line on what came of it."""
    from heddle.errors import HeddleError

    try:
        if order.verb == "scale":
            client.broker.pools.set_desired(order.subject, order.number)
            return f"pool {order.subject} shall have {order.number} workers"
        found = client.experiment(order.subject)
        if order.verb == "pause":
            found.pause()
            return f"{found.id} pauses; p lets it go on"
        found.resume()
        return f"{found.id} goes on"
    except HeddleError as error:
        return " ".join(str(error).split())


def print_once(snapshot: "Snapshot", containing: str = "") -> None:
    """The two lists as tables."""
    from heddle.cli.top.rows import sorted_experiments, sorted_workers

    experiments = sorted_experiments(snapshot.experiments, "newest", reverse=False, containing=containing)
    header = ("EXPERIMENT", "STATE", "STEPS/S", "STEPS", "RETURN", "LAG", "FULL", "SHARDS", "MOVED", "WAITS", "WHY")
    rows = [_row(row, snapshot.now_ms) for row in experiments]
    print_table(header, rows, empty="no experiments; submit one with: heddle enqueue exp.toml")
    for one in experiments:
        if one.slow is not None:
            say(f"{one.experiment}: {one.slow.line}")
    for pool in snapshot.pools:
        click.echo(f"\n{pool_line(pool)}")
    workers = sorted_workers(snapshot.workers, "state", reverse=False, containing=containing)
    if workers:
        click.echo("")
    shown = [
        (
            row.info.beat.worker, row.judged.state, row.info.beat.shards, f"{row.info.beat.steps_per_second:,.0f}",
            "-" if row.waits is None else f"{row.waits:.0%}", f"{duration(row.info.silent_ms)} ago",
            row.judged.line(snapshot.now_ms),
        )
        for row in workers[:WORKERS_SHOWN]
    ]  # fmt: skip
    if shown:
        print_table(("WORKER", "STATE", "SHARDS", "STEPS/S", "WAITS", "SEEN", "WHY"), shown, empty="")
    if len(workers) > WORKERS_SHOWN:
        click.echo(f"and {len(workers) - WORKERS_SHOWN} more; all with: heddle workers ls")


def _row(row: "ExperimentRow", now_ms: int) -> tuple[object, ...]:
    lag = row.latest.get("lag_mean")
    return (
        row.experiment,
        row.judged.state,
        "-" if row.ended else f"{row.speed:,.0f}",
        f"{row.steps:,}",
        number(row.last_return),
        "-" if lag is None else f"{lag:.1f}",
        "-" if row.full is None else f"{row.full:.0%}",
        f"{row.leased}/{row.shards}" if row.shards else "-",
        row.moved or "-",
        "-" if row.ended else row.waits,
        row.judged.line(now_ms),
    )


def pool_line(pool: "PoolRow") -> str:
    """A pool in one line."""
    wanted = f" of {pool.wanted}" if pool.wanted is not None else ""
    states = ", ".join(f"{count} {state}" for state, count in sorted(pool.states.items()) if state != "alive")
    ended = ", ".join(f"{count} {how}" for how, count in sorted(pool.deaths.items()))
    parts = [f"pool {pool.pool}: {pool.alive}{wanted} workers", states, f"{pool.speed:,.0f} steps/s"]
    return ", ".join(part for part in parts if part) + (f"; ended by themselves: {ended}" if ended else "")


def plain_lines(snapshot: "Snapshot", containing: str = "") -> list[str]:
    """What matters, a line for each experiment that goes on and for each pool."""
    from heddle.cli.why import clock_time

    clock = clock_time(snapshot.now_ms)[:8]
    lines = []
    for row in snapshot.experiments:
        if row.ended or containing.lower() not in f"{row.experiment} {row.judged.state} {row.pool}".lower():
            continue
        done = f"/{row.budget_steps}" if row.budget_steps else ""
        parts = [f"{clock} {row.experiment} {row.judged.state}", f"steps {row.steps}{done}", f"{row.speed:.0f} steps/s"]
        parts.append(f"return {number(row.last_return)}")
        parts.append(f"version {row.version}")
        parts.append(f"lag {row.latest['lag_mean']:.1f}" if "lag_mean" in row.latest else "lag -")
        parts.append(f"full {row.full:.0%}" if row.full is not None else "full -")
        parts.append(f"shards {row.leased}/{row.shards} moved {row.moved}")
        parts.append(f"waits {row.waits}{f' ({row.slow.line})' if row.slow is not None else ''}")
        lines.append("  ".join(parts) + (f"  {row.judged.line(snapshot.now_ms)}" if row.judged.why else ""))
    return lines + [f"{clock} {pool_line(pool)}" for pool in snapshot.pools]


def _follow(client: "Client", look: "Callable[..., Snapshot]", interval: float, containing: str) -> None:
    """Lines for ever; an absence of the broker is told and outlasted."""
    from heddle.errors import BrokerError

    away = False
    while True:
        try:
            lines = plain_lines(look(), containing)
            away = False
        except BrokerError as error:
            lines = [] if away else [f"heddle: {' '.join(str(error).split())}; waiting for it"]
            away = True
        for line in lines:
            click.echo(line, err=away)
        sys.stdout.flush()
        client.clock.sleep(interval)
