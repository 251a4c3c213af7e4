"""`wait`, `pause`, `resume`, `stop`, `rm`: one command to one experiment, to several, or to a group.

They never wait for what they asked for to have happened; `wait` does.
"""

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from heddle.cli.completion import experiment_names, group_names
from heddle.cli.options import command, connect, output_option, print_json, redis_option
from heddle.cli.progress import progress
from heddle.cli.tables import say
from heddle.errors import Conflict

if TYPE_CHECKING:
    from heddle.client import Client
    from heddle.experiment import Experiment

F = TypeVar("F", bound=Callable[..., Any])

STATES = ("queued", "running", "paused", "stopping", "completed", "stopped", "failed", "ended")
SEEN = ("waiting", "stalled", "degraded")
"""States that follow from what is seen; nobody writes them down."""

experiment_argument = click.argument("experiment", metavar="EXP", shell_complete=experiment_names)
several_argument = click.argument("experiments", metavar="[EXP]...", nargs=-1, shell_complete=experiment_names)


def group_option(function: F) -> F:
    """--group, instead of EXP."""
    return click.option(
        "--group", metavar="NAME", shell_complete=group_names, help="All experiments of a group, such as a sweep's."
    )(function)


def check_one_of(experiment: object, group: str | None) -> None:
    """Refuse neither and both of EXP and --group."""
    if bool(experiment) == (group is not None):
        raise click.UsageError("name an experiment, or a group with --group; not both")


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


@command("wait", example="heddle wait cartpole --for completed --timeout 10m\nheddle wait --group lr")
@several_argument
@group_option
@click.option(
    "--for", "state", type=click.Choice((*STATES, *SEEN)), default="ended", show_default=True, help="The state."
)
@click.option("--timeout", metavar="TIME", callback=seconds, help="Give up after this long, with exit code 7.")
@output_option
@redis_option
def wait(
    experiments: Sequence[str], group: str | None, state: str, timeout: float | None, output: str, redis_url: str | None
) -> None:
    """Wait until each EXP, or every experiment of a group, is in a state. Exit code 1 when one ends in another state, 7
    at the time-out."""
    from heddle.cli.ending import tell_ending
    from heddle.cli.waiting import wait_for_all

    check_one_of(experiments, group)
    wanted = None if state == "ended" else state
    with connect(redis_url) as client:
        found = _named(client, experiments) if group is None else client.group(group).experiments()
        is_told = output != "json" and len(found) == 1  # of several `heddle results` and `ls` say more
        try:
            statuses = wait_for_all(client, [one.id for one in found], wanted, timeout)
        finally:
            if is_told and found[0].status().ended:
                tell_ending(client, found[0].id)
    if output == "json":
        print_json({"experiments": [{**status.written(), "phase": status.state} for status in statuses]})
        return
    for status in statuses:
        click.echo(f"{status.experiment} is {status.state}")


@command("pause", example="heddle pause cartpole-7f3a2b\nheddle pause --group lr")
@several_argument
@group_option
@output_option
@redis_option
def pause(experiments: Sequence[str], group: str | None, output: str, redis_url: str | None) -> None:
    """Stop collecting for each EXP until `heddle resume`; nothing is lost."""
    check_one_of(experiments, group)
    with connect(redis_url) as client:
        if group is not None:
            _tell_each(client.group(group).pause(), group, "pauses", output)
            return
        _one_by_one(_named(client, experiments), _pause, output)


def _pause(one: "Experiment") -> str:
    one.pause()
    return f"{one.id} pauses; go on with: heddle resume {one.id}"


@command("resume", example="heddle resume cartpole-7f3a2b\nheddle resume --group lr")
@several_argument
@group_option
@output_option
@redis_option
def resume(experiments: Sequence[str], group: str | None, output: str, redis_url: str | None) -> None:
    """Let each EXP go on after a pause."""
    check_one_of(experiments, group)
    with connect(redis_url) as client:
        if group is not None:
            _tell_each(client.group(group).resume(), group, "goes on", output)
            return
        _one_by_one(_named(client, experiments), _resume, output)


def _resume(one: "Experiment") -> str:
    one.resume()
    return f"{one.id} goes on"


