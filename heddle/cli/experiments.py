"""`ls`, `status`, `shards`: what the broker knows of experiments.

They never change anything.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from heddle.cli.commands import experiment_argument
from heddle.cli.options import command, connect, output_option, print_json, redis_option
from heddle.cli.tables import duration, number, print_facts, print_table

if TYPE_CHECKING:
    from heddle.broker.types import ShardState


@command("ls", example="heddle ls\nheddle ls -o json")
@click.option("--active", is_flag=True, help="Only those that are not over.")
@output_option
@redis_option
def ls(active: bool, output: str, redis_url: str | None) -> None:
    """List experiments, newest first."""
    from heddle.cli.facts import latest_metrics

    with connect(redis_url) as client:
        found = [status for status in client.experiments() if not (active and status.ended)]
        if output == "json":
            print_json([asdict(status) for status in found])
            return
        now_ms = client.broker.conn.now_ms()
        rows = []
        for status in found:
            latest = latest_metrics(client.broker, status.experiment)
            steps = latest.get("env_steps", status.result.get("env_steps"))
            shown = f"{steps:,.0f}" if isinstance(steps, int | float) else "-"
            returned = number(latest.get("return", status.result.get("return")))
            age = duration(now_ms - status.created_ms)
            rows.append(
                (status.experiment, status.state, status.pool, shown, returned, status.policy, age, status.reason)
            )
    header = ("EXPERIMENT", "STATE", "POOL", "STEPS", "RETURN", "VERSION", "AGE", "REASON")
    print_table(header, rows, empty="no experiments; submit one with: heddle enqueue exp.toml")


@command("status", example="heddle status cartpole\nheddle status cartpole-7f3a2b -o json")
@experiment_argument
@output_option
@redis_option
def status(experiment: str, output: str, redis_url: str | None) -> None:
    """Show how EXP (a name or an id) is doing, and why."""
    from heddle.cli.facts import accounting, accounting_line, latest_metrics, troubles

    with connect(redis_url) as client:
        found = client.experiment(experiment)
        now, broker = found.status(), client.broker
        latest = latest_metrics(broker, found.id)
        flow = broker.experience.flow(found.id, 0)
        holder = broker.seats.holder(found.id)
        shards = found.shards()
        told = broker.events.read(found.id, count=5)
        now_ms = broker.conn.now_ms()
        wrong = troubles(shards, out_of_memory=broker.conn.out_of_memory())
        kept = broker.conn.kept()
    if output == "json":
        shown = {**asdict(now), "troubles": wrong, "metrics": latest, "accounting": accounting(flow)}
        shown["trainer"] = None if holder is None else holder.trainer
        shown["durability"] = kept.name
        print_json({**shown, "shards": _count_states(shards)})
        return
    print_facts(
        [
            ("experiment", now.experiment),
            ("state", f"{now.state}{f': {now.reason}' if now.reason else ''}"),
            ("age", duration((now.ended_ms or now_ms) - now.created_ms)),
            ("pool", now.pool),
            ("trainer", holder.trainer if holder else "none"),
            ("shards", ", ".join(f"{count} {state}" for state, count in _count_states(shards).items())),
            *(("trouble", what) for what in wrong),
            ("version", now.policy),
            ("steps", f"{latest['env_steps']:,.0f}" if "env_steps" in latest else ""),
            *((name, number(latest[name])) for name in ("return", "eval_return", "steps_per_second") if name in latest),
            ("waits", _waits(latest)),
            ("batches", accounting_line(flow)),
            ("broker", f"{kept.name}: {kept.promise}"),
            ("checkpoint", now.result.get("checkpoint", "")),
            ("best", now.result.get("best", "")),
            *(("event", f"{duration(now_ms - event.time_ms)} ago  {event.message}") for event in told),
        ]
    )


@command("shards", example="heddle shards cartpole")
@experiment_argument
@output_option
@redis_option
def shards(experiment: str, output: str, redis_url: str | None) -> None:
    """Show who plays each shard of EXP, and how far it is."""
    with connect(redis_url) as client:
        found = client.experiment(experiment).shards()
    if output == "json":
        print_json([asdict(shard) for shard in found])
        return
    rows = [
        (
            shard.shard,
            shard.kind,
            shard.state,
            shard.worker or "-",
            shard.epoch,
            shard.seq,
            shard.attempts,
            shard.last_error,
        )
        for shard in found
    ]
    header = ("SHARD", "KIND", "STATE", "WORKER", "EPOCH", "SEQ", "ATTEMPTS", "LAST ERROR")
    print_table(header, rows, empty="no shards yet; a coordinator makes them: heddle coordinator")


def _waits(latest: Mapping[str, float]) -> str:
    """Who waited for whom before the last update; "" before the first."""
    if not {"wait_seconds", "worker_wait_seconds"} <= latest.keys():
        return ""
    trainer, workers = latest["wait_seconds"], latest["worker_wait_seconds"]
    return f"last update: trainer {trainer:.2f} s for experience, workers {workers:.2f} s for room or a policy"


def _count_states(shards: "list[ShardState]") -> dict[str, int]:
    """How many shards are in each state."""
    states = [shard.state for shard in shards]
    return {state: states.count(state) for state in sorted(set(states))}
