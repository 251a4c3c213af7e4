"""`workers start|ls|scale|drain`: the pool's processes.

It never starts a process on another host: `scale` writes a number, supervisors act on it.
"""

from pathlib import Path

import click

from heddle.cli.options import epilog, find_url, redis_option
from heddle.cli.roles import begin_role
from heddle.cli.root import Group

pool_option = click.option("--pool", default="default", show_default=True, help="The pool.")


@click.group(
    "workers",
    cls=Group,
    epilog=epilog("heddle workers start -n 4\nheddle workers ls\nheddle workers scale 64"),
)
def workers() -> None:
    """Start, list, scale and drain workers."""


@workers.command("start", epilog=epilog("heddle workers start -n 4 --redis-url redis://host:6379/0"))
@click.option("-n", "--number", type=click.IntRange(0), default=1, show_default=True, help="Workers, until scaled.")
@click.option("--most", metavar="N", type=click.IntRange(0), help="Never more than N here, whatever the pool's size.")
@click.option("--log-dir", metavar="DIR", help="One log file a worker; else only the last lines are kept.")
@pool_option
@redis_option
def start(number: int, most: int | None, log_dir: str | None, pool: str, redis_url: str | None) -> None:
    """Keep workers running on this host: N, or this host's part once `heddle workers scale` set the pool's size."""
    url = find_url(redis_url)
    stop = begin_role()
    from heddle.launch.supervisor import Supervisor

    folder = Path(log_dir) if log_dir else None
    raise click.exceptions.Exit(Supervisor(url, pool, wants=number, most=most, stop=stop, log_dir=folder).run())
