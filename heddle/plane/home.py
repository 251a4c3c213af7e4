"""A home: the folder of one experiment of one broker in a host's shared memory, as its readers see it.

It never writes a batch and never decides that one is settled. A view of one stays good whatever becomes of its file.
"""

import fcntl
import mmap
import os
import resource
import shutil
import weakref
from pathlib import Path

from heddle.errors import PlaneError
from heddle.plane.host import Plane
from heddle.plane.names import is_folder_name

MOST_MAPPED = 256
"""Views that hold a file open at a time, and no more than a quarter of what this process may open; beyond, copies."""


class Home:
    """Where the batches of one experiment lie.

    Attributes:
        folder: of it; made by the first who writes.
        token: of the shared memory.

    Raises:
        PlaneError: such a broker or experiment can have none.
    """

    def __init__(self, plane: Plane, broker: str, experiment: str) -> None:
        if not is_folder_name(broker) or not is_folder_name(experiment):
            raise PlaneError(f"{experiment!r} of broker {broker!r} names no folder")
        self.folder = plane.root / broker / experiment
        self.token = plane.token
        self._most = min(MOST_MAPPED, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)
        self._mapped = 0

    def make(self) -> Path:
        """The folder, made when it is not there. Raises PlaneError."""
        try:
            self.folder.parent.mkdir(mode=0o700, exist_ok=True)
            self.folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise PlaneError(f"cannot make {self.folder}: {error.strerror or error}") from error
        return self.folder

    def view(self, name: str, size: int) -> memoryview | None:
        """The `size` bytes of a batch, read-only and not copied; None when its file is not there, or has fewer.

        While a view lives the file is locked: its writer does not use it again.

        Raises:
            PlaneError: this process cannot open it, or no file any more.
        """
        path = self.folder / name
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise PlaneError(f"cannot open {path}: {error.strerror or error}") from error
        try:
            fcntl.flock(file, fcntl.LOCK_SH)
            if not _is_it(path, file) or os.fstat(file).st_size < size:
                return None
            if self._mapped >= self._most:
                return memoryview(os.pread(file, size, 0))
            memory = mmap.mmap(file, size, access=mmap.ACCESS_READ)  # its own descriptor holds the lock on
        finally:
            os.close(file)
        self._mapped += 1
        weakref.finalize(memory, self._unmapped)
        return memoryview(memory)

    def remove(self, name: str) -> None:
        """A batch is settled: its file goes; again is no mistake."""
        (self.folder / name).unlink(missing_ok=True)

    def names(self) -> list[str]:
        """Of every batch that was offered and is not settled, and of anything else that lies there."""
        try:
            return sorted(entry.name for entry in os.scandir(self.folder) if not entry.name.startswith("."))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def drop(self) -> None:
        """The experiment is no more: all of it goes."""
        shutil.rmtree(self.folder, ignore_errors=True)
        try:
            self.folder.parent.rmdir()
        except OSError:
            return  # other experiments have theirs there

    def _unmapped(self) -> None:
        self._mapped -= 1


def _is_it(path: Path, file: int) -> bool:
    """Whether `path` still leads to the open file: between opening and locking it may have been used again."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    own = os.fstat(file)
    return (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino)
