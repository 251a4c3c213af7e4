"""Homes: the folder of its own in which a shard's child runs, removed when it ends, by whoever comes next if need be.

A home is locked by the worker that made it for as long as that lives; what is found unlocked is swept. It never
removes what another user made.
"""

import contextlib
import fcntl
import logging
import os
import shutil
import stat
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from heddle.locks import Held, take
from heddle.producers.isolation import census

log = logging.getLogger("heddle.isolation")

HOME_ENV = "HEDDLE_ENV_HOME"
"""In the environment of a child and of all that it starts: its home, by which they are found."""
TRIES = 100
SWEPT_AT_ONCE = 64
"""Homes that a sweep holds the locks of: a process may have few files open, and whole fleets die at once."""
_LOCK = "lock"
_sweep_once = threading.Lock()
_swept = False


class Home:
    """One folder.

    Attributes:
        path: of it; work: the folder in it that the child runs in.

    Raises:
        OSError: it cannot be made, or not be locked, as where too many files are open; nothing of it is left then.
    """

    def __init__(self) -> None:
        self._lock: Held | None = None
        vanished = 0
        while self._lock is None:  # a sweep may have come between making and locking it, and has removed it
            try:
                base = _base()
                sweep_once(base)
                self.path = Path(tempfile.mkdtemp(prefix="env-", dir=base))
                self._lock = self._locked()
                self.work = self.path / "work"
                self.work.mkdir(mode=0o700)
            except FileNotFoundError:  # the last home of another worker took the folder around it along; or that sweep
                if self._lock is not None:  # had it whole between our opening the file and our locking it
                    self._lock.close()
                    self._lock = None
                vanished += 1
                if vanished == TRIES:
                    raise

    def _locked(self) -> Held | None:
        try:
            return _locked(self.path / _LOCK)
        except FileNotFoundError:
            raise
        except OSError:  # it would never be swept
            with contextlib.suppress(OSError):
                (self.path / _LOCK).unlink(missing_ok=True)
                self.path.rmdir()
            raise

    def remove(self) -> None:
        """Remove it and all that was put there, and the folder around it when it was the last; again is no mistake."""
        lock, self._lock = self._lock, None  # at once: whoever ends a child and whoever waits for it both come here
        if lock is not None:
            _remove(self.path)
            with contextlib.suppress(OSError):  # others are there
                self.path.parent.rmdir()
            lock.close()


def sweep(base: Path) -> int:
    """End what children of dead workers left running, and remove their homes; how many there were."""
    paths, swept = list(base.glob("env-*")), 0
    for start in range(0, len(paths), SWEPT_AT_ONCE):
        swept += _sweep_some(paths[start : start + SWEPT_AT_ONCE])
    return swept


def _sweep_some(paths: Sequence[Path]) -> int:
    found = {path: _unused(path / _LOCK) for path in paths}
    left = {path: held for path, held in found.items() if held is not None}
    if not left:
        return 0
    log.info("sweeping homes=%d of workers that died", len(left))
    census.end_all(None, *(f"{HOME_ENV}={path}" for path in left))
    for path, held in left.items():
        _remove(path)
        held.close()
    return len(left)


def sweep_after_death() -> int:
    """Sweep for whoever saw a worker of this host die, and leave nothing when those were the last; how many."""
    base = _place()
    if not _is_ours(base):
        return 0
    swept = sweep(base)
    with contextlib.suppress(OSError):  # others are there
        base.rmdir()
    return swept


def sweep_once(base: Path) -> None:
    """Sweep, the first time that this process comes here."""
    global _swept
    with _sweep_once:
        if not _swept:
            _swept = True
            sweep(base)


def _base() -> Path:
    """The folder of all homes of this user; another one if somebody else sits there."""
    base = _place()
    with contextlib.suppress(FileExistsError):
        base.mkdir(mode=0o700)
    return base if _is_ours(base) else Path(tempfile.mkdtemp(prefix="heddle-"))


def _place() -> Path:
    return Path(tempfile.gettempdir()) / f"heddle-{os.getuid()}"


def _is_ours(base: Path) -> bool:
    """Whether it is a folder that this user made."""
    try:
        found = base.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()


def _locked(path: Path) -> Held | None:
    """The lock of a file, which is made; None when another has it. Raises OSError."""
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_CREAT, 0o600)
    try:
        return take(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None


def _unused(path: Path) -> Held | None:
    """The lock of a file; None when another has it, it is not there (yet), or it cannot be told."""
    try:
        return take(os.open(path, os.O_RDWR | os.O_CLOEXEC), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return None


def _remove(path: Path) -> None:
    def open_up(function: Callable[[str], object], name: str, _: object) -> None:
        """A folder that its owner may not write to: change that and try again."""
        with contextlib.suppress(OSError):
            Path(name).parent.chmod(0o700)
            Path(name).chmod(0o700)
            function(name)

    # The lock goes last: a folder whose removal was cut short can be swept for as long as it has one.
    shutil.rmtree(path / "work", onerror=open_up)
    shutil.rmtree(path, onerror=open_up)
    shutil.rmtree(path, ignore_errors=True)
