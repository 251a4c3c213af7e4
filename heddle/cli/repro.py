"""`repro`: play the last failure of a shard again, here, in a child that may die of it.

It never changes anything on the broker.
"""

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from heddle.cli.completion import shard_names
from heddle.cli.options import command, connect, output_option, print_json, redis_option
from heddle.cli.progress import progress
from heddle.cli.shards import split
from heddle.errors import NotFound, UsageError

if TYPE_CHECKING:
    from heddle.broker.failure_types import Failure, Replay
    from heddle.client import Client
    from heddle.producers.isolation.repro import Outcome

SHOWN_LINES = 12
NOT_AGAIN = 1
TRIES = 5
"""Looks at a shard that fails again while it is looked at."""


@command("repro", example="heddle repro cartpole-7f3a2b/17\nheddle repro cartpole/17 -o json")
@click.argument("shard", metavar="EXP/SHARD", shell_complete=shard_names)
@output_option
@redis_option
def repro(shard: str, output: str, redis_url: str | None) -> None:
    """Play the last failure of a shard again: its environment, seed and actions, in a child with the same limits.

    Exit code 0 when it failed again in the same call for the same cause, 1 when it did not, 4 when there is nothing to
    play again.
    """
    experiment, number = split(shard)
    if number is None:
        raise UsageError(f"{shard!r} names no shard; write EXP/NUMBER, e.g. {shard}/0")
    with connect(redis_url) as client:
        failure, outcome = play(client, client.experiment(experiment).id, number, quiet=output == "json")
    if output == "json":
        print_json({"failure": asdict(failure), "outcome": asdict(outcome)}, ids=[shard])
    else:
        _tell(failure, outcome)
    sys.exit(0 if outcome.happened else NOT_AGAIN)


def play(client: "Client", experiment: str, shard: int, *, quiet: bool) -> tuple["Failure", "Outcome"]:
    """The newest failure of a shard, and what comes of playing it again.

    Raises:
        NotFound: no such shard, none recorded, or not enough kept of it.
    """
    from heddle.producers.isolation.repro import play_again
    from heddle.producers.isolation.shard import check_isolated
    from heddle.shard import continued_seed, plan_shards, root_seed
    from heddle.spaces import from_json
    from heddle.spec import spec_from_json

    stored = client.broker.experiments.spec(experiment)
    spec = spec_from_json(stored.json)
    plans = plan_shards(spec)
    if shard >= len(plans):
        raise NotFound(f"{experiment} has no shard {shard}; its shards are 0 to {len(plans) - 1}")
    failure, replay = _newest(client, experiment, shard)
    plan = plans[shard]
    if spec.env.at_once:
        reason = "its environments are stepped all at once: none of them can be played again alone"
        raise NotFound(f"{experiment}/{shard}: {reason}; see heddle why shard {experiment}/{shard}")
    seed = root_seed(plan, spec)
    if plan.kind == "train" and stored.resume_from:
        seed = continued_seed(spec.experiment.seed, stored.resume_from)
    if stored.spaces:
        spaces = json.loads(stored.spaces)
        observation, action = from_json(spaces["observation"]), from_json(spaces["action"])
    else:
        observation, action = check_isolated(spec)
    if not quiet:
        click.echo(f"{experiment}/{shard} failed in {failure.doing}{_place(failure)}: {failure.what}")
    with progress(f"playing {experiment}/{shard} again"):
        outcome = play_again(spec, plan, failure, replay, seed=seed, observation=observation, action=action)
    return failure, outcome


def _newest(client: "Client", experiment: str, shard: int) -> tuple["Failure", "Replay | None"]:
    """A shard's last failure and what is kept to play it again, which is gone as soon as it fails once more."""
    shards, replay = client.broker.shards, None
    failures = shards.failures(experiment, 0, shard)
    for _ in range(TRIES):
        if not failures:
            raise NotFound(f"no failure of {experiment}/{shard} is recorded: heddle why shard {experiment}/{shard}")
        replay = shards.replay(experiment, 0, shard, failures[0].number)
        before, failures = failures, shards.failures(experiment, 0, shard)
        if replay is not None or failures[:1] == before[:1]:
            return before[0], replay
    return failures[0], replay


def _place(failure: "Failure") -> str:
    if failure.env < 0 or not failure.episode:
        return ""
    return f" (environment {failure.env}, seed {failure.seed}, episode {failure.episode}, step {failure.step})"


def _tell(failure: "Failure", outcome: "Outcome") -> None:
    where = f"step {outcome.step}" if outcome.doing == "step" else outcome.doing
    if outcome.happened:
        click.echo(f"happened again in {where}: {outcome.what}")
    elif outcome.what:
        click.echo(f"failed otherwise, in {where}: {outcome.what}")
    else:
        episode = f"; then it was episode {failure.episode} of its environment" if failure.episode > 1 else ""
        click.echo(f"did not happen again: {where} went well{episode}")
    for line in outcome.traceback.splitlines() or list(outcome.output)[-SHOWN_LINES:]:
        click.echo(f"  {line}")
