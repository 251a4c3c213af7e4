"""Options that several commands share, and finding the broker they talk to.

It never falls back to another broker: one that was named and does not answer is an error.
"""

import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from errno import EDQUOT, ENAMETOOLONG, ENOSPC
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from heddle.cli.mistakes import too_long
from heddle.cli.root import Command
from heddle.errors import UsageError

if TYPE_CHECKING:
    from heddle.client import Client

F = TypeVar("F", bound=Callable[..., Any])

URL_ENV = "HEDDLE_REDIS_URL"
PASSING = (ENOSPC, EDQUOT)
"""A full disk may get room until something is to be kept."""


def command(name: str, *, example: str) -> Callable[[Callable[..., Any]], click.Command]:
    """A command whose help ends with `example`."""
    return click.command(name, cls=Command, epilog=epilog(example))


def epilog(example: str) -> str:
    """The end of a help page: lines to try, not wrapped."""
    lines = "\n".join(f"  {line.strip()}" for line in example.strip().splitlines())
    return f"\b\nExample:\n{lines}"


def redis_option(function: F) -> F:
    """--redis-url, else HEDDLE_REDIS_URL; a command passes it on to `find_url` or `connect`."""
    return click.option(
        "--redis-url",
        metavar="URL",
        envvar=URL_ENV,
        show_envvar=True,
        help="The broker, e.g. redis://host:6379/0; else the one of `heddle up` or `heddle run` in this folder.",
    )(function)


FORMATS = ("table", "wide", "json", "jsonl", "name")
"""What -o takes: for people, the same without breaking lines, one object, one object a line, ids alone."""
OUTPUT = "heddle.output"
"""Where the context keeps what -o said."""
LISTED = ("experiments", "workers", "shards", "batches", "results", "groups", "evaluations", "timeline", "problems")
LISTED_TOO = ("findings", "rules", "lines", "values", "stages")
IDS = ("experiment", "worker", "shard", "id", "group", "checkpoint", "name", "key", "area", "stage")


def output_option(function: F) -> F:
    """-o table|wide|json|jsonl|name; the command sees "json" for what programs read, else "table"."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(FORMATS),
        default="table",
        show_default=True,
        callback=remember_output,
        help="What to print: a table, one that no line of is broken, an object, an object a line, or ids.",
    )(function)


def remember_output(ctx: click.Context, _parameter: click.Parameter, value: str) -> str:
    """Of -o: what was said is kept for whoever prints."""
    ctx.meta[OUTPUT] = value
    return "table" if value in ("table", "wide") else "json"


def output_form() -> str:
    """What -o said, one of `FORMATS`; json where nobody was asked."""
    context = click.get_current_context(silent=True)
    return str(context.meta.get(OUTPUT, "json")) if context is not None else "json"


def set_option(function: F) -> F:
    """--set key=value, again and again."""
    return click.option(
        "--set",
        "overrides",
        metavar="KEY=VALUE",
        multiple=True,
        help="Change a value of the spec, e.g. --set trainer.lr=3e-4; may be repeated.",
    )(function)


def folder_to_fill(given: str, option: str) -> Path:
    """The folder that an option names, to be made when something comes into it.

    Raises:
        UsageError: it cannot be, or nothing can be written there.
    """
    folder = place = Path(given)
    _check_length(folder, option)
    while not os.path.lexists(place) and place != place.parent:
        place = place.parent
    if not place.is_dir():
        raise UsageError(f"nothing can be kept in {folder}: {place} is no folder; name another one with {option}")
    if not os.access(place, os.W_OK | os.X_OK):
        raise UsageError(f"nothing can be kept in {folder}: {place} may not be written; name another with {option}")
    try:
        with tempfile.TemporaryDirectory(dir=place, prefix=".heddle-"):  # rights say nothing of /proc
            pass
    except OSError as error:
        if error.errno not in PASSING:
            why = f"no folder can be made in {place} ({error.strerror or error})"
            raise UsageError(f"nothing can be kept in {folder}: {why}; name another with {option}") from error
    return folder


def _check_length(folder: Path, option: str) -> None:
    try:
        folder.lstat()
    except OSError as error:
        if error.errno == ENAMETOOLONG:
            raise UsageError(f"{option}: {too_long(folder)}") from error


def find_url(given: str | None) -> str:
    """The address of the broker: as given, else that of the server of `heddle up` in this folder.

    Raises:
        BrokerUnreachable: there is none, with the ways on.
    """
    if given:
        return given  # what the Python API would load is not needed for it
    from heddle.client import find_url as find
    from heddle.errors import BrokerUnreachable

    try:
        return find(given)
    except BrokerUnreachable as error:
        raise BrokerUnreachable(str(error).replace("url=...", "--redis-url URL")) from None


def connect(given: str | None, *, brings: bool = False) -> "Client":
    """A client of the broker at `find_url(given)`, connected and checked.

    Args:
        brings: it brings something that stays; else the broker of the `heddle run` in this folder does as well.

    Raises:
        BrokerError, Denied: one line that says what to do.
    """
    from heddle.client import connect as open_client
    from heddle.client import known_url, url_of_run

    return open_client(known_url(given) or (None if brings else url_of_run()) or find_url(given))


SCHEMA = 1
"""Version of what `-o json` prints (docs/json.md): rises when a name goes or changes its meaning, not for a new one."""


def print_json(value: Mapping[str, Any], *, ids: Sequence[str] | None = None) -> None:
    """What -o asked for on standard output: one JSON object with the version of its names, one a line, or ids.

    Args:
        ids: what `-o name` prints, where what is listed has no id of its own under one of `IDS`.
    """
    from heddle.broker.records import dump_json

    form = output_form()
    if form == "jsonl":
        for one in listed(value):
            click.echo(dump_json({"schema": SCHEMA, **one}))
    elif form == "name":
        for name in [identity(one, value) for one in listed(value)] if ids is None else ids:
            click.echo(name)
    else:
        click.echo(json.dumps(json.loads(dump_json({"schema": SCHEMA, **value})), indent=2))


def listed(value: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What an object lists, each as an object; the object itself where it lists nothing."""
    for name in (*LISTED, *LISTED_TOO):
        if isinstance(found := value.get(name), list | tuple) and (not found or isinstance(found[0], Mapping)):
            return list(found)
    return [value]


def identity(one: Mapping[str, Any], within: Mapping[str, Any]) -> str:
    """The id of what is listed, as other commands take it."""
    if "shard" in one:
        return f"{one.get('experiment') or within.get('experiment', '')}/{one['shard']}".lstrip("/")
    return str(next((one[name] for name in IDS if one.get(name) not in (None, "")), ""))


def existing_file(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> Path | None:
    """A path argument as a Path; whether it can be read is found out where it is read."""
    return None if value is None else Path(value)
