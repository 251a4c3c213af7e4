"""What earlier `heddle run`s left in this directory: named before a new one begins, and cleared where it is over.

It never removes what is still to go on, nor anything of a run's results.
"""

from pathlib import Path

from heddle.broker.server import is_running
from heddle.cli.tables import print_facts
from heddle.client import FOLDER, Client
from heddle.launch.cut_short import cut_short, noted_in


def say_others(folder: Path, *, to_stderr: bool) -> None:
    """Name the runs that were cut short here and that the one whose server's folder is `folder` does not go on with."""
    others = [run for run in cut_short(FOLDER, is_running) if run.folder.resolve() != folder.resolve()]
    print_facts([("note  ", str(run)) for run in others], to_stderr=to_stderr)


def keep_what_goes_on(client: Client, folder: Path, sha256: str, *, to_stderr: bool) -> None:
    """Clear a private server, in `folder`, of what an earlier run left there when it was killed.

    What the spec of that digest goes on with stays. Where that run had ended, this one begins anew, as it does after an
    end that was shown; then it is said how that one ended and where its results are, for nobody has been told.
    """
    statuses = {status.experiment: status for status in client.experiments()}
    for status in statuses.values():
        if status.ended or client.broker.experiments.spec(status.experiment).sha256 != sha256:
            client.broker.experiments.remove(status.experiment, force=True)
    run = noted_in(folder)
    if run is None or run.sha256 != sha256:
        return
    was = statuses.get(run.experiment)
    if was is not None and not was.ended:
        return
    how = run.ended() or (f"{was.state}: {was.reason}" if was is not None else "")
    if how:
        print_facts([("note  ", f"{run.tell_end(how)}; this run begins anew")], to_stderr=to_stderr)
