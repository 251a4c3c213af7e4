"""The folder of a server of ours: who holds it, its private files, and what its data were kept with.

It never starts a server and never talks to one.
"""

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from heddle.broker.server_setup import Durability
from heddle.clock import Clock
from heddle.errors import Conflict, FolderTaken

LOG_FILE = "server.log"
DURABILITY_FILE = "server.durability"
DATA_FOLDER = "appendonlydir"
LOCK_TIMEOUT_S = 3.0

FolderId = tuple[int, int]
"""Device and inode: which folder it is, whatever stands at its path."""


def folder_id(folder: Path | int) -> FolderId | None:
    """Which folder stands at a path now, or was opened; None where there is none."""
    try:
        status = os.fstat(folder) if isinstance(folder, int) else folder.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def has_data(folder: Path) -> bool:
    """Whether a server of ours kept data in `folder`."""
    return (folder / DATA_FOLDER).is_dir()


def settle_durability(folder: Path, wanted: Durability | None) -> Durability:
    """What is wanted, else what the data there were kept with last; written down for the next time.

    Raises:
        Conflict: there are data, and "memory" is wanted, with which they would not be loaded.
    """
    path = folder / DURABILITY_FILE
    last: Durability = "strict" if has_data(folder) and path.exists() and path.read_text() == "strict" else "fast"
    if wanted == "memory":
        if has_data(folder):
            raise Conflict(
                f"{folder} holds data that a server kept ({last}), and a server of durability memory would not load"
                " them; leave --durability out, or move that folder away"
            )
        return wanted
    level = wanted or last
    write_private(path, level)
    return level


def tail(folder: Path, lines: int) -> str:
    """The end of the server's log."""
    try:
        text = (folder / LOG_FILE).read_text(errors="replace")
    except OSError:
        return "no log"
    return " | ".join(text.strip().splitlines()[-lines:]) or "nothing in its log"


@contextlib.contextmanager
def lock(folder: Path, clock: Clock, who: Callable[[], str] = lambda: "") -> Iterator[int]:
    """A lock on the folder. The server inherits it and so holds it as long as it lives, whoever started it.

    Raises:
        FolderTaken: a server holds it; `who` says more of it. Or whoever held it removed it at its end.
    """
    try:
        handle = os.open(folder, os.O_RDONLY)
    except FileNotFoundError as error:
        raise FolderTaken(f"{folder} was removed just now by the run that had it; try again") from error
    try:
        deadline = clock.monotonic() + LOCK_TIMEOUT_S
        while not take_lock(handle):
            if clock.monotonic() > deadline:
                raise FolderTaken(f"a server already runs in {folder}{who()}")
            clock.sleep(0.05)  # the last one may be on its way out
        if folder_id(folder) != folder_id(handle):
            raise FolderTaken(f"{folder} was removed just now by the run that had it; try again")
        yield handle
    finally:
        os.close(handle)


def is_held(folder: Path) -> bool:
    """Whether a server of `folder` lives, or is being started: False where the file system knows no locks."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: who only looks is nobody's server
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(handle)
    return False


def take_lock(handle: int) -> bool:
    """Lock what is open there, if nobody else has: True then, and where the file system knows no locks."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # a file system without locks: nothing to hold, and nothing to fear from our own kind
    return True


def write_private(path: Path, text: str) -> None:
    """Write a file that only this user can read; readers see the old or the whole new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(text)
    temporary.replace(path)
