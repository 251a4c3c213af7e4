"""Weights of a host: what one worker fetched of a published policy, for all others of this user here.

It never asks a broker, and is never believed: whoever takes bytes from a file has found their sha256 to be the one
that was published. Whatever fails here costs one fetch more.

    <root>/.weights/<sha256>         published weights
    <root>/.weights/<sha256>.lock    held by who fetches them
    <root>/.weights/users            held, shared, by everybody who may read here
"""

import contextlib
import fcntl
import hashlib
import logging
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from heddle.clock import Clock, SystemClock
from heddle.locks import Held, take

log = logging.getLogger("heddle.plane")

FOLDER = ".weights"
USERS = "users"
WAIT_S = 2.0
"""For so long somebody else's fetch is waited for; it may be frozen. Who dies lets its lock go at once."""
LOOK_S = (0.002, 0.008)
"""Between two looks whether it is there, least and most: many wait at once."""
MOST_BYTES = 512 << 20
MOST_FILES = 8
ROOM = 4
"""Nothing is put where fewer than so many times its bytes are free: batches lie there, too."""
OLD_S = 60.0
"""What was begun so long ago was left by somebody who died; what is nobody's for so long goes."""


class HostWeights:
    """The folder, as one process uses it; threads may share it.

    Args:
        root: the user's folder on this host, which exists and is only theirs.
    """

    def __init__(self, root: Path, *, clock: Clock | None = None, rng: np.random.Generator | None = None) -> None:
        self._folder = root / FOLDER
        self._clock = clock or SystemClock()
        self._rng = rng or np.random.default_rng()
        self._users: Held | None = None

    def open(self) -> "HostWeights":
        """Use it from now on.

        Raises:
            OSError: it cannot be used; PermissionError where its folder is open to other users.
        """
        while self._users is None:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            found = self._folder.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
                raise PermissionError(f"{self._folder} is not a folder of this user's alone")
            with contextlib.suppress(FileNotFoundError):  # the last user before us has just removed it
                users = _lock(self._folder / USERS, fcntl.LOCK_SH)
                if os.fstat(users.descriptor).st_nlink:
                    self._users = users
                else:
                    users.close()
        return self

    def close(self) -> None:
        """Use it no more; the last one leaves nothing behind."""
        if self._users is not None:
            self._users.close()
            self._users = None
            remove_unused(self._folder.parent, older_s=0.0, now_s=self._clock.wall())

    def get(self, sha256: str, fetch: Callable[[], bytes | None]) -> bytes | None:
        """The bytes with that hash: from here, or by `fetch`, which one of all processes calls while the others wait.

        Whatever `fetch` returns is passed on, and is kept only if it has that hash.
        """
        deadline = self._clock.monotonic() + WAIT_S
        while (data := self._read(sha256)) is None:
            with self._fetching(sha256) as is_mine:
                if is_mine or self._clock.monotonic() >= deadline:
                    return self._read(sha256) or self._keep(sha256, fetch())
            self._clock.sleep(self._rng.uniform(*LOOK_S))
        return data

    # ---- inside

    def _read(self, sha256: str) -> bytes | None:
        path = self._folder / sha256
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return None
        with open(file, "rb", buffering=0) as opened:  # noqa: PTH123  a descriptor
            found = os.fstat(file)
            data = opened.read() if stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid() else b""
        if hashlib.sha256(data).hexdigest() == sha256:
            return data
        log.warning("removed weights that are not what was published file=%s", path)
        with contextlib.suppress(OSError):
            path.unlink()
        return None

    @contextlib.contextmanager
    def _fetching(self, sha256: str) -> Iterator[bool]:
        """Whether it is for us to fetch; also where nobody can be asked."""
        try:
            lock = _lock(self._folder / f"{sha256}.lock", fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        except OSError:
            yield True
            return
        try:
            yield True
        finally:
            lock.close()

    def _keep(self, sha256: str, data: bytes | None) -> bytes | None:
        if data is None or hashlib.sha256(data).hexdigest() != sha256:
            return data
        temporary = self._folder / f"{sha256}.{os.getpid()}.{os.urandom(4).hex()}.tmp"
        try:
            self._make_room(len(data))
            file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(file, "wb", buffering=0) as opened:  # noqa: PTH123  a descriptor
                view = memoryview(data)
                while view:
                    view = view[opened.write(view) :]
            temporary.replace(self._folder / sha256)
        except OSError as error:
            log.info("cannot keep weights for others here, they fetch for themselves error=%s", error)
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
        return data

    def _make_room(self, size: int) -> None:
        """Raises OSError when there is none."""
        space = os.statvfs(self._folder)
        if size > MOST_BYTES or space.f_bavail * space.f_frsize < ROOM * size:
            raise OSError(f"no room for {size} bytes")
        now_s, kept, total = self._clock.wall(), 0, size
        for path, found in _newest_first(self._folder):
            if path.suffix:  # a lock or something unfinished
                is_left = now_s - found.st_mtime > OLD_S
            else:
                kept, total = kept + 1, total + found.st_size
                is_left = kept >= MOST_FILES or total > MOST_BYTES
            if is_left:
                path.unlink(missing_ok=True)


def remove_unused(root: Path, *, older_s: float = OLD_S, now_s: float) -> bool:
    """Remove weights that nobody uses, once nothing was written for `older_s`; whether they went."""
    folder = root / FOLDER
    try:
        lock = os.open(folder / USERS, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if now_s - folder.lstat().st_mtime < older_s:
            return False
        shutil.rmtree(folder, ignore_errors=True)
    except OSError:
        return False
    finally:
        os.close(lock)
    return True


def _newest_first(folder: Path) -> list[tuple[Path, os.stat_result]]:
    found = []
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append((path, path.lstat()))
    some = [(path, told) for path, told in found if path.name != USERS]
    return sorted(some, key=lambda one: one[1].st_mtime, reverse=True)


def _lock(path: Path, kind: int) -> Held:
    """The lock; raises BlockingIOError, OSError."""
    return take(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600), kind)
