"""The disk in the simulation: checkpoints by name, whole or not there, on storage that all trainers share.

It never invents a name or an order: those are the shipped module's.
"""

from collections.abc import Callable, Collection
from pathlib import Path

from heddle import checkpoint as real
from heddle.checkpoint import Checkpoint
from heddle.errors import CheckpointError
from tests.simulation.hub import Hub


class Disk:
    """Stands for the module `heddle.checkpoint`.

    Attributes:
        write_s: seconds that a file takes.
        is_full: nothing can be written.
        saved: called after each file that became durable.
    """

    BEST = real.BEST

    def __init__(self, hub: Hub, write_s: float) -> None:
        self.write_s = write_s
        self.is_full = False
        self.saved: Callable[[Checkpoint], None] = lambda checkpoint: None
        self._hub = hub
        self._files: dict[Path, Checkpoint] = {}

    def file_name(self, seat_epoch: int, update: int) -> str:
        return real.file_name(seat_epoch, update)

    def save(self, directory: Path, checkpoint: Checkpoint) -> Path:
        """Durable once this returns; a process killed on the way leaves nothing, or all of it."""
        self._hub.wait(self.write_s * self._hub.rng.random())
        if self.is_full:
            raise CheckpointError(f"cannot write {directory}: No space left on device")
        path = directory / real.file_name(checkpoint.seat_epoch, checkpoint.update)
        self._files[path] = checkpoint
        self.saved(checkpoint)
        self._hub.wait(self.write_s * self._hub.rng.random())
        return path

    def listing(self, directory: Path) -> list[Path]:
        return sorted((path for path in self._files if path.parent == directory), reverse=True)

    def find(self, directory: Path, *, experiment: str | None = None, below: str = "") -> real.Found:
        self._hub.wait(self.write_s * self._hub.rng.random())
        for path in self.listing(directory):
            if below and path.name >= below:
                continue
            if experiment is None or self._files[path].experiment == experiment:
                return real.Found(self._files[path], path)
        return real.Found()

    def highest_epoch(self, directory: Path) -> int:
        return max((self._files[path].seat_epoch for path in self.listing(directory)), default=0)

    def sweep(self, directory: Path, below: int) -> None:
        """Nothing is ever left unfinished."""

    def look(self, directory: Path) -> Checkpoint | None:
        """What a trainer that came now would resume; takes no time."""
        return next((self._files[path] for path in self.listing(directory)), None)

    def prune(self, directory: Path, keep: int, protect: Collection[Path] = ()) -> list[Path]:
        doomed = [path for path in self.listing(directory)[max(1, keep) :] if path not in protect]
        for path in doomed:
            del self._files[path]
        return doomed

    def mark_best(self, directory: Path, path: Path) -> Path:
        return directory / real.BEST
