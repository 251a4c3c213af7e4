"""`why experiment|shard|worker`: how one thing really is, what that follows from, and what happened to it.

It never changes anything.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING

import click

from heddle.cli.completion import experiment_names, shard_names, worker_names
from heddle.cli.experiments import shown_reason
from heddle.cli.options import connect, epilog, output_option, print_json, redis_option
from heddle.cli.root import Group
from heddle.cli.shards import split
from heddle.cli.tables import duration, print_table, say
from heddle.errors import UsageError

if TYPE_CHECKING:
    from heddle.broker.failure_types import Failure
    from heddle.states.story import Story

count_option = click.option(
    "-n", "--last", "count", type=click.IntRange(0), default=30, show_default=True, help="How much of what happened."
)


@click.group(
    "why",
    cls=Group,
    default=lambda what: "shard" if "/" in what else "experiment",
    subcommand_metavar="EXP | EXP/SHARD | COMMAND [ARGS]...",
    epilog=epilog("heddle why cartpole\nheddle why cartpole-7f3a2b/17\nheddle why worker ID"),
)
def why() -> None:
    """Say why an experiment, a shard or a worker is as it is, and what happened to it."""


@why.command(
    "experiment", epilog=epilog("heddle why experiment cartpole-7f3a2b\nheddle why experiment cartpole -n 100")
)
@click.argument("experiment", metavar="EXP", shell_complete=experiment_names)
@count_option
@output_option
@redis_option
def of_experiment(experiment: str, count: int, output: str, redis_url: str | None) -> None:
    """How EXP (a name or an id) is, the chain of reasons, and what happened to it."""
    from heddle.states.story import story_of_experiment

    with connect(redis_url) as client:
        found = client.experiment(experiment)
        _tell(story_of_experiment(client.broker, found.id, count=count), output)


@why.command("shard", epilog=epilog("heddle why shard cartpole-7f3a2b/17"))
@click.argument("shard", metavar="EXP/SHARD", shell_complete=shard_names)
@count_option
@output_option
@redis_option
def of_shard(shard: str, count: int, output: str, redis_url: str | None) -> None:
    """How a shard is; who held it, under which epoch, why it moved, and how its environments failed."""
    from heddle.states.story import story_of_shard

    experiment, number = split(shard)
    if number is None:
        raise UsageError(f"{shard!r} names no shard; write EXP/NUMBER, e.g. {shard}/0")
    with connect(redis_url) as client:
        found = client.experiment(experiment)
        _tell(story_of_shard(client.broker, found.id, number, count=count), output)


@why.command("worker", epilog=epilog("heddle why worker host-1234w1-5e6f7a"))
@click.argument("worker", metavar="ID", shell_complete=worker_names)
@count_option
@output_option
@redis_option
def of_worker(worker: str, count: int, output: str, redis_url: str | None) -> None:
    """How a worker is, and what it took, gave back and lost; also one that is gone."""
    from heddle.states.story import story_of_worker

    with connect(redis_url) as client:
        _tell(story_of_worker(client.broker, worker, count=count), output)


def _tell(story: "Story", output: str) -> None:
    if output == "json":
        print_json(story.as_json(), ids=[story.judgement.subject.partition(" ")[2]])
        return
    click.echo(shown_reason(story.judgement, story.now_ms))
    for depth, reason in story.judgement.chain():
        click.echo(f"{'  ' * depth}because {shown_reason(reason, story.now_ms)}")
    if story.time:
        say(f"  time: {story.time}")
    for failure in story.failures[:1]:
        click.echo(f"  {_before(failure)}")
    click.echo("\nwhat happened")
    dated = spans_days((moment.time_ms for moment in story.moments), story.now_ms)
    rows = [
        (
            f"  {clock_time(moment.time_ms, dated=dated)}",
            f"{duration(story.now_ms - moment.time_ms)} ago",
            moment.who,
            moment.what,
        )
        for moment in story.moments
    ]
    print_table(("  TIME", "AGE", "WHO", "WHAT"), rows, empty="  nothing that the log remembers")


def _before(failure: "Failure") -> str:
    """What was done before it failed."""
    if failure.last_actions:
        return f"last actions before it failed: {', '.join(str(action) for action in failure.last_actions[-8:])}"
    if failure.doing in ("make", "reset"):
        return "no action came before it failed"
    return 'its last actions died with its worker; isolation = "process" in [env] keeps them'


def clock_time(time_ms: int, *, dated: bool = False) -> str:
    """Server ms as the time of day here, behind its date where that is wanted; of a time that is none, as an entry's
    that somebody added by hand, dashes."""
    from heddle.broker.records import LATEST_MS

    if time_ms >= LATEST_MS:
        return "--:--:--.---"
    form = "%Y-%m-%d %H:%M:%S.%f" if dated else "%H:%M:%S.%f"
    return datetime.fromtimestamp(time_ms / 1000).strftime(form)[:-3]


def spans_days(times_ms: Iterable[int], now_ms: int) -> bool:
    """Whether any of these is of another day here than now: a time of day alone would not say when it was."""
    from heddle.broker.records import LATEST_MS

    today = datetime.fromtimestamp(now_ms / 1000).date()
    return any(datetime.fromtimestamp(one / 1000).date() != today for one in times_ms if one < LATEST_MS)
