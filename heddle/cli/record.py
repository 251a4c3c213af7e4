"""`record-experience`: an experiment's experience into a folder of Parquet files.

It never holds the run up, and a run goes on when it ends.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from heddle.cli.commands import experiment_argument
from heddle.cli.options import command, connect, output_option, print_json, redis_option
from heddle.cli.progress import Progress, progress
from heddle.cli.tables import say

if TYPE_CHECKING:
    from heddle.consumers.data.store import Manifest


def size(_context: click.Context, _parameter: click.Parameter, value: str | None) -> int | None:
    """An option's value in bytes, also from 64MiB or 10GB."""
    from heddle.spec.values import parse_size

    if value is None:
        return None
    try:
        number = int(value) if value.isdigit() else parse_size(value)
    except ValueError as error:
        raise click.BadParameter(f"{value!r} {error}") from error
    return int(str(number))


@command(
    "record-experience",
    example="heddle record-experience cartpole --to demos --episodes 500\n"
    "duckdb -c \"select episode, sum(reward) from 'demos/data/*.parquet' group by episode\"",
)
@experiment_argument
@click.option("--to", "folder", metavar="DIR", required=True, help="The folder; goes on where it stands.")
@click.option("--episodes", type=click.IntRange(1), metavar="N", help="End when so many are whole.")
@click.option("--kind", type=click.Choice(["train", "eval", "all"]), default="train", show_default=True)
@click.option("--max-bytes", metavar="SIZE", callback=size, help="End when the files have so many, e.g. 10GiB.")
@click.option("--follow/--no-follow", default=True, help="Until the experiment is over, or only what is there now.")
@output_option
@redis_option
def record_experience(
    experiment: str,
    folder: str,
    episodes: int | None,
    kind: str,
    max_bytes: int | None,
    follow: bool,
    output: str,
    redis_url: str | None,
) -> int:
    """Write the experience of EXP into DIR as it comes: Parquet, by episode, each step once.

    Ctrl-C, or a crash, ends recording; the same command goes on from there. What the trainer was done with before the
    recorder came to it is missed, and counted: begin before the run, or with it.
    """
    from heddle.consumers.data.recorder import Options, Recorder
    from heddle.launch.check import see_spaces
    from heddle.stop import StopFlag, listen_to_signals

    stop = StopFlag()
    listen_to_signals(stop)
    kinds = ("train", "eval") if kind == "all" else (kind,)
    options = Options(Path(folder), episodes, kinds, max_bytes, follow)
    with connect(redis_url) as client, progress(f"recording into {folder}:") as shown:
        told = _Told(shown, episodes)
        found = client.experiment(experiment)
        recorder = Recorder(client.broker, found.id, options, stop=stop, describe=see_spaces, tell=told.look)
        manifest = recorder.run()
    if output == "json":
        print_json({"experiment": found.id, "folder": folder, **facts_of(manifest)})
    else:
        click.echo(line_of(manifest, folder))
        if not manifest.done:
            click.echo("stopped; the same command goes on from here", err=True)
    return 0 if manifest.done else 130


class _Told:
    """Says how far it is, and once that batches were missed, when they are.

    Args:
        episodes: how many are wanted; None for all there will be.
    """

    def __init__(self, shown: Progress, episodes: int | None) -> None:
        self._shown, self._of = shown, f" of {episodes:,}" if episodes is not None else ""
        self._missed = 0

    def look(self, manifest: "Manifest") -> None:
        """Say so."""
        from heddle.cli.specs import size as in_words

        held = f"{manifest.steps:,} steps, {in_words(manifest.size_bytes)}"
        self._shown.tell(f"{manifest.episodes:,}{self._of} whole episodes, {held}")
        if manifest.state.missed > self._missed and not self._missed:
            with self._shown.away():
                say(
                    "the trainer was done with batches before they could be recorded, and the episodes that they were"
                    " part of are cut; to miss none, begin to record before the run, or with it",
                    to_stderr=True,
                )
        self._missed = manifest.state.missed


def facts_of(manifest: "Manifest") -> dict[str, object]:
    """What a recording holds, for programs."""
    return {
        "episodes": manifest.episodes,
        "cut": manifest.state.cut,
        "steps": manifest.steps,
        "bytes": manifest.size_bytes,
        "files": len(manifest.files),
        "missed": manifest.state.missed,
        "refused": manifest.refused,
        "repeated": manifest.state.repeated,
        "done": manifest.done,
    }


def line_of(manifest: "Manifest", folder: str) -> str:
    """The same for people."""
    from heddle.cli.specs import size as in_words

    state = manifest.state
    parts = [f"{manifest.episodes:,} whole episodes", f"{state.cut:,} cut", f"{manifest.steps:,} steps"]
    parts.append(in_words(manifest.size_bytes))
    if state.missed:
        parts.append(f"{state.missed:,} batches missed")
    return f"{folder}: {', '.join(parts)}"
