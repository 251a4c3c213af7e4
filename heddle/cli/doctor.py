"""`doctor`: looks at this installation, this host, the broker and the fleet, and says what to fix.

It never changes anything, and works when nothing runs.
"""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from heddle.cli.options import command, output_option, print_json, redis_option
from heddle.cli.tables import fact_lines, terminal_columns

if TYPE_CHECKING:
    from heddle.broker.connection import Connection
    from heddle.cli.findings import Finding

BROKER_AREAS = ("broker", "fleet", "keys")


@command("doctor", example="heddle doctor\nheddle doctor -o json | jq '.findings[] | select(.level != \"ok\")'")
@click.option("--dir", "directory", metavar="DIR", default="runs", show_default=True, help="Where checkpoints go.")
@output_option
@redis_option
def doctor(directory: str, output: str, redis_url: str | None) -> None:
    """Check installation, host, broker and fleet, and say what to fix.

    Exit code 0 when nothing is bad, 5 when the broker is, 1 when only something else is.
    """
    from heddle.cli.findings import worst
    from heddle.cli.host_checks import of_host, of_install
    from heddle.client import FOLDER, URL_ENV, known_url, url_of_run

    url = known_url(redis_url) or url_of_run()
    found = [*of_install(needs_server=url is None), *of_host(Path(directory).absolute())]
    found += _of_broker(url) if url else [_nothing_runs(URL_ENV)]
    found += _cut_short(FOLDER)
    if output == "json":
        told = [asdict(finding) for finding in found]
        print_json({"worst": worst(found), "findings": told}, ids=[f"{one.area} {one.what}" for one in found])
    else:
        _print(found)
    bad = [finding.area for finding in found if finding.level == "bad"]
    raise click.exceptions.Exit(5 if set(bad) & set(BROKER_AREAS) else 1 if bad else 0)


def _print(found: "list[Finding]") -> None:
    colours = {"ok": "green", "warn": "yellow", "bad": "red"}
    columns = terminal_columns()
    for finding in found:
        lines = fact_lines(f"{finding.level:<4}  {finding.area + ' ' + finding.what:<24}  ", finding.says, columns)
        if finding.do:
            lines += fact_lines(f"{'':<30}  -> ", finding.do, columns)
        level = click.style(finding.level, fg=colours[finding.level])
        click.echo(f"{level}{lines[0].removeprefix(finding.level)}")
        for line in lines[1:]:
            click.echo(line)
    counts = {level: sum(finding.level == level for finding in found) for level in ("bad", "warn", "ok")}
    click.echo(", ".join(f"{count} {level}" for level, count in counts.items()))


def _nothing_runs(variable: str) -> "Finding":
    from heddle.cli.findings import Finding

    do = f"start one here with `heddle up`, or `heddle run exp.toml`; or name one: --redis-url, {variable}"
    return Finding("broker", "answer", "warn", "none is known here", do)


def _cut_short(folder: Path) -> "Iterator[Finding]":
    from heddle.broker.server import is_running
    from heddle.broker.server_folder import has_data
    from heddle.cli.findings import Finding
    from heddle.launch.cut_short import cut_short

    for run in cut_short(folder, is_running):
        has_ended = bool(run.ended())
        said, _, do = str(run).partition("; look: " if has_ended else "; go on: ")
        yield Finding("host", "run", "ok" if has_ended else "warn", said, do)
    if has_data(folder) and not is_running(folder):
        said = "a broker of `heddle up` kept its data here, and does not answer now"
        yield Finding("host", "services", "ok", said, "`heddle up` goes on with it; if it runs, see .heddle/server.log")


def _of_broker(url: str) -> "list[Finding]":
    """All about a broker that was named; one line when it cannot be asked."""
    from heddle.broker.examination import examine
    from heddle.broker.faults import SERVES_NOBODY
    from heddle.cli.findings import Finding, of_broker
    from heddle.clock import SystemClock
    from heddle.errors import BrokerAmiss, BrokerError, Denied

    try:
        seen, conn = examine(url, clock=SystemClock())
    except (BrokerError, Denied) as error:
        said, _, do = " ".join(str(error).split()).partition("; ")
        wait = "wait: it loads its data, changes roles or runs somebody's script; its log says which"
        do = do or (wait if SERVES_NOBODY in said else "check its address and that it runs")
        return [Finding("broker", "answer", "bad", said, do)]
    try:
        found = list(of_broker(seen))
        try:
            return found + list(_of_fleet(conn, seen))
        except BrokerAmiss as error:
            said = " ".join(str(error).split())
            return [*found, Finding("fleet", "keys", "bad", said, f"redis-cli DEL {error.key}")]
        except (BrokerError, Denied) as error:
            said = " ".join(str(error).split())
            return [*found, Finding("fleet", "keys", "bad", said, "allow this user to read heddle:* and to SCAN")]
    finally:
        conn.close()


def _of_fleet(conn: "Connection", seen: object) -> "Iterator[Finding]":
    from heddle.broker import Broker
    from heddle.broker.census import count, count_listed
    from heddle.broker.examination import SCAN, Examined
    from heddle.cli.findings import Finding, Level, of_keys, of_memory

    assert isinstance(seen, Examined)
    broker, may_scan = Broker(conn), SCAN not in seen.denied
    census = count(conn) if may_scan else count_listed(conn)
    yield of_memory(seen, census.wants_bytes)
    experiments = broker.experiments.ls()
    active = [one for one in experiments if not one.ended]
    leader = broker.coordinators.leader()
    leads = leader is not None and leader.left_ms > 0
    if leads and leader is not None:
        yield Finding("fleet", "coordinator", "ok", leader.coordinator)
    else:
        do = "start one: heddle coordinator (heddle up and heddle run bring one)"
        yield Finding("fleet", "coordinator", "warn" if active else "ok", "none leads", do if active else "")
    for pool in sorted({one.pool for one in active} or {"default"}):
        alive = sum(worker.alive for worker in broker.pools.workers(pool))
        wanted = bool(active) and not alive
        do = f"start some: heddle workers start --pool {pool}" if wanted else ""
        yield Finding("fleet", f"workers of {pool}", "warn" if wanted else "ok", f"{alive} alive", do)
    for one in active:
        holder = broker.seats.holder(one.experiment)
        level: Level = "ok" if holder is not None or one.state == "queued" else "warn"
        said = holder.trainer if holder is not None else "nobody trains it"
        do = f"heddle trainer {one.experiment} --dir DIR, where its checkpoints are" if level == "warn" else ""
        yield Finding("fleet", f"{one.experiment}"[:18], level, f"{one.state}, {said}", do)
    if may_scan:
        yield from of_keys(census, [one.experiment for one in experiments if one.ended])
    else:
        said = f"not looked through: {SCAN} is not allowed to this user"
        yield Finding("keys", "number", "warn", said, "ask as one with the rights that `heddle acl user` prints")
