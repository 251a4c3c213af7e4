"""A ring: the buffers of one worker in an experiment's shared memory, each used again once its batch is settled.

It never reads a batch. A buffer has a name of its own in the ring; offered, it has the batch's name beside it, which
the reader removes when the batch is settled. It is free when it has only its own name and nobody's view holds it.
"""

import errno
import fcntl
import logging
import os
import shutil
import threading
from pathlib import Path

from heddle.errors import PlaneError
from heddle.locks import take
from heddle.plane.home import KEPT_FROM, Home, open_files
from heddle.plane.pages import enlarge, writable

log = logging.getLogger("heddle.plane")

PREFIX = ".ring-"
LOCK = "lock"
REUSED_FROM = KEPT_FROM
"""A smaller buffer is used once: making it costs less than keeping it open."""
MOST_REUSED = 64
"""And so are buffers beyond so many: each keeps two descriptors open."""
ENLARGED_AFTER = 16
"""A buffer that was used so often will be used on: it is worth some milliseconds, of a thread that only delivers, to
have it in large pages."""
KEPT_FREE = 2
"""Free buffers that are kept beside the one that was taken."""
ROOM_LEFT, MOST_LEFT = 4, 256 << 20
"""A buffer is made only if a quarter of the file system, or so many bytes, stay free: who else writes there may not ask
before, and die of it."""


class Slot:
    """One buffer, from `Ring.take` until `close` or `discard`; threads may hand it on.

    Attributes:
        token: of the shared memory it lies in.
        size: bytes that it holds.
        memory: mapped and writable; None once it was let go.
        path: its own name.
        is_taken: somebody writes into it, or has not been answered.
        is_gone: it is of no more use.

    Raises:
        PlaneError: the memory cannot be had or mapped.
    """

    def __init__(self, home: Home, path: Path, size: int, *, reused: bool) -> None:
        self.token, self.size, self.path = home.token, size, path
        self._home = home
        self._reused = reused
        self._changed = threading.Lock()
        self._offered = ""
        self.is_taken = True
        self._file = _reserve(path, size)
        self.memory: memoryview | None = None
        self._uses = 0
        try:
            self.memory = writable(self._file, size)
        except (OSError, ValueError) as error:
            self.remove()
            raise PlaneError(f"cannot map {size} bytes: {error}") from error

    @property
    def is_gone(self) -> bool:
        """Its file was removed."""
        return self._file < 0

    def view(self) -> memoryview:
        """Its bytes, writable."""
        assert self.memory is not None
        return memoryview(self.memory)

    def offer(self, name: str) -> None:
        """Readers find it under that name from now on; again is no mistake.

        Raises:
            PlaneError: the folder was removed.
        """
        if self._offered == name:
            return
        target = f"{self._home.folder}/{name}"
        try:
            try:
                os.link(self.path, target)
            except FileExistsError:  # an earlier batch of that number that was turned away
                os.unlink(target)  # noqa: PTH108
                os.link(self.path, target)
        except OSError as error:
            raise PlaneError(f"cannot offer {target}: {error.strerror or error}") from error
        self._offered = name
        fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Its batch is another's affair from now on; the buffer comes back once that is settled."""
        if self._reused and self._offered:
            self._uses += 1
            if self._uses == ENLARGED_AFTER and (memory := self.memory) is not None:
                enlarge(memory)
            self.is_taken = False
        else:
            self.remove()

    def discard(self) -> None:
        """Nobody shall ever read what is in it."""
        if self._offered:
            self._home.remove(self._offered)
            self._offered = ""
        self.close()

    def is_free(self) -> bool:
        """Settled, and nobody looks at it any more."""
        with self._changed:
            if self.is_taken or self.is_gone or os.fstat(self._file).st_nlink != 1:
                return False
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

    def take_again(self) -> None:
        """Write into it anew; it is free."""
        self.is_taken, self._offered = True, ""

    def remove(self) -> None:
        """Let it go for good; under an offered name its bytes stay."""
        with self._changed:
            self.is_taken, self.memory = False, None
            self.path.unlink(missing_ok=True)
            if self._file >= 0:
                os.close(self._file)
                self._file = -1


class Ring:
    """The buffers of one worker for one experiment.

    Raises:
        PlaneError: it cannot be made.
    """

    def __init__(self, home: Home) -> None:
        self._home = home
        self._slots: list[Slot] = []
        self._made = 0
        self._most = min(MOST_REUSED, open_files() // 16)
        self.folder = home.make() / f"{PREFIX}{os.getpid()}-{os.urandom(4).hex()}"
        try:
            self.folder.mkdir(mode=0o700)
            lock = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._lock = take(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise PlaneError(f"cannot make {self.folder}: {error.strerror or error}") from error

    @property
    def token(self) -> str:
        """Of the shared memory it lies in."""
        return self._home.token

    def take(self, size: int) -> Slot:
        """A buffer of at least `size` bytes.

        Raises:
            PlaneError: there is no room.
        """
        free = [slot for slot in self._slots if slot.is_free()]
        found = next((slot for slot in free if size <= slot.size <= 2 * size), None)
        for slot in [slot for slot in free if slot is not found][KEPT_FREE:]:
            slot.remove()
        self._slots = [slot for slot in self._slots if not slot.is_gone]
        if found is not None:
            found.take_again()
            return found
        self._made += 1
        reused = size >= REUSED_FROM and len(self._slots) < self._most
        slot = Slot(self._home, self.folder / str(self._made), size, reused=reused)
        self._slots.append(slot)
        return slot

    def close(self) -> None:
        """The worker needs it no more; what was offered stays, and what was not goes."""
        for slot in self._slots:
            slot.remove()
        self._slots = []
        shutil.rmtree(self.folder, ignore_errors=True)
        self._lock.close()


def _left_free(total: int) -> int:
    return min(total // ROOM_LEFT, MOST_LEFT)


def _reserve(path: Path, size: int) -> int:
    """A new file of that size, locked, whose pages are there: writing to it later cannot fail. Raises PlaneError."""
    try:
        room = os.statvfs(path.parent)
        if room.f_bavail * room.f_frsize - size < _left_free(room.f_blocks * room.f_frsize):
            raise PlaneError(f"no room for {size} bytes in {path.parent}")
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise PlaneError(f"cannot make {path}: {error.strerror or error}") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file, 0, size)
        else:  # macOS: no memory file system, and a full disk shows when pages are written
            os.ftruncate(file, size)
    except OSError as error:
        os.close(file)
        path.unlink(missing_ok=True)
        what = "no room" if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM) else error.strerror or str(error)
        raise PlaneError(f"{what} for {size} bytes in {path.parent}") from error
    return file
