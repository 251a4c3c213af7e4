"""Shell completion with the names that the broker has now, and the command that prints what a shell needs for it.

It never waits for long and never says anything: a broker that is away, slow or refuses has no names.
"""

import os
import threading
from collections.abc import Callable
from pathlib import Path

import click
from click.shell_completion import CompletionItem, get_completion_class

from heddle.cli.options import command

DEADLINE_S = float(os.environ.get("HEDDLE_COMPLETION_DEADLINE", "1"))
"""Seconds that a person who pressed tab waits at most; HEDDLE_COMPLETION_DEADLINE says otherwise."""
SOCKET_S = DEADLINE_S / 2
Names = Callable[[str], list[tuple[str, str]]]


def experiment_names(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Ids, newest first, with their state."""
    return _within(ctx, _experiments, incomplete)


def shard_names(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Ids, and behind a slash the shards of one."""
    return _within(ctx, _shards if "/" in incomplete else _experiments, incomplete)


def worker_names(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Ids of workers that are here, with what they do."""
    return _within(ctx, _workers, incomplete)


def pool_names(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of pools."""
    return _within(ctx, _pools, incomplete)


def group_names(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of groups."""
    return _within(ctx, _groups, incomplete)


def run_names(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Ids of runs whose checkpoints are here, newest first; files and folders where none begins like that."""
    from heddle.client import RUNS
    from heddle.launch.local_runs import runs_in

    found = [run.folder.name for run in runs_in(RUNS) if run.folder.name.startswith(incomplete)]
    return [CompletionItem(name) for name in found] or [CompletionItem(incomplete, type="file")]


def _within(
    ctx: click.Context, ask: Callable[[str, str], list[tuple[str, str]]], incomplete: str
) -> list[CompletionItem]:
    """What is answered before the deadline and begins with what is typed."""
    given, found = ctx.params.get("redis_url"), list[tuple[str, str]]()

    def run() -> None:
        try:
            url = _hurried(given)
            found.extend(ask(url, incomplete) if url else [])
        except Exception:  # noqa: BLE001  a shell that completes has no place for a message
            return

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(DEADLINE_S)
    return [CompletionItem(name, help=about) for name, about in list(found) if name.startswith(incomplete)]


def _hurried(given: str | None) -> str:
    """The address of the broker with short time-outs; "" when there is none."""
    from heddle.client import known_url, url_of_run

    url = known_url(given) or url_of_run() or ""
    mark = "&" if "?" in url else "?"
    return f"{url}{mark}socket_timeout={SOCKET_S}&socket_connect_timeout={SOCKET_S}" if url else ""


def _experiments(url: str, _incomplete: str) -> list[tuple[str, str]]:
    from heddle.broker import open_broker

    with open_broker(url, role="cli") as broker:
        return [(status.experiment, status.state) for status in broker.experiments.ls()]


def _groups(url: str, _incomplete: str) -> list[tuple[str, str]]:
    from heddle.broker import open_broker

    with open_broker(url, role="cli") as broker:
        return [(name, "") for name in dict.fromkeys(one.group for one in broker.experiments.ls() if one.group)]


def _shards(url: str, incomplete: str) -> list[tuple[str, str]]:
    from heddle.broker import open_broker

    with open_broker(url, role="cli") as broker:
        experiment = broker.experiments.resolve(incomplete.partition("/")[0])
        named = incomplete.partition("/")[0]
        return [(f"{named}/{shard.shard}", shard.state) for shard in broker.shards.shards(experiment, 0)]


def _pools(url: str, _incomplete: str) -> list[tuple[str, str]]:
    from heddle.broker import open_broker

    with open_broker(url, role="cli") as broker:
        return [(name, "") for name in broker.pools.pools()]


def _workers(url: str, _incomplete: str) -> list[tuple[str, str]]:
    from heddle.broker import open_broker

    with open_broker(url, role="cli") as broker:
        found = [info for pool in broker.pools.pools() for info in broker.pools.workers(pool)]
        return [(info.beat.worker, info.beat.state) for info in found]


@command(
    "completion",
    example='eval "$(heddle completion bash)"      # into ~/.bashrc\nheddle completion zsh > ~/.zfunc/_heddle',
)
@click.argument("shell", metavar="[SHELL]", type=click.Choice(["bash", "zsh", "fish"]), required=False)
def completion(shell: str | None) -> None:
    """Print what SHELL (by itself the one that is used) needs to complete commands, options and live names."""
    from heddle.cli.root import cli
    from heddle.errors import UsageError

    name = shell or Path(os.environ.get("SHELL", "")).name
    found = get_completion_class(name)
    if found is None:
        raise UsageError(f"no completion for the shell {name or '(none)'!r}; say which: bash, zsh or fish")
    click.echo(found(cli, {}, "heddle", "_HEDDLE_COMPLETE").source())
