"""`wait`, `pause`, `resume`, `stop`, `rm`: one command to one experiment.

They never wait for what they asked for to have happened; `wait` does.
"""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from heddle.cli.options import command, connect, output_option, print_json, redis_option
from heddle.errors import Conflict

if TYPE_CHECKING:
    from heddle.client import Client
    from heddle.experiment import Experiment

STATES = ("queued", "running", "paused", "stopping", "completed", "stopped", "failed", "ended")
SEEN = ("waiting", "stalled", "degraded")
"""States that follow from what is seen; nobody writes them down."""

experiment_argument = click.argument("experiment", metavar="EXP")


def seconds(_context: click.Context, _parameter: click.Parameter, value: str | None) -> float | None:
    """An option's value in seconds, also from 90s, 5m or 3h."""
    if value is None:
        return None
    text = value.strip().lower()
    factor = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}.get(text[-1:], 0.0)
    try:
        number = float(text[:-1]) * factor if factor else float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise click.BadParameter(f"{value!r} is no duration such as 90, 90s, 5m or 3h")
    return number


@command("wait", example="heddle wait cartpole --for completed --timeout 10m")
@experiment_argument
@click.option(
    "--for", "state", type=click.Choice((*STATES, *SEEN)), default="ended", show_default=True, help="The state."
)
@click.option("--timeout", metavar="TIME", callback=seconds, help="Give up after this long, with exit code 7.")
@output_option
@redis_option
def wait(experiment: str, state: str, timeout: float | None, output: str, redis_url: str | None) -> None:
    """Wait until EXP is in a state. Exit code 1 when it ends in another one, 7 at the time-out."""
    with connect(redis_url) as client:
        found = client.experiment(experiment)
        status = found.wait(None if state == "ended" else state, timeout)
        if output == "json":
            print_json(asdict(status))
        else:
            click.echo(f"{found.id} is {status.state}")


@command("pause", example="heddle pause cartpole-7f3a2b")
@experiment_argument
@redis_option
def pause(experiment: str, redis_url: str | None) -> None:
    """Stop collecting for EXP until `heddle resume`; nothing is lost."""
    with connect(redis_url) as client:
        found = client.experiment(experiment)
        found.pause()
        click.echo(f"{found.id} pauses; go on with: heddle resume {found.id}")


@command("resume", example="heddle resume cartpole-7f3a2b")
@experiment_argument
@redis_option
def resume(experiment: str, redis_url: str | None) -> None:
    """Let EXP go on after a pause."""
    with connect(redis_url) as client:
        found = client.experiment(experiment)
        found.resume()
        click.echo(f"{found.id} goes on")


@command("stop", example="heddle stop cartpole-7f3a2b && heddle wait cartpole-7f3a2b --for stopped")
@experiment_argument
@redis_option
def stop(experiment: str, redis_url: str | None) -> None:
    """End EXP: workers let go, the trainer trains on what came, saves a checkpoint and leaves."""
    with connect(redis_url) as client:
        found = client.experiment(experiment)
        before = found.status()
        found.stop()
        go_on = f"heddle enqueue --resume {found.id}"
        if before.ended:
            click.echo(f"{found.id} is {before.state} already; go on from its last checkpoint with: {go_on}")
        elif before.command == "stop":
            click.echo(f"{found.id} is stopping already; see it with: heddle status {found.id}")
        else:
            click.echo(f"{found.id} stops; its last checkpoint can be continued: {go_on}")


@command("rm", example="heddle rm cartpole-7f3a2b\nheddle rm --yes cartpole-7f3a2b pendulum-0c4d11")
@click.argument("experiments", metavar="EXP...", nargs=-1, required=True)
@click.option("--force", is_flag=True, help="Also while it is active.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask; without a terminal nobody is asked.")
@redis_option
def rm(experiments: Sequence[str], force: bool, yes: bool, redis_url: str | None) -> None:
    """Delete every key that the broker holds of EXP; checkpoints on disk stay."""
    with connect(redis_url) as client:
        found = [_only_one(client, experiment) for experiment in dict.fromkeys(experiments)]
        for one in found:
            if not force and not (status := one.status()).ended:
                raise Conflict(f"{one.id} is {status.state}: stop it first (heddle stop {one.id}), or say --force")
        if not yes and sys.stdin.isatty():
            for one in found:
                click.echo(f"{one.id} is {one.status().state}: its spec, status, metrics and policies are deleted")
            click.confirm("delete them?", abort=True)
        for one in found:
            one.remove(force=force)
            click.echo(f"removed {one.id}")


def _only_one(client: "Client", name_or_id: str) -> "Experiment":
    """The experiment of that id, or the only one of that name.

    Raises:
        NotFound: there is none.
        Conflict: the name is that of several: what is deleted is gone, so nobody guesses which.
    """
    found = client.experiment(name_or_id)
    named = [one.experiment for one in client.experiments() if one.experiment.rpartition("-")[0] == name_or_id]
    if found.id != name_or_id and len(named) > 1:
        raise Conflict(f"{name_or_id} is the name of {len(named)} runs, say which: {', '.join(named)}")
    return found
