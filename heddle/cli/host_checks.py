"""Host checks: what `heddle doctor` says about this installation and this machine.

They never talk to a broker.
"""

import errno
import importlib.metadata
import importlib.util
import os
import platform
import resource
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from heddle.cli.findings import Finding, Level
from heddle.cli.specs import size

PACKAGES = ("numpy", "pyarrow", "redis", "gymnasium", "safetensors")
GIB, MIB = 2**30, 2**20
FILES_WARN, FILES_BAD = 1024, 256


def of_install(*, needs_server: bool) -> Iterator[Finding]:
    """Python, packages, and a server program.

    Args:
        needs_server: there is no broker elsewhere, so that one has to be started here.
    """
    from heddle.version import __version__

    yield Finding("install", "heddle", "ok", f"{__version__}, Python {platform.python_version()}, {platform.machine()}")
    missing = [name for name in PACKAGES if not _version(name)]
    said = ", ".join(f"{name} {_version(name)}" for name in PACKAGES if name not in missing)
    if missing:
        yield Finding("install", "packages", "bad", f"missing: {', '.join(missing)}", "pip install heddle-rl")
    else:
        yield Finding("install", "packages", "ok", said)
    torch = _version("torch") if importlib.util.find_spec("torch") is not None else ""
    if torch:
        yield Finding("install", "torch", "ok", torch)
    else:
        do = "to train here: pip install 'heddle-rl[torch]'; workers that play numpy policies do without"
        yield Finding("install", "torch", "warn", "not installed", do)
    yield _server_program(needs_server)


def of_host(directory: Path) -> Iterator[Finding]:
    """Descriptors, disks."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    level: Level = "bad" if soft < FILES_BAD else "warn" if soft < FILES_WARN else "ok"
    unlimited = soft == resource.RLIM_INFINITY
    do = "" if level == "ok" or unlimited else f"ulimit -n {min(hard, 65_536) if hard > 0 else 65_536}"
    yield Finding("host", "open files", "ok" if unlimited else level, "no limit" if unlimited else f"{soft:,}", do)
    yield _disk("checkpoints", directory, warn=5 * GIB, bad=200 * MIB)
    yield _disk("temporary files", Path(tempfile.gettempdir()), warn=GIB, bad=50 * MIB)


def _server_program(needed: bool) -> Finding:
    from heddle.broker.binary import server_binary
    from heddle.errors import BrokerUnfit

    try:
        return Finding("install", "server", "ok", f"{server_binary()}, for `heddle run` and `heddle up`")
    except BrokerUnfit as error:
        says, _, do = str(error).partition("; ")
        return Finding("install", "server", "bad" if needed else "warn", says, do)


def _disk(what: str, folder: Path, *, warn: int, bad: int) -> Finding:
    """Room, and whether a file can be written there."""
    place = folder
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        free = shutil.disk_usage(place).free
        with tempfile.NamedTemporaryFile(dir=place) as file:
            file.write(b"x")
            file.flush()
    except OSError as error:
        do = "make room there" if error.errno == errno.ENOSPC else "give another folder (--dir), or the rights to write"
        return Finding("host", what, "bad", f"cannot write in {place}: {error.strerror or error}", do)
    said = f"{size(free)} free in {os.path.relpath(folder) if folder.is_relative_to(Path.cwd()) else folder}"
    if free < warn:
        return Finding("host", what, "bad" if free < bad else "warn", said, "make room; a full disk stops checkpoints")
    return Finding("host", what, "ok", said)


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
