"""`track`: hand an experiment's metrics on to TensorBoard, Weights & Biases or MLflow.

It never holds the run up, and a run goes on when it ends.
"""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from heddle.cli.completion import experiment_names
from heddle.cli.json_out import relay
from heddle.cli.options import command, connect, find_url, output_option, print_json, redis_option
from heddle.cli.roles import begin_role
from heddle.errors import UsageError

if TYPE_CHECKING:
    from heddle.consumers.tracking.base import Source
    from heddle.consumers.tracking.points import Subject
    from heddle.consumers.tracking.tracker import Told
    from heddle.spec.tracking import Track

INTERRUPTED = 130


@command(
    "track",
    example="heddle track cartpole --tensorboard runs/tb && tensorboard --logdir runs/tb\n"
    "heddle track cartpole --wandb my-project --wandb-mode offline\n"
    "heddle track cartpole --mlflow sqlite:///mlflow.db\n"
    "heddle track runs/cartpole-7f3a2b --tensorboard runs/tb     # a run that is over, its broker too\n"
    "heddle track                      # every experiment whose spec has [track]",
)
@click.argument("experiment", metavar="[EXP | DIR]", required=False, shell_complete=experiment_names)
@click.option("--tensorboard", metavar="DIR", help="Event files, in DIR/EXP.")
@click.option("--wandb", metavar="PROJECT", help="A run of Weights & Biases; WANDB_API_KEY is its key.")
@click.option("--wandb-mode", type=click.Choice(["online", "offline"]), help="offline: a folder for `wandb sync`.")
@click.option("--mlflow", metavar="URI", help="A run of MLflow, e.g. http://host:5000 or sqlite:///mlflow.db.")
@click.option(
    "--dir", "directory", metavar="DIR", default="runs", show_default=True, help="Where checkpoints are, in DIR/EXP."
)
@output_option
@redis_option
def track(
    experiment: str | None,
    tensorboard: str | None,
    wandb: str | None,
    wandb_mode: str | None,
    mlflow: str | None,
    directory: str,
    output: str,
    redis_url: str | None,
) -> None:
    """Hand what EXP measures on to trackers, from its first update to its last; without options to those of its spec.

    Of a run that is over, its server too, name the folder: DIR is runs/EXP. Neither Ctrl-C nor a tracker that is away
    ends or delays anything else; the same command goes on from there. Credentials are taken from the environment of
    this process alone.
    """
    chosen = chosen_by(tensorboard, wandb, wandb_mode, mlflow)
    if experiment is None:
        if chosen is not None:
            raise click.UsageError("name the experiment that shall be tracked there")
        host(find_url(redis_url), Path(directory))
    else:
        follow(experiment, chosen, Path(directory), output, redis_url)


def chosen_by(tensorboard: str | None, wandb: str | None, wandb_mode: str | None, mlflow: str | None) -> "Track | None":
    """What the options name; None for nothing. Raises UsageError."""
    if wandb_mode is not None and wandb is None:
        raise click.UsageError("--wandb-mode says how --wandb PROJECT is fed")
    if tensorboard is None and wandb is None and mlflow is None:
        return None
    from heddle.spec.tracking import Mlflow, Track, Wandb, holds_secret

    if mlflow is not None and holds_secret(mlflow):
        raise UsageError(
            "--mlflow names a user or a password, which everybody on this machine can read; set"
            " MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD instead"
        )
    mode: dict[str, Any] = {"mode": wandb_mode} if wandb_mode is not None else {}
    return Track(
        tensorboard=tensorboard,
        wandb=Wandb(project=wandb, **mode) if wandb is not None else None,
        mlflow=Mlflow(uri=mlflow) if mlflow is not None else None,
    )


def host(url: str, directory: Path) -> None:
    """Track every experiment whose spec says so, until told to end."""
    from heddle.cli.roles import HOST_EXIT_S

    stop = begin_role("heddle.launch.trackers", exit_s=HOST_EXIT_S)
    from heddle.launch.trackers import TrackerHost

    with relay() as passed:
        code = TrackerHost(url, directory=directory, stop=stop, on_line=passed.pass_on if passed else None).run()
    raise click.exceptions.Exit(code)


