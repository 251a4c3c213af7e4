"""The last word of an experiment to its trackers: how it ended, and the checkpoint to keep where that is here."""

from pathlib import Path

from heddle.checkpoint import BEST, listing
from heddle.consumers.saver import DIRECTORY
from heddle.consumers.tracking.base import Standing
from heddle.consumers.tracking.points import Ending
from heddle.errors import CheckpointError


def ending_of(status: Standing, directory: Path | None) -> Ending:
    """How an experiment that is over ended.

    Args:
        directory: where runs leave their checkpoints here; None sends none.
    """
    found = None if directory is None else best_in(directory / status.experiment / DIRECTORY)
    return Ending(status.state, status.reason, dict(status.result), found)


def best_in(home: Path) -> Path | None:
    """The best checkpoint of a folder, else its newest; None for none."""
    if (home / BEST).is_file():
        return home / BEST
    try:
        files = listing(home)
    except CheckpointError:
        return None
    return files[0] if files else None
