"""`workers start|ls|scale|drain`: the pool's processes.

It never starts a process on another host: `scale` writes a number, supervisors act on it.
"""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from heddle.cli.completion import pool_names, worker_names
from heddle.cli.json_out import relay
from heddle.cli.options import connect, epilog, find_url, folder_to_fill, output_option, print_json, redis_option
from heddle.cli.roles import HOST_EXIT_S, begin_role
from heddle.cli.root import Group
from heddle.cli.tables import duration, print_table, say
from heddle.subject import this_process_is

if TYPE_CHECKING:
    from heddle.broker.pools import WorkerInfo
    from heddle.states.judgement import Judgement

MOST_WORKERS = 1_000_000
"""More in a pool is a slip of the keyboard."""

pool_option = click.option("--pool", default="default", shell_complete=pool_names, show_default=True, help="The pool.")


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
    """Keep workers running on this host: N, or this host's part once `heddle workers scale` set the pool's size.

    On Linux they are forked from a process that has loaded everything; HEDDLE_START=spawn starts each by itself.
    """
    url = find_url(redis_url)
    stop = begin_role("heddle.launch.supervisor", exit_s=HOST_EXIT_S)
    from heddle.launch.supervisor import Supervisor

    folder = folder_to_fill(log_dir, "--log-dir") if log_dir else None
    with relay() as passed:
        on_line = passed.hear_worker if passed else None
        supervisor = Supervisor(url, pool, wants=number, most=most, stop=stop, log_dir=folder, on_line=on_line)
        this_process_is(supervisor=supervisor.name, pool=pool)
        code = supervisor.run()
    raise click.exceptions.Exit(code)


@workers.command("ls", epilog=epilog("heddle workers ls\nheddle workers ls --pool gpu -o json"))
@pool_option
@output_option
@redis_option
def ls(pool: str, output: str, redis_url: str | None) -> None:
    """List the workers of a pool and how they really are."""
    from heddle.states.look import look_at_pool

    with connect(redis_url) as client:
        seen, found = look_at_pool(client.broker, pool)
        info = client.broker.pools.pool(pool)
    if output == "json":
        size = {name: value for name, value in asdict(info).items() if name != "name"}
        told = [worker_as_json(worker, judged, seen.now_ms) for worker, judged in found]
        print_json({"pool": pool, **size, "workers": told})
        return
    rows = []
    for worker, judged in found:
        beat = worker.beat
        speed = f"{beat.steps_per_second:,.0f}" if beat.steps_per_second else "-"
        heard = f"{duration(worker.silent_ms)} ago"
        waits = "-" if beat.waits is None else f"{beat.waits:.0%}"
        row = (beat.worker, judged.shown, beat.host, beat.pid, beat.shards, beat.envs, speed, waits, heard)
        rows.append((*row, judged.line(seen.now_ms)))
    header = ("WORKER", "STATE", "HOST", "PID", "SHARDS", "ENVS", "STEPS/S", "WAITS", "SEEN", "WHY")
    way = "heddle workers start -n 2" if info.desired is None else f"heddle workers scale N --pool {pool}"
    print_table(header, rows, empty=f"no workers in pool {pool}; start some with: {way}")
    alive = sum(judged.state in ("alive", "waiting", "draining") for _, judged in found)
    desired = "as many as its supervisors were started with" if info.desired is None else info.desired
    click.echo(f"alive {alive}, desired {desired}")


def worker_as_json(info: "WorkerInfo", judged: "Judgement", now_ms: int) -> dict[str, Any]:
    """A worker for programs: `state` is how it really is, `phase` what it said of itself last."""
    known = {name: value for name, value in asdict(info).items() if name != "beat"}
    speed = round(info.beat.steps_per_second, 1)
    return {
        **asdict(info.beat),
        **known,
        "steps_per_second": speed,
        "phase": info.beat.state,
        **judged.in_short(now_ms),
    }


@workers.command(
    "scale",
    epilog=epilog("heddle workers scale 64\nheddle workers scale --reset"),
    context_settings={"ignore_unknown_options": True},  # so that -1 is a number that is too low
)
@click.argument("number", metavar="N", type=click.IntRange(0, MOST_WORKERS), required=False)
@click.option("--reset", is_flag=True, help="Let every supervisor run as many as it was started with again.")
@pool_option
@output_option
@redis_option
def scale(number: int | None, reset: bool, pool: str, output: str, redis_url: str | None) -> None:
    """Set how many workers the pool shall have; the supervisors (`heddle workers start`, `up`) share them out.

    The size stays in the broker, whoever starts or ends, until it is set again or --reset. More than a host has room
    for is said and done.
    """
    from heddle.errors import UsageError
    from heddle.launch.room import doubts

    if (number is None) != reset:
        raise UsageError("say how many: heddle workers scale N, or --reset")
    with connect(redis_url) as client:
        client.broker.pools.set_desired(pool, number)
        hosts = client.broker.pools.hosts(pool) if number is not None else {}
    doubted = list(doubts(number, hosts)) if number is not None else []
    for doubt in doubted:
        click.echo(f"warning: {doubt}", err=True)
    if output == "json":
        print_json({"pool": pool, "desired": number, "warnings": doubted}, ids=[pool])
        return
    shall = f"shall have {number} workers" if number is not None else "has as many as its supervisors were started with"
    say(f"pool {pool} {shall}; see them with: heddle workers ls --pool {pool}")


@workers.command("drain", epilog=epilog("heddle workers drain host-1234w1-54d78b"))
@click.argument("worker", metavar="ID...", nargs=-1, required=True, shell_complete=worker_names)
@output_option
@redis_option
def drain(worker: tuple[str, ...], output: str, redis_url: str | None) -> None:
    """Have workers deliver what they have, let their shards go and end; a supervisor starts others in their place."""
    with connect(redis_url) as client:
        for one in worker:
            client.broker.pools.drain(one)
            if output != "json":
                say(f"{one} drains; its supervisor starts another one, for fewer say: heddle workers scale N")
    if output == "json":
        print_json({"workers": [{"worker": one, "says": f"{one} drains"} for one in worker]})
