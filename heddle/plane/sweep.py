"""What lies in shared memory and may be nobody's: homes of a broker, buffers of workers that died, folders left alone.

It never asks a broker, so it never judges a batch: `broker/plane_sweep.py` does, with what is found here.
"""

import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from heddle.plane.home import Home
from heddle.plane.host import Plane
from heddle.plane.names import is_folder_name
from heddle.plane.ring import LOCK, PREFIX

YOUNG_S = 10.0
"""What was made within so long may be in the making still."""
LOCKED_S = 1.0
"""So long after its lock was made a worker has taken it, or never will."""
DESERTED_S = 86_400.0
"""Folders of a broker that does not answer are kept for a day, unless a worker uses them: it may come back."""


def brokers(root: Path) -> list[str]:
    """Names of the brokers that have a folder here."""
    try:
        return sorted(entry.name for entry in os.scandir(root) if entry.is_dir() and is_folder_name(entry.name))
    except (FileNotFoundError, NotADirectoryError):
        return []


def homes(root: Path, broker: str) -> list[tuple[str, Home]]:
    """Every experiment of a broker that has a folder here."""
    try:
        names = sorted(entry.name for entry in os.scandir(root / broker) if is_folder_name(entry.name))
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [(name, Home(Plane(root, ""), broker, name)) for name in names]


def age_s(home: Home, name: str, now_s: float) -> float:
    """How long ago a file was written, 0 for one that is not there."""
    try:
        return now_s - (home.folder / name).lstat().st_mtime
    except FileNotFoundError:
        return 0.0


def remove_dead_rings(home: Home, now_s: float) -> int:
    """Let buffers go whose worker is dead; what it had offered stays. How many rings there were."""
    removed = 0
    for ring in _rings(home.folder):
        if _is_dead(ring, now_s):
            shutil.rmtree(ring, ignore_errors=True)
            removed += 1
    return removed


def remove_empty(home: Home, now_s: float) -> None:
    """A folder with nothing in it goes, and so does its broker's; unless it was used just now."""
    for folder in (home.folder, home.folder.parent):
        try:
            if now_s - folder.lstat().st_mtime <= YOUNG_S:
                return
            folder.rmdir()
        except OSError:
            return  # not there, or not empty


def remove_deserted(root: Path, broker: str, now_s: float) -> bool:
    """Remove a broker's folder in which no worker lives and that nobody has written to for a day; whether it went."""
    found = homes(root, broker)
    for _, home in found:
        if any(not _is_dead(ring, now_s) for ring in _rings(home.folder)):
            return False
        if any(age_s(home, name, now_s) < DESERTED_S for name in home.names()):
            return False
    if now_s - max((folder.lstat().st_mtime for folder in _folders(root / broker)), default=now_s) < DESERTED_S:
        return False
    shutil.rmtree(root / broker, ignore_errors=True)
    return True


def _folders(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        yield folder
        yield from (path for path in folder.iterdir() if path.is_dir())


def _rings(folder: Path) -> list[Path]:
    try:
        return [Path(entry.path) for entry in os.scandir(folder) if entry.name.startswith(PREFIX)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _is_dead(ring: Path, now_s: float) -> bool:
    """Nobody holds its lock, and it was not made just now."""
    try:
        if now_s - ring.lstat().st_mtime <= YOUNG_S and not (ring / LOCK).exists():
            return False
        lock = os.open(ring / LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return ring.exists()
    except OSError:
        return False
    try:
        if now_s - os.fstat(lock).st_mtime <= LOCKED_S:
            return False
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True
