"""A TCP proxy between one role and the server, and what can go wrong on the way.

It never looks at what passes. What a fault holds back is delivered when it is over, as TCP does, so requests of
seconds ago reach the server after somebody else has taken over.
"""

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")

CHUNK = 1 << 16
_ABORT = struct.pack("ii", 1, 0)  # SO_LINGER on, 0 s: closing sends a reset


@dataclass(eq=False)
class _Pair:
    """One connection of the role and its counterpart to the server.

    Attributes:
        stale: nothing passes any more, for ever, and nobody is told.
    """

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    stale: bool = False


@dataclass(eq=False)
class Link:
    """One role's way to the server.

    Attributes:
        port: where the role connects, on 127.0.0.1.
        faults: present ones; what follows from them: up, down: requests, replies pass; latency_s: mean delay of each
            piece, each way; resetting: connections are reset, new ones too.
    """

    name: str
    port: int = 0
    latency_s: float = 0.0
    resetting: bool = False
    accepted: int = 0
    faults: list[str] = field(default_factory=list)
    pairs: set[_Pair] = field(default_factory=set)
    up: asyncio.Event = field(default_factory=asyncio.Event)
    down: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        """The server's, by way of this link."""
        return f"redis://127.0.0.1:{self.port}/0"


class Proxy:
    """Links of all roles, in a thread with a loop of its own.

    Args:
        upstream: the server's socket file.
        names: of the roles.
    """

    def __init__(self, upstream: Path, names: list[str], *, seed: int = 0) -> None:
        self._upstream = upstream
        self._rng = np.random.default_rng(seed)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.links = {name: self._call(self._open(name)) for name in names}

    def urls(self) -> dict[str, str]:
        """The address to give to each role."""
        return {name: link.url for name, link in self.links.items()}

    def hurt(self, name: str, deed: str) -> Callable[[], None]:
        """Begin a fault on a link; returns what ends it.

        Args:
            deed: latency; reset (every connection, also new ones); cut (nothing passes either way), deaf (no reply
                passes), mute (no request does); stale (today's connections are dead for good, and nobody is told).
        """
        link = self.links[name]
        self._call(self._begin(link, deed))
        return lambda: self._call(self._finish(link, deed))

    def stop(self) -> None:
        """Close everything."""
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _open(self, name: str) -> Link:
        link = Link(name)
        link.up.set()
        link.down.set()
        server = await asyncio.start_server(lambda r, w: self._serve(link, r, w), "127.0.0.1", 0)
        link.port = server.sockets[0].getsockname()[1]
        self._servers.append(server)
        return link

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        for task in list(self._tasks):
            task.cancel()
        for link in self.links.values():
            for pair in list(link.pairs):
                self._drop(link, pair)

    async def _begin(self, link: Link, deed: str) -> None:
        link.faults.append(deed)
        if deed == "stale":
            for pair in link.pairs:
                pair.stale = True
        self._apply(link)
        if deed == "reset":
            for pair in list(link.pairs):
                self._drop(link, pair)

    async def _finish(self, link: Link, deed: str) -> None:
        link.faults.remove(deed)
        self._apply(link)

    def _apply(self, link: Link) -> None:
        """Bring a link into the state that its present faults make."""
        faults = set(link.faults)
        link.latency_s = 0.01 + 0.07 * self._rng.random() if "latency" in faults else 0.0
        link.resetting = "reset" in faults
        for gate, holds in ((link.up, {"cut", "mute"}), (link.down, {"cut", "deaf"})):
            if faults & holds:
                gate.clear()
            else:
                gate.set()

    async def _serve(self, link: Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link.accepted += 1
        try:
            if link.resetting:
                raise ConnectionResetError
            await link.up.wait()  # a cable that is pulled lets nobody in
            upstream_reader, upstream = await asyncio.open_unix_connection(self._upstream)
        except OSError:
            _reset(writer)
            return
        pair = _Pair(writer, upstream)
        link.pairs.add(pair)
        for source, target, gate in ((reader, upstream, link.up), (upstream_reader, writer, link.down)):
            task = self._loop.create_task(self._pump(link, pair, source, target, gate))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(
        self,
        link: Link,
        pair: _Pair,
        source: asyncio.StreamReader,
        target: asyncio.StreamWriter,
        gate: asyncio.Event,
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(CHUNK):
                if link.latency_s:
                    await asyncio.sleep(link.latency_s * 2 * self._rng.random())
                await gate.wait()
                if pair.stale:
                    continue
                target.write(data)
                await target.drain()
        await gate.wait()
        if pair.stale and target is pair.client:
            return  # the server went away, and the role does not hear of it
        self._drop(link, pair)

    def _drop(self, link: Link, pair: _Pair) -> None:
        link.pairs.discard(pair)
        for writer in (pair.client, pair.server):
            if link.resetting:
                _reset(writer)
            else:
                writer.close()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with a reset instead of a goodbye."""
    sock = writer.get_extra_info("socket")
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
    writer.transport.abort()
