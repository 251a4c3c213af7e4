"""`shards`, `shards release`: who plays what and how far it is, and quarantined shards played again.

It never gives a shard to a worker: a released one is queued, and whoever has room takes it.
"""

from dataclasses import asdict

import click

from heddle.cli.commands import experiment_argument
from heddle.cli.completion import shard_names
from heddle.cli.options import connect, epilog, output_option, print_json, redis_option
from heddle.cli.root import Group
from heddle.cli.tables import print_table, say
from heddle.errors import UsageError


@click.group(
    "shards",
    cls=Group,
    default=lambda _: "ls",
    subcommand_metavar="EXP | COMMAND [ARGS]...",
    epilog=epilog("heddle shards cartpole\nheddle shards release cartpole-7f3a2b/17"),
)
def shards() -> None:
    """Show the shards of EXP (a name or an id) and how they really are, or release quarantined ones."""


@shards.command("ls", epilog=epilog("heddle shards cartpole\nheddle shards ls cartpole -o json"))
@experiment_argument
@output_option
@redis_option
def ls(experiment: str, output: str, redis_url: str | None) -> None:
    """Show who plays each shard of EXP, how far it is, and what it waits for."""
    from heddle.shard import plan_shards
    from heddle.spec.variants import mix
    from heddle.states.look import look_at
    from heddle.states.stepping import stepping_lines
    from heddle.states.story import slow_now

    with connect(redis_url) as client:
        found = client.experiment(experiment)
        facts, picture = look_at(client.broker, found.id)
        spec, slow = found.spec(), slow_now(client.broker, facts, picture)
    variants = {plan.index: mix(spec, plan.first_env, plan.num_envs) for plan in plan_shards(spec)}
    now_ms = facts.sight.now_ms
    pairs = [(shard, picture.shards[shard.shard]) for shard in facts.shards]
    if output == "json":
        told = [
            {
                **asdict(shard),
                "phase": shard.state,
                **judged.in_short(now_ms),
                "variants": variants.get(shard.shard, ""),
            }
            for shard, judged in pairs
        ]
        print_json({"experiment": found.id, "shards": told})
        return
    rows = [
        (shard.shard, shard.kind, judged.state, shard.worker or "-", shard.epoch, shard.seq, shard.attempts)
        + ((variants.get(shard.shard, ""),) if spec.env.variants else ())
        + (judged.line(now_ms) or (slow.uneven.line if slow and shard.shard in slow.players else shard.last_error),)
        for shard, judged in pairs
    ]
    more = ("VARIANTS",) if spec.env.variants else ()
    header = ("SHARD", "KIND", "STATE", "WORKER", "EPOCH", "SEQ", "ATTEMPTS", *more, "WHY, OR LAST ERROR")
    print_table(header, rows, empty="no shards yet; a coordinator makes them: heddle coordinator")
    for line in stepping_lines(facts):
        click.echo(f"stepped {line}")
    for reason in dict.fromkeys(shard.no_snapshot for shard in facts.shards if shard.no_snapshot):
        click.echo(f"no snapshots, so that a new owner begins fresh episodes: {reason}")


@shards.command("release", epilog=epilog("heddle shards release cartpole-7f3a2b/17\nheddle shards release cartpole"))
@click.argument("what", metavar="EXP/SHARD | EXP", shell_complete=shard_names)
@output_option
@redis_option
def release(what: str, output: str, redis_url: str | None) -> None:
    """Have a quarantined shard played again, or every one of EXP: its deaths are forgotten, it is queued.

    Exit code 8 when it is not quarantined, or its experiment is over.
    """
    experiment, number = split(what)
    with connect(redis_url) as client:
        found = client.experiment(experiment)
        released = [number] if number is not None else None
        if number is None:
            released = found.release_quarantined()
        else:
            found.release_shard(number)
    if output == "json":
        print_json({"experiment": found.id, "released": released})
    else:
        numbers = ", ".join(str(one) for one in released or [])
        say(f"released shard {numbers} of {found.id}; see it with: heddle shards {found.id}")


MOST_SHOWN = 80
MOST_DIGITS = 10
"""No experiment has as many shards."""


def split(what: str) -> tuple[str, int | None]:
    """EXP or EXP/SHARD. Raises UsageError."""
    experiment, slash, number = what.partition("/")
    if slash and not (number.isdecimal() and len(number) < MOST_DIGITS):
        raise UsageError(f"{what[:MOST_SHOWN]!r} names no shard; write EXP/NUMBER, e.g. cartpole-7f3a2b/17")
    return experiment, int(number) if slash else None
