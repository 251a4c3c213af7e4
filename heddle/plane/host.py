"""The host: which one this is, which of its boots, and its folder of shared memory with the token that proves it.

It never knows a broker or an experiment. Two processes that read the same token see the same files.
"""

import fcntl
import json
import os
import platform
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from heddle.errors import PlaneError
from heddle.locks import take
from heddle.plane.names import token_of

SHM = Path("/dev/shm")
TOKEN = "plane"
LOCK = "lock"
_BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Host:
    """A host between two of its boots.

    Attributes:
        name: what it calls itself.
        boot: another one after each start.
    """

    name: str
    boot: str


@dataclass(frozen=True, slots=True)
class Plane:
    """The shared memory of one user on one host.

    Attributes:
        root: its folder.
        token: host, boot and chance: who reads the same one there sees the same files.
        on_disk: it is the folder for temporary files, for want of a /dev/shm that can be written to.
    """

    root: Path
    token: str
    on_disk: bool = False


def this_host() -> Host:
    """Where this process runs. Raises PlaneError where nobody can tell one boot from the next."""
    return Host(platform.node(), _boot())


def root_folder(shm: Path = SHM) -> Path:
    """The user's folder: in memory where there is /dev/shm, else among the temporary files."""
    base = shm if shm.is_dir() and os.access(shm, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())
    return base / f"heddle-{os.getuid()}"


def open_plane(root: Path | None = None, host: Host | None = None) -> Plane:
    """The shared memory of this host, made when it is not there; what an earlier boot left in it is removed.

    Raises:
        PlaneError: it cannot be used, or is not only ours.
    """
    on_disk = root is None and not root_folder().is_relative_to(SHM)
    root, host = root or root_folder(), host or this_host()
    try:
        root.mkdir(mode=0o700, exist_ok=True)
        _check_ours(root)
        with _locked(root):
            return Plane(root, _token(root, host), on_disk)
    except OSError as error:
        raise PlaneError(f"cannot use {root} as shared memory: {error.strerror or error}") from error


def _token(root: Path, host: Host) -> str:
    file = root / TOKEN
    known = _read(file)
    if known is not None and known.get("boot") == host.boot:
        return token_of(known["host"], known["boot"], known["chance"])
    for path in root.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name != LOCK:
            path.unlink()
    made = {"host": host.name, "boot": host.boot, "chance": os.urandom(8).hex()}
    temporary = root / f".{TOKEN}.tmp"
    temporary.write_text(json.dumps(made), encoding="utf-8")
    temporary.replace(file)
    return token_of(made["host"], made["boot"], made["chance"])


def _read(file: Path) -> dict[str, str] | None:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    is_whole = isinstance(found, dict) and all(isinstance(found.get(key), str) for key in ("host", "boot", "chance"))
    return found if is_whole else None


def _check_ours(root: Path) -> None:
    """/dev/shm belongs to everybody: a folder that another one put there first is not used. Raises PlaneError."""
    found = root.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PlaneError(f"{root} is not a folder of this user's: remove it, or batches go through the broker")
    if stat.S_IMODE(found.st_mode) & 0o077:
        root.chmod(0o700)


@contextmanager
def _locked(root: Path) -> Iterator[None]:
    lock = os.open(root / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    held = take(lock, fcntl.LOCK_EX)
    try:
        yield
    finally:
        held.close()


def _boot() -> str:
    try:
        return _BOOT.read_text(encoding="ascii").strip()
    except OSError:
        if sys.platform != "darwin":
            raise PlaneError(f"cannot tell which boot this is: no {_BOOT}") from None
    asked = subprocess.run(
        ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"], capture_output=True, text=True, timeout=5, check=False
    )
    if asked.returncode or not asked.stdout.strip():
        raise PlaneError("cannot tell which boot this is: sysctl kern.bootsessionuuid does not answer")
    return asked.stdout.strip()
