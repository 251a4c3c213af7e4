"""`init`, `validate`, `plan`: everything about a spec that needs no broker.

They never write to Redis; `validate` and `plan` run user code unless told not to.
"""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from heddle.cli.options import command, existing_file, output_option, print_json, redis_option, set_option
from heddle.cli.progress import trying
from heddle.cli.tables import print_facts, terminal_columns

if TYPE_CHECKING:
    from heddle.spec import LoadedSpec

LEAST_GAIN = 1.5
"""Of a vector form, to be told of."""
check_option = click.option(
    "--check/--no-check", default=True, help="Build one environment and the policy, which runs your code."
)
file_argument = click.argument("file", metavar="exp.toml", callback=existing_file)


@command("init", example="heddle init\nheddle init pong.toml --env ale_py:ALE/Pong-v5")
@click.argument("file", metavar="[exp.toml]", default="exp.toml", callback=existing_file)
@click.option("--name", metavar="NAME", help="experiment.name; the file's name when not given.")
@click.option("--env", "env_id", metavar="ID", default="CartPole-v1", show_default=True, help="env.id")
@click.option("--force", is_flag=True, help="Overwrite the file.")
def init(file: Path, name: str | None, env_id: str, force: bool) -> None:
    """Write a commented exp.toml to start from."""
    from heddle.errors import Conflict, UsageError
    from heddle.spec import load_spec
    from heddle.spec.template import template

    if '"' in env_id or "\\" in env_id:
        raise UsageError(f"--env {env_id!r} cannot be an environment's id")
    text = template(name=name or _slug(file.stem), env_id=env_id)
    load_spec(text)
    try:
        with file.open("w" if force else "x", encoding="utf-8") as out:
            out.write(text)
    except FileExistsError as error:
        raise Conflict(f"{file} exists; give another name, or --force to overwrite it") from error
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror or error}") from error
    click.echo(f"wrote {file}; next: heddle run {file}")


def _slug(text: str) -> str:
    """A file's stem as an experiment's name."""
    kept = "".join(letter if letter.isalnum() and letter.isascii() else "-" for letter in text.lower()).strip("-")
    return kept[:63] or "my-run"


@command("validate", example="heddle validate exp.toml\nheddle validate exp.toml --no-check")
@file_argument
@set_option
@check_option
@output_option
def validate(file: Path, overrides: tuple[str, ...], check: bool, output: str) -> None:
    """Find every mistake in exp.toml: one line each, exit code 3.

    Builds one environment and the policy to see that they fit, which runs your code; --no-check leaves that out.
    """
    from heddle.errors import SpecError
    from heddle.launch.check import load_and_check
    from heddle.spec import load_spec

    gain = 0.0
    try:
        if check:
            with trying():
                loaded, checked = load_and_check(file, overrides, with_snapshot=True)
            snapshot = describe_snapshot(checked.needed.snapshot_bytes, checked.no_snapshot)
            gain = checked.vector_gain
        else:
            loaded, snapshot = load_spec(file, overrides=overrides), "not tried"
    except SpecError as error:
        if output == "json":
            told = [asdict(problem) for problem in error.problems]
            print_json({"valid": False, "problems": told}, ids=[one.key or str(file) for one in error.problems])
        raise
    if output == "json":
        known = {"valid": True, "name": loaded.spec.experiment.name, "sha256": loaded.spec.sha256()}
        print_json({**known, "snapshot": snapshot, "vector_gain": round(gain, 2)})
        return
    click.echo(f"{file}: valid{'' if check else ' (environment and policy not tried)'}")
    if check:
        print_facts([("snapshots", snapshot), ("faster", describe_gain(gain))])


@command("plan", example="heddle plan exp.toml --set env.num_envs=64")
@file_argument
@set_option
@check_option
@output_option
@redis_option
def plan(file: Path, overrides: tuple[str, ...], check: bool, output: str, redis_url: str | None) -> None:
    """Show every value of exp.toml with its origin, the shards, bytes per batch and the memory it will need.

    Writes nothing to Redis; where a broker is known, says whether it keeps what the spec asks for. Builds one
    environment and the policy for the sizes; --no-check leaves that out.
    """
    from heddle.launch.check import load_and_check
    from heddle.spec import load_spec
    from heddle.spec.beside import who_waits
    from heddle.spec.offered import fixed_seed
    from heddle.spec.variants import mix

    if check:
        with trying():
            loaded, checked = load_and_check(file, overrides, with_snapshot=True)
        numbers: dict[str, Any] = {**checked.numbers(), "no_snapshot": checked.no_snapshot}
        numbers["vector_gain"] = round(checked.vector_gain, 2)
        numbers["variants"] = mix(loaded.spec, 0, loaded.spec.env.num_envs)
        numbers["stepping"] = who_waits(loaded.spec)
    else:
        loaded = load_spec(file, overrides=overrides)
        numbers = {}
    values, broker = resolved_values(loaded), _broker_here(loaded, redis_url)
    if output == "json":
        told = {"values": values, "needs": numbers, "broker": broker, "warning": fixed_seed(loaded.spec)}
        print_json(told, ids=list(values))
        return
    _print_values(values)
    if numbers:
        click.echo("")
    needs = [("variants", numbers["variants"]), *describe_needs(numbers)] if numbers else []
    print_facts([*needs, ("here", broker), ("warning", fixed_seed(loaded.spec))])


