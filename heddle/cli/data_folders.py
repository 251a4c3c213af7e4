"""`data show`, `data to-minari`, `data from-minari`: folders of recorded experience.

It never changes one.
"""

from pathlib import Path

import click

from heddle.cli.options import epilog, output_option, print_json
from heddle.cli.progress import progress
from heddle.cli.root import Group
from heddle.cli.tables import print_facts

folder_argument = click.argument("folder", metavar="DIR")


@click.group("data", cls=Group, epilog=epilog("heddle data show demos\nheddle data to-minari demos --to demos-minari"))
def data() -> None:
    """Look at recorded experience, and trade with Minari."""


@data.command("show", epilog=epilog("heddle data show demos -o json"))
@folder_argument
@output_option
def show(folder: str, output: str) -> None:
    """Show what DIR holds: of which experiment, how many episodes, and the columns."""
    from heddle.cli.record import facts_of, line_of
    from heddle.consumers.data.store import read_manifest
    from heddle.origin import shortened

    manifest = read_manifest(Path(folder))
    told = manifest.provenance
    own = f", commit {shortened(told['commit'])}" if told.get("commit") else ""
    shown = {column.name: f"{column.dtype}{list(column.shape) or ''}" for column in manifest.columns}
    if output == "json":
        facts = {**facts_of(manifest), "spaces": manifest.spaces, "columns": shown, "provenance": told}
        print_json(facts, ids=[folder])
        return
    print_facts(
        [
            ("holds", line_of(manifest, folder)),
            ("of", f"{told['experiment']}, {told['env']}, seed {told['seed']}, by Heddle {told['code']}{own}"),
            ("complete", "yes" if manifest.done else "no: heddle record-experience goes on with it"),
            *shown.items(),
        ]
    )


@data.command("to-minari", epilog=epilog("heddle data to-minari demos --to demos-minari"))
@folder_argument
@click.option("--to", "target", metavar="DIR", required=True, help="A folder that is not there yet.")
@click.option("--id", "dataset_id", metavar="ID", help="Minari's name of it; heddle/NAME-v0 when not given.")
@click.option("--cut/--no-cut", default=True, help="Also episodes that were cut; they end truncated.")
def to_minari(folder: str, target: str, dataset_id: str | None, cut: bool) -> None:
    """Write DIR as a Minari dataset: minari.MinariDataset(TARGET) opens it."""
    from heddle.consumers.data.minari import export

    with progress(f"writing {target}:") as shown:
        episodes, steps = export(
            Path(folder),
            Path(target),
            dataset_id=dataset_id,
            with_cut=cut,
            tell=lambda done, of: shown.tell(f"{done:,} of {of:,} episodes"),
        )
    click.echo(f"{target}: {episodes:,} episodes, {steps:,} steps")


@data.command("from-minari", epilog=epilog("heddle data from-minari D4RL/pen/human-v2 --to demos"))
@click.argument("source", metavar="SOURCE")
@click.option("--to", "folder", metavar="DIR", required=True, help="The folder to write.")
def from_minari(source: str, folder: str) -> None:
    """Write a Minari dataset, a folder or the id of one on this machine, as what a spec's [data] can name."""
    from heddle.cli.record import line_of
    from heddle.launch.from_minari import import_minari

    with progress(f"reading {source}:") as shown:
        made = import_minari(source, Path(folder), tell=lambda done, of: shown.tell(f"{done:,} of {of:,} episodes"))
    click.echo(line_of(made, folder))
