"""A server of our own: start one in a folder, find one that runs there, stop it without a trace.

It never prints and never falls back to another server: who asked for one gets it, or an error that says why.
The configuration goes in over standard input, so a password shows neither there nor in the process list.
"""

import contextlib
import json
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import redis

from heddle.broker.binary import ServerBinary, server_binary
from heddle.broker.owned import OwnedProcess
from heddle.broker.server_folder import (
    DURABILITY_FILE,
    LOG_FILE,
    FolderId,
    folder_id,
    has_data,
    lock,
    settle_durability,
    tail,
    write_private,
)
from heddle.broker.server_found import SERVER_FILE, ask_run_id, find_running, is_answer, is_running, running_entry
from heddle.broker.server_setup import (
    KEEPS_MEMORY,
    PASSWORD_FILE,
    Address,
    Durability,
    choose_address,
    config_text,
    half_of_memory,
)
from heddle.clock import Clock, SystemClock
from heddle.errors import BrokerUnreachable, Gone, Interrupted

__all__ = [
    "LocalServer",
    "ServerBinary",
    "find_running",
    "is_running",
    "restart",
    "running_entry",
    "server_binary",
    "start_server",
]

log = logging.getLogger("heddle.broker")

_REPAIR = "repair them (redis-check-aof), or move {folder} away and go on from checkpoints (--resume EXP)"
_START_TIMEOUT_S = 15.0
_QUIET_S, _TELL_S = 2.0, 30.0
"""When, and then how often, somebody is told that a server still loads its data."""
_STOP_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Settings:
    """What a server was started with; enough to start it again.

    Attributes:
        folder: where its data, log and socket lie.
        address: where it listens.
        durability: strict fsyncs every write, fast once a second, memory never stores anything.
        maxmemory: bytes of data before writes are refused.
        binary: the program.
    """

    folder: Path
    address: Address
    durability: Durability
    maxmemory: int
    binary: ServerBinary


class LocalServer:
    """A running server that belongs to this process.

    Attributes:
        url: for processes on this host.
        remote_url: for other hosts; None when only this one can reach it.
        shown_url: for whoever can reach it, to show to people: the password is in the file that it names; "" for a
            socket of this user's.
        redis_cli: the command line that opens it, to show to people.
        settings: what it was started with.
        run_id: of this run of the server.
        folder_id: of the folder that it was started in: by its path that may be another's by now.
    """

    def __init__(self, process: OwnedProcess, settings: Settings, run_id: str, folder_id: FolderId | None) -> None:
        self.process = process
        self.settings = settings
        self.run_id = run_id
        self.folder_id = folder_id
        self.url = settings.address.url()
        self.remote_url = settings.address.remote_url()
        tcp = settings.address.socket_path is None
        self.shown_url = settings.address.shown_url(settings.folder / PASSWORD_FILE) if tcp else ""
        self.redis_cli = settings.address.redis_cli(settings.folder)

    @property
    def pid(self) -> int:
        """Process id of the server."""
        return self.process.pid

    def is_running(self) -> bool:
        """False once the process has ended, however it did."""
        return self.process.returncode() is None

    def has_folder(self) -> bool:
        """False once its folder was removed, and maybe made anew by another: nothing at that path is its own."""
        return folder_id(self.settings.folder) == self.folder_id

    def last_words(self, lines: int = 5) -> str:
        """The end of its log."""
        return tail(self.settings.folder, lines)

    def stop(self) -> None:
        """End it and take away its socket, password, log and entry; its data stays. May be called again."""
        if folder_id(self.settings.folder) not in (None, self.folder_id):
            self.process.kill()  # asked gently it unlinks the path of its socket, which is another server's now
            return
        self.process.end(_STOP_TIMEOUT_S)
        _clear(self.settings)

    def __enter__(self) -> "LocalServer":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()


def start_server(
    folder: Path,
    *,
    bind: str | None = None,
    durability: Durability | None = None,
    port: int | None = None,
    maxmemory: int | None = None,
    binary: ServerBinary | None = None,
    clock: Clock | None = None,
    given_up: Callable[[], bool] = lambda: False,
) -> LocalServer:
    """Start a server whose data lies in `folder` and which ends with this process.

    Call it from a thread that stays (see `owned.py`).

    Args:
        folder: made when missing; one server at a time.
        bind: address to listen on, with a password; None listens on a socket file of this user only,
            or on 127.0.0.1 when a port is given.
        durability: strict fsyncs every write, fast once a second, memory never stores anything; None takes what
            the folder's data were kept with last, else fast.
        port: TCP port; 0 takes any free one, None 6379 when it is free and else any.
        maxmemory: bytes of data before writes are refused; None takes half of this machine's memory.
        binary: the program; None looks for one.
        given_up: asked again and again while it loads what the folder holds, which may take minutes.

    Raises:
        Interrupted: it was `given_up` before it served.
        BrokerUnfit: no fit server program.
        Conflict: a server already runs in that folder, or the port is taken, or `memory` would pass over its data.
        BrokerUnreachable: it did not come up; the message carries the end of its log.
    """
    folder = folder.expanduser().resolve()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    binary = binary or server_binary()
    clock = clock or SystemClock()
    with lock(folder, clock, partial(_who, folder)) as lock_fd:
        level = settle_durability(folder, durability)
        settings = Settings(folder, choose_address(folder, bind, port), level, maxmemory or half_of_memory(), binary)
        try:
            return _launch(settings, lock_fd, clock, given_up)
        except BaseException:
            if not has_data(folder):
                (folder / DURABILITY_FILE).unlink(missing_ok=True)
            raise


