"""Names of processes: readable, and never the same twice.

It reads nothing by itself; host, pid and chance are arguments.
"""

import re


def process_name(host: str, pid: int, entropy: bytes, *, part: str = "") -> str:
    """Name of a worker, supervisor, coordinator or trainer: "host-pid-hex", e.g. "gpu7-4711-9f2c01".

    Args:
        entropy: 3 or more random bytes (`os.urandom`): pids come again, on one host and in containers.
        part: stands after the pid, e.g. "w2" for the second worker of a supervisor.
    """
    return f"{host_in_name(host)}-{pid}{part}-{entropy.hex()[:8]}"


def host_in_name(host: str) -> str:
    """How a host is called in such names."""
    return re.sub(r"[^a-z0-9]+", "-", host.lower().split(".")[0]).strip("-")[:24] or "host"
