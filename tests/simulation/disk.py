"""The disk in the simulation: checkpoints by name, whole or not there, on storage that all trainers share.

It never invents a name or an order: those are the shipped module's.
"""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from heddle import checkpoint as real
from heddle.checkpoint import Checkpoint
from heddle.errors import CheckpointError
from tests.simulation.hub import Hub, Process


class Disk:
    """Stands for the module `heddle.checkpoint`.

    Attributes:
        write_s: seconds that a file takes.
        is_full: nothing can be written.
        writing: called before each file; saved: after each that became durable.
    """

    BEST = real.BEST

    def __init__(self, hub: Hub, write_s: float) -> None:
        self.write_s = write_s
        self.is_full = False
        self.saved: Callable[[Checkpoint], None] = lambda checkpoint: None
        self.writing: Callable[[Process], None] = lambda process: None
        self._hub = hub
        self._files: dict[Path, Checkpoint] = {}
        self._listed: list[Path] | None = None

    def file_name(self, seat_epoch: int, update: int) -> str:
        return real.file_name(seat_epoch, update)

    def save(self, directory: Path, checkpoint: Checkpoint, check: Callable[[], None] = lambda: None) -> Path:
        """Durable once this returns; a process killed on the way leaves nothing, or all of it.

        Between `check` and the whole file, where an unfinished one is there for others to see, no time passes.
        """
        self.writing(self._hub.task().process)
        self._hub.wait(self.write_s * self._hub.rng.random())
        if self.is_full:
            raise CheckpointError(f"cannot write {directory}: No space left on device")
        check()
        path = directory / real.file_name(checkpoint.seat_epoch, checkpoint.update)
        self._files[path], self._listed = checkpoint, None
        self.saved(checkpoint)
        self._hub.wait(self.write_s * self._hub.rng.random())
        return path

    def listing(self, directory: Path) -> list[Path]:
        if self._listed is None:
            self._listed = sorted(self._files, reverse=True)
        assert not self._listed or self._listed[0].parent == directory, "one experiment has one directory"
        return list(self._listed)

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
        found = self.listing(directory)
        return self._files[found[0]] if found else None

    def prune(self, directory: Path, keep: int, protect: Collection[Path] = ()) -> list[Path]:
        doomed = [path for path in self.listing(directory)[max(1, keep) :] if path not in protect]
        for path in doomed:
            del self._files[path]
        self._listed = None
        return doomed

    def mark_best(self, directory: Path, path: Path) -> Path:
        return directory / real.BEST


class NoCurveFile:
    """Stands for `CurveFile`, which no decision reads: the simulation writes no file."""

    def __init__(self, home: Path, spec: str, origin: Mapping[str, str] | None = None) -> None:
        pass

    def add(self, update: int, values: Mapping[str, float], *, entry: str = "") -> None:
        """Nobody looks."""

    def forget(self, *, above: int) -> None:
        """There is nothing to take out."""

    def end(self, state: str, reason: str, result: Mapping[str, object]) -> None:
        """Nobody looks."""

    def close(self) -> None:
        """Nothing is open."""
