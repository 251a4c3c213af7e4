"""A home: the folder of one experiment of one broker in a host's shared memory, as its readers see it.

It never writes a batch and never decides that one is settled. A view of one stays good whatever becomes of its file.
"""

import fcntl
import os
import resource
import shutil
import threading
import weakref
from collections import deque
from contextlib import suppress
from pathlib import Path

from heddle.errors import PlaneError
from heddle.plane.host import Plane
from heddle.plane.mapping import Mapping
from heddle.plane.names import is_folder_name

MOST_MAPPED = 256
"""Views that hold a file open at a time, and no more than a quarter of what this process may open; beyond, copies."""
MOST_KEPT = 64
"""Files that stay mapped while nobody looks at them, for their writer uses them again: mapping 15 MB anew and touching
it costs more than all else that is done to read a batch."""
MANY_FILES = 1 << 20
"""As good as no limit."""
KEPT_FROM = 1 << 20
"""A smaller file is used once."""


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
        self._most, self._most_kept = min(MOST_MAPPED, open_files() // 4), min(MOST_KEPT, open_files() // 16)
        self._mapped = 0  # views
        self._changed = threading.Lock()
        self._kept: dict[tuple[int, int], Mapping] = {}
        self._over = deque[Mapping]()  # one entry for each view that died

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
        path = f"{self.folder}/{name}"
        try:
            with self._changed:
                mapping = self._mapping(path)
                return None if mapping is None else self._look(mapping, path, size)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise PlaneError(f"cannot open {path}: {error.strerror or error}") from error
        finally:
            self._settle()

    def tidy(self) -> None:
        """Let go what nobody looks at any more and its writer has removed; called now and then, it costs nothing."""
        if self._kept:
            with self._changed:
                self._close_dead()
            self._settle()

    def remove(self, name: str) -> None:
        """A batch is settled: its file goes; again is no mistake."""
        with suppress(FileNotFoundError):
            os.unlink(f"{self.folder}/{name}")  # noqa: PTH108  a Path takes longer to make than a file to unlink

    def names(self) -> list[str]:
        """Of every batch that was offered and is not settled, and of anything else that lies there."""
        try:
            return sorted(entry.name for entry in os.scandir(self.folder) if not entry.name.startswith("."))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def drop(self) -> None:
        """The experiment is no more: all of it goes."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.tidy()
        try:
            self.folder.parent.rmdir()
        except OSError:
            return  # other experiments have theirs there

    def _mapping(self, path: str) -> Mapping:
        """Of the file that is there now: the one that was kept, or a new one."""
        found = os.lstat(path)
        kept = self._kept.get((found.st_dev, found.st_ino))
        if kept is not None and kept.pid == os.getpid():
            return kept
        self._close_dead()  # a file that is new to us may have taken the place of others
        mapping = Mapping(path)
        if mapping.size >= KEPT_FROM and self._has_place():
            self._kept[mapping.key] = mapping
        return mapping

    def _close_dead(self) -> None:
        for mapping in [one for one in self._kept.values() if one.is_over()]:
            self._close(mapping)

    def _has_place(self) -> bool:
        """Whether one more may be kept; of those that nobody looks at the oldest makes room."""
        if len(self._kept) >= self._most_kept:
            oldest = next((mapping for mapping in self._kept.values() if not mapping.users), None)
            if oldest is None:
                return False
            self._close(oldest)
        return self._most_kept > 0

    def _look(self, mapping: Mapping, path: str, size: int) -> memoryview | None:
        """A view of a locked file that `path` still leads to: before it was locked it may have been used again."""
        mapping.users += 1
        try:
            fcntl.flock(mapping.file, fcntl.LOCK_SH)
            if not mapping.is_at(path) or mapping.size < size:
                return None
            if self._mapped >= self._most:
                return memoryview(os.pread(mapping.file, size, 0))
            whole = mapping.memory()
            mapping.users, self._mapped = mapping.users + 1, self._mapped + 1
            weakref.finalize(whole, self._died, mapping).atexit = False
            return whole.data[:size]
        finally:
            self._leave(mapping)

    def _died(self, mapping: Mapping) -> None:
        """A view did, and maybe in the middle of anything."""
        self._over.append(mapping)
        self._settle()

    def _settle(self) -> None:
        """Let files go whose views have died, or leave it to whoever holds the lock: it does so next."""
        while self._over and self._changed.acquire(blocking=False):
            try:
                while self._over:
                    self._mapped -= 1
                    self._leave(self._over.popleft())
            finally:
                self._changed.release()

    def _leave(self, mapping: Mapping) -> None:
        mapping.users -= 1
        if mapping.users or os.getpid() != mapping.pid:  # the lock is this one's parent's, who looks at it
            return
        fcntl.flock(mapping.file, fcntl.LOCK_UN)  # not by closing alone: a fork may have it open
        if self._kept.get(mapping.key) is mapping and not mapping.is_over():
            self._kept[mapping.key] = self._kept.pop(mapping.key)  # the newest stands last
        else:
            self._close(mapping)

    def _close(self, mapping: Mapping) -> None:
        if self._kept.get(mapping.key) is mapping:
            del self._kept[mapping.key]
        mapping.close()


def open_files() -> int:
    """How many files this process may have open."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MANY_FILES if most == resource.RLIM_INFINITY else most
