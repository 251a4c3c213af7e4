"""`batches ls`, `show`, `replay`, `drop`: batches that were set aside for good.

It never changes one: what can be used now may be offered again, the rest can only be looked at or thrown away.
"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from heddle.cli.commands import experiment_argument
from heddle.cli.options import connect, epilog, output_option, print_json, redis_option
from heddle.cli.root import Group
from heddle.cli.tables import duration, print_facts, print_table

if TYPE_CHECKING:
    from heddle.broker.dead import DeadBatch

HEX_BYTES = 256
MOST = 1_000
EXAMPLE = "heddle batches cartpole\nheddle batches show cartpole 1795983620711-0 --save batch.arrow"

ids_argument = click.argument("ids", metavar="[ID]...", nargs=-1)
all_option = click.option("--all", "everything", is_flag=True, help="All of them.")


@click.group(
    "batches",
    cls=Group,
    default=lambda _: "ls",
    subcommand_metavar="EXP | COMMAND [ARGS]...",
    epilog=epilog(EXAMPLE),
)
def batches() -> None:
    """Look at batches that could not be used, and offer them again."""


@batches.command("ls", epilog=epilog("heddle batches ls cartpole"))
@experiment_argument
@click.option("-n", "count", type=click.IntRange(1, MOST), default=50, show_default=True, help="At most so many.")
@output_option
@redis_option
def ls(experiment: str, count: int, output: str, redis_url: str | None) -> None:
    """List the batches of EXP that were set aside, newest first, each with the reason."""
    with connect(redis_url) as client:
        experiment = client.experiment(experiment).id
        found = client.broker.dead.ls(experiment, count=count)
        now_ms = client.broker.conn.now_ms()
    if output == "json":
        print_json({"experiment": experiment, "batches": [asdict(batch) for batch in found]})
        return
    rows = [
        (batch.id, duration(now_ms - batch.time_ms), *_identity(batch), batch.kept_bytes, batch.reason)
        for batch in found
    ]
    header = ("ID", "AGE", "SHARD", "EPOCH", "SEQ", "STEPS", "BYTES KEPT", "REASON")
    print_table(header, rows, empty="no batch was set aside")


@batches.command("show", epilog=epilog(EXAMPLE.splitlines()[1]))
@experiment_argument
@click.argument("batch_id", metavar="ID")
@click.option("--save", "file", metavar="FILE", help="Write its bytes there, as they are.")
@output_option
@redis_option
def show(experiment: str, batch_id: str, file: str | None, output: str, redis_url: str | None) -> None:
    """Show one batch of EXP: the reason, its pointer, and what its bytes hold, or the bytes where they hold nothing."""
    from heddle.consumers.salvage import examine
    from heddle.launch.check import see_spaces

    with connect(redis_url) as client:
        found = examine(client.broker, client.experiment(experiment).id, batch_id, describe=see_spaces)
    batch, data = found.batch, found.data
    if file is not None:
        _save(Path(file), batch.id, data)
    facts: dict[str, Any] = {
        **asdict(batch),
        "usable": not found.problem,
        "problem": found.problem,
        "columns": found.columns,
    }
    if output == "json":
        print_json({**facts, "first_bytes": (data or b"")[:HEX_BYTES].hex()})
        return
    print_facts(
        [
            ("id", batch.id),
            ("reason", batch.reason),
            *((f"entry {name}", value) for name, value in batch.fields.items()),
            ("bytes kept", batch.kept_bytes),
            ("usable now", f"no: {found.problem}" if found.problem else "yes"),
            *(found.columns.items()),
        ]
    )
    if not found.columns and data:
        click.echo(hexdump(data[:HEX_BYTES]))


@batches.command("replay", epilog=epilog("heddle batches replay cartpole 1795983620711-0"))
@experiment_argument
@ids_argument
@all_option
@output_option
@redis_option
def replay(experiment: str, ids: Sequence[str], everything: bool, output: str, redis_url: str | None) -> int:
    """Offer batches of EXP to its trainer again, those that can be used now; exit code 8 when one cannot.

    A batch that was set aside was never trained; it comes back once, under an identity of its own.
    """
    from heddle.consumers.salvage import offer_again
    from heddle.launch.check import see_spaces

    refused, told = 0, list[dict[str, object]]()
    with connect(redis_url) as client:
        found = client.experiment(experiment)
        chosen = _chosen(client, found.id, ids, everything=everything)
        for dead_id, problem in offer_again(client.broker, found.id, chosen, describe=see_spaces):
            refused += bool(problem)
            told.append({"id": dead_id, "offered": not problem, "problem": problem or ""})
            if output != "json":
                click.echo(f"{dead_id} {f'stays: {problem}' if problem else 'is offered again'}", err=bool(problem))
    if output == "json":
        print_json({"experiment": found.id, "batches": told})
    return 8 if refused else 0


@batches.command("drop", epilog=epilog("heddle batches drop cartpole --all"))
@experiment_argument
@ids_argument
@all_option
@output_option
@redis_option
def drop(experiment: str, ids: Sequence[str], everything: bool, output: str, redis_url: str | None) -> None:
    """Throw batches of EXP and their bytes away for good; they stay counted as dead."""
    with connect(redis_url) as client:
        found = client.experiment(experiment)
        chosen = _chosen(client, found.id, ids, everything=everything)
        if not everything:
            for dead_id in chosen:
                client.broker.dead.find(found.id, dead_id)
        number = client.broker.dead.drop(found.id, chosen)
    if output == "json":
        print_json({"experiment": found.id, "dropped": number}, ids=chosen)
    else:
        click.echo(f"dropped {number}")


def hexdump(data: bytes) -> str:
    """Sixteen bytes a line: offset, hex, and what of it is text."""
    lines = []
    for start in range(0, len(data), 16):
        row = data[start : start + 16]
        shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{start:08x}  {row.hex(' '):<47}  {shown}")
    return "\n".join(lines)


def _identity(batch: "DeadBatch") -> tuple[object, ...]:
    pointer = batch.pointer
    if pointer is None:
        return ("-", "-", "-", "-")
    return (pointer.played_shard, pointer.epoch, pointer.seq, pointer.steps)


def _chosen(client: Any, experiment: str, ids: Sequence[str], *, everything: bool) -> list[str]:
    if bool(ids) == everything:
        raise click.UsageError("name batches by their id, or say --all")
    if everything:
        return [batch.id for batch in reversed(client.broker.dead.ls(experiment, count=MOST))]
    return list(dict.fromkeys(ids))


def _save(file: Path, batch_id: str, data: bytes | None) -> None:
    from heddle.errors import NotFound, UsageError

    if data is None:
        raise NotFound(f"no bytes of {batch_id} are kept")
    try:
        file.write_bytes(data)
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror or error}") from error