def follow(experiment: str, chosen: "Track | None", directory: Path, output: str, redis_url: str | None) -> None:
    """Track one experiment, and say how far each tracker came."""
    from heddle.consumers.tracking.crew import Crew
    from heddle.consumers.tracking.make import check_installed, kinds_of, make_backend

    what = find(experiment, directory, redis_url)
    wanted = chosen or what.named
    if wanted is None or wanted.is_empty:
        raise UsageError(
            f"{what.subject.experiment} names no tracker: give --tensorboard DIR, --wandb PROJECT or --mlflow URI, or"
            " write [track] into its spec"
        )
    check_installed(wanted)
    stop = begin_role("heddle.consumers.tracking.crew", is_service=False)
    makers = {kind: partial(make_backend, kind, wanted, what.subject) for kind in kinds_of(wanted)}
    artifacts = what.directory if wanted.checkpoint else None
    crew = Crew(what.connect, what.subject.experiment, makers, stop, artifacts)
    told = crew.run()
    if output == "json":
        print_json({"experiment": what.subject.experiment, "trackers": [asdict(one) for one in told]})
    else:
        for line in lines_of(what.subject.experiment, told):
            click.echo(line)
    is_done = all(one.done for one in told)
    if not is_done:
        click.echo("stopped; the same command goes on from here", err=True)
    sys.stdout.flush()
    if crew.left:  # a thread hangs in a library, which would hold the process up
        os._exit(INTERRUPTED)
    raise click.exceptions.Exit(0 if is_done else INTERRUPTED)


@dataclass(frozen=True, slots=True)
class Found:
    """What is tracked.

    Attributes:
        subject: what trackers are told of it; named: the trackers of its spec.
        directory: where its checkpoints are, in a folder of its id.
        connect: opens what its metrics are read from.
    """

    subject: "Subject"
    named: "Track | None"
    directory: Path
    connect: "Callable[[], Source]"


def find(experiment: str, directory: Path, redis_url: str | None) -> Found:
    """What `experiment` means: a run's folder, or a name or id that the broker knows, else one whose folder is here.

    Raises:
        BrokerUnreachable, NotFound: and no run left such a folder.
    """
    from heddle.consumers.tracking.folder import is_run
    from heddle.errors import BrokerUnreachable, NotFound

    if is_run(Path(experiment)):
        return from_folder(Path(experiment))
    try:
        return from_broker(experiment, directory, redis_url)
    except (BrokerUnreachable, NotFound):
        if not is_run(directory / experiment):
            raise
        return from_folder(directory / experiment)


def from_folder(home: Path) -> Found:
    """A run by what it left."""
    from heddle.consumers.tracking.folder import RunFolder

    folder = RunFolder(home)
    return Found(folder.subject, folder.track, home.resolve().parent, partial(RunFolder, home))


def from_broker(experiment: str, directory: Path, redis_url: str | None) -> Found:
    """A run by what the broker knows."""
    from heddle.broker import open_broker
    from heddle.consumers.tracking.make import subject_of

    with connect(redis_url) as client:
        found, url = client.experiment(experiment), client.url
        subject, named = subject_of(client.broker, found.id), found.spec().track
    return Found(subject, named, directory, lambda: open_broker(url, role="tracker"))


def lines_of(experiment: str, told: "Sequence[Told]") -> list[str]:
    """How far each tracker came, for people."""
    lines = []
    for one in told:
        parts = [f"{one.points:,} points"]
        parts += [f"{one.missed:,} updates missed"] if one.missed else []
        parts += [f"rolled back {one.rolled_back} times"] if one.rolled_back else []
        parts += [one.trouble] if one.trouble else []
        where = f" to {one.where}" if one.where else ""
        lines.append(f"{one.kind}: {experiment}{where}: {', '.join(parts)}")
    return lines