def restart(
    server: LocalServer, clock: Clock | None = None, *, given_up: Callable[[], bool] = lambda: False
) -> LocalServer:
    """Start a server that ended again: same data, same address, so everybody finds it.

    Raises:
        Interrupted: it was `given_up` before it served.
        Conflict, Gone: it still runs, or its port was taken meanwhile; its folder was removed with what it held.
        BrokerUnreachable: it did not come up; the message carries the end of its log.
    """
    clock, folder = clock or SystemClock(), server.settings.folder
    if not server.has_folder():
        raise Gone(f"{folder} was removed while its server ran, and what that held is lost; go on from a checkpoint")
    with lock(folder, clock) as lock_fd:
        return _launch(server.settings, lock_fd, clock, given_up)


def _launch(settings: Settings, lock_fd: int, clock: Clock, given_up: Callable[[], bool]) -> LocalServer:
    try:
        return _start(settings, lock_fd, clock, given_up)
    except OSError as error:
        raise BrokerUnreachable(
            f"cannot start a server in {settings.folder}: {error.strerror or error}; make room or give the rights"
        ) from error


def _start(settings: Settings, lock_fd: int, clock: Clock, given_up: Callable[[], bool]) -> LocalServer:
    _clear(settings)
    folder, address = settings.folder, settings.address
    if address.socket_path is not None:
        address.socket_path.parent.mkdir(mode=0o700, exist_ok=True)
    else:
        write_private(folder / PASSWORD_FILE, address.password + "\n")
    config = config_text(folder, address, settings.durability, settings.maxmemory)
    argv = [str(settings.binary.path), "-"]
    with (folder / LOG_FILE).open("ab") as log:
        env = {**KEEPS_MEMORY, **os.environ}
        process = OwnedProcess(argv, stdin=config.encode(), folder=folder, log=log, keep_open=[lock_fd], env=env)
    try:
        run_id = _wait_until_ready(process, address.url(), folder, clock, given_up)
        server = LocalServer(process, settings, run_id, folder_id(lock_fd))
        write_private(folder / SERVER_FILE, json.dumps(_entry(server)) + "\n")
    except BaseException:
        process.end(_STOP_TIMEOUT_S)
        _clear(settings)
        raise
    return server


def _entry(server: LocalServer) -> dict[str, str]:
    return {
        "url": server.url,
        "remote_url": server.remote_url or "",
        "redis_cli": server.redis_cli,
        "pid": str(server.pid),
        "run_id": server.run_id,
        "server": str(server.settings.binary),
        "durability": server.settings.durability,
    }


def _wait_until_ready(process: OwnedProcess, url: str, folder: Path, clock: Clock, given_up: Callable[[], bool]) -> str:
    """The run id of the server once it serves; one that says that it cannot yet, as while it loads, is waited for."""
    deadline, tell_at = clock.monotonic() + _START_TIMEOUT_S, clock.monotonic() + _QUIET_S
    while (now := clock.monotonic()) < deadline:
        if (code := process.returncode()) is not None:
            hint = f"; if its data are damaged: {_REPAIR.format(folder=folder)}" if has_data(folder) else ""
            raise BrokerUnreachable(f"the server ended at once (exit {code}): {tail(folder, 3)}{hint}")
        if given_up():
            raise Interrupted(f"stopped while the server in {folder} was starting; its data are as they were")
        try:
            run_id, loads = ask_run_id(url)
            if not loads:
                return run_id
            answers = True
        except redis.RedisError as error:
            answers = is_answer(error)
        if answers:
            deadline = now + _START_TIMEOUT_S
            if now >= tell_at:
                log.warning("the server in %s still loads its data, waiting; Ctrl-C gives it up", folder)
                tell_at = now + _TELL_S
        clock.sleep(0.01)
    raise BrokerUnreachable(f"the server did not answer within {_START_TIMEOUT_S:g} s: {tail(folder, 3)}")


def _who(folder: Path) -> str:
    scheme, found, rest = (find_running(folder) or "").partition("://")
    return f" ({scheme}://{rest.rpartition('@')[2]})" if found else ""  # without the password


def _clear(settings: Settings) -> None:
    """Remove what a run leaves besides its data."""
    for name in (SERVER_FILE, PASSWORD_FILE, LOG_FILE):
        (settings.folder / name).unlink(missing_ok=True)
    socket_path = settings.address.socket_path
    if socket_path is not None:
        socket_path.unlink(missing_ok=True)
        if socket_path.parent != settings.folder:
            with contextlib.suppress(OSError):
                socket_path.parent.rmdir()
