"""`enqueue`: hand a spec to a fleet.

It never starts a process; what it submits goes on when it ends.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from heddle.cli.completion import experiment_names
from heddle.cli.options import command, connect, existing_file, output_option, print_json, redis_option, set_option
from heddle.cli.progress import trying
from heddle.errors import UsageError

if TYPE_CHECKING:
    from heddle.broker.records import Status
    from heddle.client import Client
    from heddle.experiment import Experiment
    from heddle.spec import LoadedSpec


@command(
    "enqueue",
    example="heddle enqueue exp.toml --follow\nid=$(heddle enqueue exp.toml --set experiment.seed=2 --name seed2)\n"
    "heddle enqueue --resume cartpole-7f3a2b --set budget.env_steps=400000\n"
    "heddle enqueue exp.toml --sweep trainer.lr=1e-3,3e-4 --seeds 5",
)
@click.argument("file", metavar="[exp.toml]", callback=existing_file, required=False)
@set_option
@click.option("--sweep", "sweeps", metavar="KEY=V,V", multiple=True, help="One experiment for each value; repeatable.")
@click.option("--seeds", type=click.IntRange(1), metavar="N", help="N experiments, each with the next seed.")
@click.option("--group", metavar="NAME", help="Group of a sweep; by itself the experiment's name, numbered.")
@click.option("--name", metavar="NAME", help="Takes the place of experiment.name.")
@click.option(
    "--resume",
    metavar="EXP",
    shell_complete=experiment_names,
    help="Go on from EXP's newest checkpoint; its steps and time count. Without a file, EXP's own spec is taken.",
)
@click.option("--wait", is_flag=True, help="Return when it is over; exit code 1 when it failed.")
@click.option("--follow", is_flag=True, help="Show it until it is over; Ctrl-C stops showing, not the experiment.")
@click.option("--check/--no-check", default=True, help="Build one environment and the policy first.")
@output_option
@redis_option
def enqueue(
    file: Path | None,
    overrides: tuple[str, ...],
    sweeps: tuple[str, ...],
    seeds: int | None,
    group: str | None,
    name: str | None,
    resume: str | None,
    wait: bool,
    follow: bool,
    check: bool,
    output: str,
    redis_url: str | None,
) -> None:
    """Submit exp.toml; prints the experiment's id.

    The same spec while it is active is the same experiment; after it ended it is a new run. With --resume the budget
    counts what EXP used of it already, so give more: --set budget.env_steps=... It plays other episodes than EXP did.
    With --sweep or --seeds it is one experiment for each combination, all of one group; see `heddle results`.
    """
    if sweeps or seeds is not None:
        if file is None or resume is not None or follow:
            raise UsageError("a sweep takes exp.toml, and neither --resume nor --follow; see it with: heddle results")
        how = {"sweeps": sweeps, "seeds": seeds, "overrides": overrides, "name": name, "group": group, "try_out": check}
        enqueue_sweep(file, how, wait=wait, output=output, redis_url=redis_url)
        return
    if group is not None:
        overrides = (*overrides, f"experiment.group={group}")
    source = _source(file, resume, redis_url)
    loaded, spaces = _load(source, overrides, name, check=check)
    with connect(redis_url, brings=True) as client:
        experiment = client.submit_loaded(loaded, resume=resume, spaces=spaces)
        told: dict[str, object] = {"experiment": experiment.id, "created": experiment.created}
        if output == "json" and not (wait or follow):
            print_json(told)
        elif output != "json":
            click.echo(experiment.id)
            _tell(experiment, follow or wait)
        if follow:
            follow_experiment(client, experiment)
        if wait or follow:
            _wait(client, experiment, told, output=output)


def _wait(client: "Client", experiment: "Experiment", told: dict[str, object], *, output: str) -> None:
    """Wait until it is over, and tell what came of it."""
    from heddle.cli.ending import tell_ending
    from heddle.cli.waiting import wait_for_all

    try:
        (status,) = wait_for_all(client, [experiment.id])
        click.echo(f"{experiment.id} is {status.state}", err=True)
    finally:
        if output == "json":
            print_json({**told, **_as_json(experiment.status())})
        elif experiment.status().ended:
            tell_ending(client, experiment.id)


def _source(file: Path | None, resume: str | None, redis_url: str | None) -> "Path | Mapping[str, object]":
    """What to submit: the file, or what the run to resume was."""
    if file is not None:
        return file
    if resume is None:
        raise UsageError("say what to submit: heddle enqueue exp.toml")
    with connect(redis_url, brings=True) as client:
        return client.experiment(resume).spec().model_dump(mode="json")


def enqueue_sweep(file: Path, how: dict[str, Any], *, wait: bool, output: str, redis_url: str | None) -> None:
    """Load every experiment of a sweep (`how`: as `load_sweep`), then submit them; prints their ids."""
    from heddle.cli.tables import say
    from heddle.cli.waiting import wait_for_all
    from heddle.launch.sweep import load_sweep, own_group
    from heddle.origin import commit_of

    with trying():
        swept = load_sweep(file, **how)
    with connect(redis_url, brings=True) as client:
        named = own_group(swept, client.experiments())
        if named != swept[0].loaded.spec.experiment.group:
            again = load_sweep(file, **{**how, "group": named, "try_out": False})
            swept = [replace(new, spaces=old.spaces) for new, old in zip(again, swept, strict=True)]
        for one in swept:
            client.broker.experiments.check_name(one.loaded.spec.experiment.name, one.loaded.spec.sha256())
        commit = commit_of(Path())
        made = [client.submit_loaded(one.loaded, spaces=one.spaces, commit=commit) for one in swept]
        if output == "json":
            told = [
                {
                    "experiment": experiment.id,
                    "created": experiment.created,
                    "values": dict(value.partition("=")[::2] for value in one.combination.values),
                    "seed": one.combination.seed,
                }
                for experiment, one in zip(made, swept, strict=True)
            ]
            print_json({"group": named, "experiments": told})
        else:
            click.echo("\n".join(experiment.id for experiment in made))
            old = sum(not experiment.created for experiment in made)
            click.echo(f"group {named}: {len(made) - old} submitted, {old} active already", err=True)
            say(f"see how they go with: heddle ls --group {named}; heddle results {named}", to_stderr=True)
        if wait:
            wait_for_all(client, [experiment.id for experiment in made])


def _load(
    source: "Path | Mapping[str, object]", overrides: tuple[str, ...], name: str | None, *, check: bool
) -> "tuple[LoadedSpec, str]":
    """The spec, and its spaces as JSON when it is tried out."""
    from heddle.launch.check import load_and_check
    from heddle.spec import load_spec

    if not check:
        return load_spec(source, overrides=overrides, name=name), ""
    with trying():
        loaded, checked = load_and_check(source, overrides, name)
    return loaded, checked.spaces_json()


def _as_json(status: "Status") -> dict[str, object]:
    return {"state": status.state, "reason": status.reason, "result": status.result}


def _tell(experiment: "Experiment", stays: bool) -> None:
    """On standard error, so that the output is the id alone."""
    if not experiment.created:
        click.echo(f"{experiment.id} is active with this very spec already", err=True)
    if not stays:
        click.echo(f"see how it goes with: heddle status {experiment.id}", err=True)


def follow_experiment(client: "Client", experiment: "Experiment") -> None:
    """Show it until it is over."""
    from heddle.cli.facts import FactsReader
    from heddle.cli.follow import follow

    spec = experiment.spec()
    reader = FactsReader(client.url, experiment.id, budget_steps=spec.budget.env_steps, pool=spec.experiment.pool)
    reader.start()
    try:
        follow(reader, title="Ctrl-C stops following; the run goes on", until=lambda: reader.ended)
    except KeyboardInterrupt:
        click.echo(f"\n{experiment.id} goes on; see it with: heddle status {experiment.id}", err=True)
        raise
    finally:
        reader.stop()
