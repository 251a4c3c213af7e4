"""`up`: server, coordinator, workers and trainers in one terminal, waiting for experiments.

It never submits one.
"""

import logging
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from heddle.cli.json_out import relay
from heddle.cli.log_lines import is_json
from heddle.cli.options import command, connect, folder_to_fill, redis_option
from heddle.cli.roles import need_torch
from heddle.cli.root import set_up_logs
from heddle.errors import HeddleError

if TYPE_CHECKING:
    from heddle.broker.server import LocalServer
    from heddle.cli.audience import Audience
    from heddle.launch.local import Local
    from heddle.stop import StopFlag

log = logging.getLogger("heddle.up")

STEP_S = 0.05


@command("up", example="heddle up\nheddle up --bind 0.0.0.0 --workers 8     # says how others reach it")
@click.option("-n", "--workers", type=click.IntRange(0), help="Worker processes; one a core when not given.")
@click.option(
    "--bind",
    metavar="ADDR",
    help="Let other hosts in: listen on ADDR, with a password in a file, a new one at each start.",
)
@click.option("--port", type=click.IntRange(0, 65535), help="TCP port; 0 takes any free one.")
@click.option(
    "--durability",
    type=click.Choice(["strict", "fast", "memory"]),
    help="What a killed server may lose: nothing, two seconds, everything. As the last time here, at first fast.",
)
@click.option("--dir", "directory", metavar="DIR", default="runs", show_default=True, help="Where checkpoints go.")
@click.option("--trainer/--no-trainer", default=True, help="Train what has no trainer; without, bring your own.")
@redis_option
def up(
    workers: int | None,
    bind: str | None,
    port: int | None,
    durability: str | None,
    directory: str,
    trainer: bool,
    redis_url: str | None,
) -> None:
    """Start the services without an experiment; commands typed in the same folder find them.

    Ctrl-C ends them all, as a closed terminal does: workers deliver, trainers save. What the broker holds stays in
    .heddle for the next time.
    """
    if trainer:
        need_torch("heddle up")
        folder_to_fill(directory, "--dir")
    from heddle.cli.audience import lasting_output
    from heddle.client import FOLDER
    from heddle.errors import UsageError
    from heddle.launch.host import cores
    from heddle.launch.local import LAUNCHER_SIGNALS, Local, Setup
    from heddle.stop import StopFlag, listen_to_signals

    if redis_url and (bind or port is not None):
        raise UsageError("--bind and --port are for a server of our own; leave out --redis-url (or HEDDLE_REDIS_URL)")
    set_up_logs(logging.INFO, is_service=True)
    stop = StopFlag()
    listen_to_signals(stop, LAUNCHER_SIGNALS)
    if redis_url:
        connect(redis_url).close()  # one that cannot be used is an error at once
    with lasting_output(minds_pipes=False) as audience, relay() as passed:
        audience.tells(partial(stop.drain, arms=False))
        setup = Setup(
            url=redis_url,
            folder=FOLDER,
            keep_data=True,
            bind=bind,
            port=port,
            durability=durability,  # type: ignore[arg-type]
            workers=cores() if workers is None else workers,
            log_dir=FOLDER / "logs",
            on_line=passed.pass_on if passed else None,
        )
        _serve(Local(setup, stop=stop), stop, audience, Path(directory), trains=trainer)


def _serve(local: "Local", stop: "StopFlag", audience: "Audience", directory: Path, *, trains: bool) -> None:
    """Run the services until told to end."""
    from heddle.launch.trackers import hosting_trackers

    local.start_server()
    try:
        local.start_roles()
        if trains:
            local.add_service("trainers", ["trainer", "--dir", str(directory)])
        _tell(local.server, local.setup.workers, trains)
        _tell_of_before(local.url)
        with hosting_trackers(local.url, directory=directory, stop=stop, on_line=local.setup.on_line):
            while not stop.draining:
                local.step()
                local.endings.clear()
                audience.look()
                stop.wait(STEP_S)
        click.echo("ending: workers deliver, trainers save; Ctrl-C again to stop at once", err=True)
    finally:
        local.end()


def _tell_of_before(url: str) -> None:
    """What holds from an earlier time, however that ended: the pool's size, and experiments that go on."""
    try:
        with connect(url) as client:
            desired = client.broker.pools.pool().desired
            active = [one for one in reversed(client.experiments()) if not one.ended]
    except HeddleError as error:  # a broker that has just been killed; it is started again
        log.warning("cannot tell what goes on error=%s", error)
        return
    if desired is not None:
        _say(f"scaled   to {desired} workers in all, as somebody set it; undo: heddle workers scale --reset")
    for one in active:
        _say(f"goes on  {one.experiment} ({one.state}, policy {one.policy})")


def _tell(server: "LocalServer | None", workers: int, trainer: bool) -> None:
    """What runs and how to reach it."""
    if server is None:
        _say("broker   the one given")
    else:
        _say(f"broker   {server.settings.binary}, {server.settings.durability}, in {server.settings.folder}")
        _say(f"look     {server.redis_cli}")
        if server.shown_url and server.remote_url:
            _say(f"others   export HEDDLE_REDIS_URL='{server.shown_url}'")
            _say("         (any folder of this host; on others with a copy of that file there)")
        elif server.shown_url:
            _say(f"here     export HEDDLE_REDIS_URL='{server.shown_url}'     (any folder of this host)")
    _say(f"roles    coordinator, {workers} workers{', trainers' if trainer else ''}; logs in .heddle/logs")
    _say("next     heddle enqueue exp.toml --follow     (in this folder)")


def _say(text: str) -> None:
    """A line for people; where standard output is for logs as JSON it goes to the other one."""
    click.echo(text, err=is_json())
