"""How a shard's child is started: with nothing of its worker but a line, a block of memory and the way to the code.

It never waits for the child.
"""

import json
import os
import signal
import subprocess
import tempfile
from pathlib import Path

from heddle.producers.isolation.home import HOME_ENV, Home
from heddle.producers.isolation.origin import origin

SECRET_PREFIXES = ("HEDDLE_", "REDIS")
"""Variables that a child does not get: addresses and passwords of brokers are among them."""
_SCRIPT = str(Path(__file__).absolute().with_name("child.py"))


def spawn(link: int, block: int, printed: int, *, home: Home) -> "subprocess.Popen[bytes]":
    """Start a child, the first of its session.

    Args:
        link, block: descriptors that it inherits, and no others; printed: where its output goes.
        home: where it runs.
    """
    begin = origin()
    env = {name: value for name, value in begin.variables.items() if not name.startswith(SECRET_PREFIXES)}
    env |= {HOME_ENV: str(home.path), "TMPDIR": str(home.work), "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        [begin.executable, "-P", _SCRIPT, str(link), str(block), str(os.getpid())],
        stdin=subprocess.DEVNULL,
        stdout=printed,
        stderr=printed,
        cwd=home.work,
        env=env,
        pass_fds=(link, block),
        start_new_session=True,
    )


def greeting() -> bytes:
    """What a child reads first: where code is found. It runs in another folder, so ours is named."""
    data = json.dumps(origin().paths).encode()
    return len(data).to_bytes(4, "little") + data


def shared_memory(size: int) -> int:
    """A descriptor of so many bytes of memory without a name."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("heddle-block")
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, size)
    return fd


def signal_name(number: int) -> str:
    """For people: "signal SIGSEGV"."""
    try:
        return f"signal {signal.Signals(number).name}"
    except ValueError:
        return f"signal {number}"