def _broker_here(loaded: "LoadedSpec", redis_url: str | None) -> str:
    """Whether the broker that is known here does for a spec; "" when none is."""
    from heddle.broker.durability import lacking
    from heddle.client import connect, known_url
    from heddle.errors import HeddleError

    url = known_url(redis_url)
    if url is None:
        return ""
    try:
        with connect(url) as client:
            kept = client.broker.conn.kept()
    except HeddleError as error:
        return " ".join(str(error).split())
    return lacking(loaded.spec.limits.durability, kept) or f"the broker is {kept.name}: {kept.promise}"


def resolved_values(loaded: "LoadedSpec") -> dict[str, dict[str, Any]]:
    """Dotted key to its value and origin, in the order of the sections."""
    found: dict[str, dict[str, Any]] = {}
    for section, content in loaded.spec.model_dump(mode="json").items():
        if content is None:
            found[section] = {"value": None, "origin": loaded.origins.get(section, "default")}
            continue
        for key, value in content.items():
            dotted = f"{section}.{key}"
            found[dotted] = {"value": value, "origin": _origin(loaded.origins, dotted)}
    return found


def _origin(origins: dict[str, str], dotted: str) -> str:
    """Where a value came from; a table's is that of its first key."""
    if dotted in origins:
        return origins[dotted]
    return next((origin for key, origin in origins.items() if key.startswith(f"{dotted}.")), "default")


def _print_values(values: dict[str, dict[str, Any]]) -> None:
    import json

    shown = [(key, json.dumps(item["value"]), item["origin"]) for key, item in values.items()]
    width = max(len(key) for key, _, _ in shown)
    wide = min(40, max(len(value) for _, value, _ in shown))
    if (columns := terminal_columns()) is not None:
        wide = max(8, min(wide, columns - width - 4 - max(len(origin) for _, _, origin in shown)))
    for key, value, origin in shown:
        click.echo(f"{key:<{width}}  {value:<{wide}}  {origin}")


def describe_needs(numbers: dict[str, Any]) -> list[tuple[str, str]]:
    """What a plan will need, by name, in words."""
    updates = numbers["updates"]
    budget = f"{updates:,} updates" if updates is not None else "updates until another limit is reached"
    shards = f"{numbers['train_shards']} to train on, {numbers['eval_shards']} to evaluate"
    way = "through shared memory on the trainer's host" if numbers["shared"] else "through the broker"
    update = f"{numbers['steps_per_update']:,} steps, {numbers['batches_per_update']} batches"
    return [
        ("shards", f"{shards}, {numbers['envs_per_shard']} environments each"),
        ("stepping", numbers["stepping"]),
        ("batch", f"{size(numbers['batch_bytes'])} ({size(numbers['segment_bytes'])} a segment), {way}"),
        ("update", f"{update}, {size(numbers['bytes_per_update'])}; {budget}"),
        ("policy", f"{size(numbers['policy_bytes'])} a version"),
        ("snapshots", describe_snapshot(numbers["snapshot_bytes"], numbers["no_snapshot"])),
        ("faster", describe_gain(numbers["vector_gain"])),
        ("in flight", f"at most {size(numbers['in_flight_bytes'])}"),
        ("broker", f"should have {size(numbers['broker_bytes'])} of memory"),
    ]


def describe_snapshot(size_bytes: int, reason: str | None) -> str:
    """Whether environments can be snapshotted, in words."""
    if reason is None:
        return "none (faults.snapshot_every = 0)"
    if reason:
        return f"none: {reason}; whoever takes over a shard begins fresh episodes"
    return f"{size(size_bytes)} an environment; whoever takes over a shard can continue its episodes"


def describe_gain(gain: float) -> str:
    """What a vector form would gain, in words; "" where it is not worth a change."""
    if gain < LEAST_GAIN:
        return ""
    return (
        f"vector = true in [env] played {gain:.1f} times as many steps a second just now, in one call for a shard; "
        "its episodes have other seeds, cannot be repeated one by one, and are not continued by whoever takes over"
    )


def size(count: float) -> str:
    """Bytes in words, e.g. "1.5 MiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError("unreachable")
