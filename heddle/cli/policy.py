"""`policy pull`: fetch a published policy; `policy export` is in a file of its own.

It never changes what is published.
"""

import contextlib
from pathlib import Path

import click

from heddle.cli.commands import experiment_argument
from heddle.cli.options import connect, epilog, existing_file, output_option, print_json, redis_option
from heddle.cli.policy_export import export
from heddle.cli.root import Group


@click.group("policy", cls=Group, epilog=epilog("heddle policy pull cartpole policy.safetensors"))
def policy() -> None:
    """Fetch published policies, write trained ones for others to use."""


policy.add_command(export)


@policy.command("pull", epilog=epilog("heddle policy pull cartpole policy.safetensors"))
@experiment_argument
@click.argument("file", metavar="FILE", callback=existing_file)
@click.option("--version", "number", type=click.IntRange(1), help="Which one; the latest when not given.")
@output_option
@redis_option
def pull(experiment: str, file: Path, number: int | None, output: str, redis_url: str | None) -> None:
    """Write the weights that EXP plays with to FILE, as safetensors; only the last few versions are kept."""
    from heddle.errors import UsageError

    with connect(redis_url) as client:
        found = client.experiment(experiment)
        version, data = client.broker.policies.fetch(found.id, number)
    try:
        write_whole(file, data)
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror or error}") from error
    if output == "json":
        print_json({"file": str(file), "experiment": found.id, "version": version, "bytes": len(data)}, ids=[str(file)])
        return
    click.echo(f"{file}: version {version} of {found.id}, {len(data):,} bytes")


def write_whole(file: Path, data: bytes) -> None:
    """Write a file that is there whole or not at all. Raises OSError."""
    if not file.name or (file.exists() and not file.is_file()):
        raise OSError("it is no file")
    temporary = file.with_name(f".{file.name}.tmp")
    try:
        temporary.write_bytes(data)
        temporary.replace(file)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
