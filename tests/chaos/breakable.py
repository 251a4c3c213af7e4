"""A server that can be broken in every way there is and mended again, at an address that stays the same.

It never restarts by itself. The address is a symbolic link to a socket file, as a virtual IP is one to a host, so that
another server can take its place.
"""

import contextlib
import os
import resource
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from heddle.broker.binary import server_binary
from tests.helpers import eventually

PASSWORD = "first-word"
CONFIG = ("--save", "", "--appendonly", "yes", "--aof-use-rdb-preamble", "no", "--maxmemory-policy", "noeviction")


@dataclass
class Node:
    """One server process, with a folder and a socket file of its own.

    Attributes:
        folder: its data and its log.
        options: words of its command line besides the usual.
    """

    folder: Path
    options: Sequence[str] = ()
    port: int = 0
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def socket_path(self) -> Path:
        """Where it listens."""
        return self.folder / "s"

    def start(self) -> None:
        """Start it; it may still be loading its data then."""
        self.folder.mkdir(exist_ok=True)
        self.port = self.port or _free_port()
        argv = [str(server_binary(os.devnull).path), "--port", str(self.port), "--unixsocket", str(self.socket_path)]
        argv += ["--dir", str(self.folder), "--requirepass", PASSWORD, "--masterauth", PASSWORD, *CONFIG, *self.options]
        with (self.folder / "log").open("ab") as log:
            # SIGXFSZ stays ignored, as Python has it: a file that may not grow is then an error like a full disk.
            self.process = subprocess.Popen(argv, stdout=log, stderr=log, restore_signals=False)

    def kill(self) -> None:
        """SIGKILL."""
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGCONT)
        self.process.kill()
        self.process.wait()
        self.socket_path.unlink(missing_ok=True)

    def client(self) -> redis.Redis:
        """Another connection to it, for breaking things."""
        return redis.Redis(
            unix_socket_path=str(self.socket_path), password=PASSWORD, retry=Retry(NoBackoff(), 0), socket_timeout=20
        )


@dataclass
class Server:
    """The server at the address, and the one that may take its place.

    Attributes:
        url: the address.
        node: the process that answers there.
    """

    root: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="heddle-")))
    options: Sequence[str] = ()

    def __post_init__(self) -> None:
        self.node = Node(self.root / "a", self.options)
        self.other = Node(self.root / "b", self.options)
        self.url = f"unix://:{PASSWORD}@{self.root}/broker"
        self.node.start()
        self._point()
        self.wait_until_well()

    def stop(self) -> None:
        """End everything and delete it."""
        for node in (self.node, self.other):
            if node.process is not None and node.process.poll() is None:
                node.kill()
        shutil.rmtree(self.root, ignore_errors=True)

    def admin(self) -> Any:
        """A connection to whoever answers at the address."""
        return self.node.client()

    @property
    def pid(self) -> int:
        """Of the process that answers at the address."""
        assert self.node.process is not None
        return self.node.process.pid

    def is_well(self) -> bool:
        """It answers PING, which it does not while it loads, is busy, or cannot write its disk."""
        try:
            with self.admin() as client:
                return bool(client.ping())
        except redis.RedisError:
            return False

    def wait_until_well(self, timeout_s: float = 30.0) -> None:
        """Until PING is answered."""
        eventually(self.is_well, timeout_s=timeout_s, what="the server answers")

    # ---- what can be broken

    def freeze(self) -> None:
        """SIGSTOP."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def fill_disk(self) -> None:
        """From now on none of its files may grow."""
        resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))

    def free_disk(self) -> None:
        """They may again."""
        resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    def forget_everything(self) -> None:
        """Take its data away; it must not be running."""
        shutil.rmtree(self.node.folder / "appendonlydir", ignore_errors=True)

    def follow(self) -> None:
        """Start the other one as a replica and wait until it has everything."""
        self.other.options = (
            *self.options,
            "--replicaof",
            f"127.0.0.1 {self.node.port}",
            "--repl-diskless-sync-delay",
            "0",
        )
        self.other.start()
        eventually(lambda: _is_in_step(self.other), timeout_s=30, what="the replica follows")

    def promote(self) -> None:
        """Make the replica the master, at the same address."""
        with self.other.client() as client:
            client.replicaof("NO", "ONE")
        self.node, self.other = self.other, self.node
        self.node.options = self.options
        self._point()

    def demote_old(self) -> None:
        """Have the one that was master before follow the present one."""
        with self.other.client() as client:
            client.replicaof("127.0.0.1", self.node.port)

    def retire_old(self) -> None:
        """End the one that was master before, and forget what it held."""
        if self.other.process is not None and self.other.process.poll() is None:
            self.other.kill()
        shutil.rmtree(self.other.folder)
        self.other = Node(self.other.folder, self.options)

    def _point(self) -> None:
        new = self.root / "new"
        new.symlink_to(self.node.socket_path)
        new.rename(self.root / "broker")


def _is_in_step(node: Node) -> bool:
    try:
        with node.client() as client:
            facts: Any = client.info("replication")
    except redis.RedisError:
        return False
    return bool(facts.get("role") == "slave" and facts.get("master_link_status") == "up")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
