"""How a server of ours is set up: where it listens and the configuration it is told.

It never starts one and never writes a file.
"""

import contextlib
import hashlib
import os
import secrets
import shlex
import socket
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from heddle.errors import Conflict, UsageError

Durability = Literal["strict", "fast", "memory"]

PASSWORD_FILE = "server.password"
SOCKET_FILE = "redis.sock"
LONGEST_SOCKET_PATH = 107 if sys.platform == "linux" else 103
"""Bytes that fit into sockaddr_un beside the final zero."""
DEFAULT_PORT = 6379
LOOPBACK = ("127.0.0.1", "::1", "localhost")
EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Addresses that mean every interface, and how this host reaches them."""
KEEPS_MEMORY = {
    "MALLOC_CONF": "oversize_threshold:0,muzzy_decay_ms:-1",
    "JE_MALLOC_CONF": "oversize_threshold:0,muzzy_decay_ms:-1",
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
}
"""What a server's allocator (jemalloc, as Debian or Redis builds it, or glibc's) is told unless the user tells it:
to keep what a batch freed for the next one. Else every batch of more than a megabyte or so is page-faulted in anew,
which took two thirds of the server's time. The system still takes such pages when it wants them (jemalloc), or there
are 256 MB of them at most (glibc)."""
_FSYNC = {"strict": "always", "fast": "everysec"}


@dataclass(frozen=True, slots=True)
class Address:
    """Where the server listens: a socket file, or host and port with a password."""

    socket_path: Path | None = None
    bind: str = ""
    port: int = 0
    password: str = ""

    def url(self, host: str | None = None) -> str:
        """The url to reach it by; `host` is the name of this host for others."""
        if self.socket_path is not None:
            return f"unix://{quote(str(self.socket_path))}"
        name = host or EVERYWHERE.get(self.bind, self.bind)
        return f"redis://:{self.password}@{f'[{name}]' if ':' in name else name}:{self.port}/0"

    def shown_url(self, password_file: Path) -> str:
        """As `url` for whoever can reach it, without the password: that is in a file."""
        host = socket.gethostname() if self.bind in EVERYWHERE else self.bind
        name = f"[{host}]" if ":" in host else host
        return f"redis://{name}:{self.port}/0?password_file={quote(str(password_file))}"

    def remote_url(self) -> str | None:
        """The url for other hosts; None when only this one can reach it."""
        if self.socket_path is not None or self.bind in LOOPBACK:
            return None
        return self.url(socket.gethostname() if self.bind in EVERYWHERE else None)

    def redis_cli(self, folder: Path) -> str:
        """The command line that opens it; the password stays in its file."""
        if self.socket_path is not None:
            return f"redis-cli -s {shlex.quote(str(self.socket_path))}"
        host = EVERYWHERE.get(self.bind, self.bind)
        password = f'REDISCLI_AUTH="$(cat {shlex.quote(str(folder / PASSWORD_FILE))})"'
        return f"{password} redis-cli -h {host} -p {self.port}"


def choose_address(folder: Path, bind: str | None, port: int | None) -> Address:
    """A socket file when neither is given, else a TCP address with a new password.

    Raises:
        Conflict: the port is taken or the address is not ours.
    """
    if bind is None and port is None:
        return Address(socket_path=_socket_path(folder))
    host = bind or "127.0.0.1"
    return Address(bind=host, port=_free_port(host, port), password=secrets.token_urlsafe(24))


def _socket_path(folder: Path) -> Path:
    """A socket in `folder`, or in a short private one where the path would be too long for a socket."""
    path = folder / SOCKET_FILE
    if len(os.fsencode(path)) <= LONGEST_SOCKET_PATH:
        return path
    digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:12]
    short = Path("/tmp" if sys.platform == "darwin" else tempfile.gettempdir(), f"heddle-{os.getuid()}-{digest}")
    with contextlib.suppress(FileExistsError):
        short.mkdir(mode=0o700)
    status = short.lstat()
    if short.is_symlink() or status.st_uid != os.getuid() or status.st_mode & 0o077:
        short = Path(tempfile.mkdtemp(prefix="heddle-"))  # somebody else made that name
    return short / SOCKET_FILE


def _free_port(host: str, port: int | None) -> int:
    """`port` if it can be bound; for None the default one or any; for 0 any."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for candidate in (DEFAULT_PORT, 0) if port is None else (port,):
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, candidate))
            except socket.gaierror as error:
                raise UsageError(f"--bind {host}: no address of that name; give one of this host") from error
            except OSError as error:
                reason = f"cannot listen on {host} port {candidate}: {error.strerror or error}"
                continue
            return int(probe.getsockname()[1])
    raise Conflict(f"{reason}; give another address or port")


def config_text(folder: Path, address: Address, durability: Durability, maxmemory: int) -> str:
    """The configuration file of a server in `folder`.

    Raises:
        UsageError: other hosts could reach it without a password.
    """
    if address.socket_path is None and not address.password and address.bind not in LOOPBACK:
        raise UsageError(f"a server that listens on {address.bind} needs a password: others can reach it there")
    lines = [
        f"dir {_quoted(folder)}",
        "daemonize no",
        "databases 1",
        'save ""',
        f"maxmemory {maxmemory}",
        "maxmemory-policy noeviction",
        "tcp-keepalive 30",
        f"appendonly {'no' if durability == 'memory' else 'yes'}",
        # Plain commands, so that another server program can read what this one wrote.
        "aof-use-rdb-preamble no",
        "auto-aof-rewrite-percentage 200",
        "auto-aof-rewrite-min-size 256mb",
    ]
    if durability != "memory":
        lines.append(f"appendfsync {_FSYNC[durability]}")
    if address.socket_path is not None:
        lines += ["port 0", f"unixsocket {_quoted(address.socket_path)}", "unixsocketperm 700"]
    else:
        lines += [f"bind {address.bind}", f"port {address.port}", f"requirepass {_quoted(address.password)}"]
    return "\n".join(lines) + "\n"


def _quoted(value: object) -> str:
    return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'


def half_of_memory() -> int:
    """Half the bytes of memory this machine, or this container, has."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, ValueError):  # inside a container that has less; "max" means it has not
        total = min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return total // 2