@command("stop", example="heddle stop cartpole-7f3a2b && heddle wait cartpole-7f3a2b\nheddle stop --group lr")
@several_argument
@group_option
@output_option
@redis_option
def stop(experiments: Sequence[str], group: str | None, output: str, redis_url: str | None) -> None:
    """End each EXP: workers let go, the trainer trains on what came, saves a checkpoint and leaves."""
    check_one_of(experiments, group)
    with connect(redis_url) as client:
        if group is not None:
            _tell_each(client.group(group).stop(), group, "stops", output)
            return
        _one_by_one(_named(client, experiments), _stop, output)


def _stop(one: "Experiment") -> str:
    before = one.status()
    one.stop()
    go_on = f"heddle enqueue --resume {one.id}"
    if before.ended and not before.result.get("checkpoint"):
        return f"{one.id} is {before.state} already; it left no checkpoint"
    if before.ended:
        return f"{one.id} is {before.state} already; go on from its last checkpoint with: {go_on}"
    if before.command == "stop":
        return f"{one.id} is stopping already; see it with: heddle status {one.id}"
    return f"{one.id} stops; its last checkpoint can be continued: {go_on}"


def _named(client: "Client", names: Sequence[str]) -> list["Experiment"]:
    """The experiments of these names and ids, each once. Raises NotFound, before anything is done to any of them."""
    found = [client.experiment(name) for name in names]
    return list({one.id: one for one in found}.values())


def _one_by_one(experiments: Sequence["Experiment"], tell: Callable[["Experiment"], str], output: str) -> None:
    """Tell each, and say what that did; the first refusal is raised once the others were told, too."""
    done, refused = list[dict[str, str]](), list[Conflict]()
    for one in experiments:
        try:
            told = tell(one)
        except Conflict as error:
            refused.append(error)
            continue
        done.append({"experiment": one.id, "says": told})
        if output != "json":
            say(told)
    if output == "json":
        print_json({"experiments": done})
    if refused:
        more = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
        raise Conflict(f"{refused[0]}{more}")


def _tell_each(experiments: Sequence[str], group: str, what: str, output: str) -> None:
    if output == "json":
        print_json({"experiments": [{"experiment": one, "says": f"{one} {what}"} for one in experiments]})
        return
    for experiment in experiments:
        click.echo(f"{experiment} {what}")
    if not experiments:
        click.echo(f"every experiment of {group} is over, or told to stop, already")


@command("rm", example="heddle rm cartpole-7f3a2b\nheddle rm --force --group lr")
@several_argument
@group_option
@click.option("--force", "-y", "--yes", "force", is_flag=True, help="Also while it is active, without asking.")
@output_option
@redis_option
def rm(experiments: Sequence[str], group: str | None, force: bool, output: str, redis_url: str | None) -> None:
    """Delete every key that the broker holds of EXP, or of a whole group; checkpoints on disk stay.

    One that is active is asked about first; without a terminal it is refused (exit code 8) unless --force is given.
    """
    check_one_of(experiments, group)
    with connect(redis_url) as client:
        if group is not None:
            found = client.group(group).experiments()
        else:
            found = [_only_one(client, experiment) for experiment in dict.fromkeys(experiments)]
        active = [(one.id, status.state) for one in found if not (status := one.status()).ended]
        if active and not force:
            _confirm(active)
        with progress("removing") as shown:
            for place, one in enumerate(found, start=1):
                shown.tell(f"{one.id}, {place:,} of {len(found):,}")
                one.remove(force=bool(active))
                if output != "json":
                    shown.say(f"removed {one.id}")
    if output == "json":
        print_json({"experiments": [{"experiment": one.id, "says": f"removed {one.id}"} for one in found]})


def _confirm(active: Sequence[tuple[str, str]]) -> None:
    """Ask whether active experiments shall go, too. Raises Conflict where nobody can be asked, Abort for a no."""
    first, state = active[0]
    if not sys.stdin.isatty():
        more = f", and {len(active) - 1} more are active" if len(active) > 1 else ""
        raise Conflict(
            f"{first} is {state}{more}: end it first (heddle stop {first}), or remove it as it is with --force"
        )
    for experiment, state in active:
        click.echo(
            f"{experiment} is {state}: what it does now is lost, but for the checkpoints that are written", err=True
        )
    click.confirm("remove it all the same?" if len(active) == 1 else "remove them all the same?", abort=True, err=True)


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
