"""Bulk: large strings from the server straight into memory that is used again.

redis-py's way makes three copies of each, in memory that is new each time. Whatever is not answered as it should be is
left to that way, which says what is wrong; it never retries.
"""

import socket
from collections.abc import Callable, Sequence
from typing import Any

from redis.exceptions import ConnectionError as Disconnected

from heddle.blocks import Blocks
from heddle.broker.calls import leaving_replicas
from heddle.broker.connection import Connection
from heddle.broker.experience_types import Pointer
from heddle.broker.faults import translated
from heddle.broker.pointers import by_bytes

DIRECT_FROM = 128 << 10
"""Bytes of a round trip from which this pays."""
HEAD = 512
"""Bytes read at a time where the length of the next string stands; what follows of the string is copied once more."""
LONGEST_HEAD = 32


class Unexpected(Exception):
    """An answer that is no string, or a longer one than was asked for."""


class Bulk:
    """Fetches batches over the connections of `conn`."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        self._blocks = Blocks()

    def fetch(
        self, pointers: Sequence[Pointer], otherwise: Callable[[Sequence[Pointer]], list[bytes | None]]
    ) -> list[bytes | memoryview | None]:
        """The bytes behind pointers, in order, one more than announced at most; None where there are none.

        Args:
            otherwise: fetches them in redis-py's way.

        Raises:
            BrokerUnreachable, Denied: as every call.
        """
        found: list[bytes | memoryview | None] = []
        for some in by_bytes(pointers):
            is_large = sum(pointer.bytes for pointer in some) >= DIRECT_FROM
            got = self._get_ranges([(pointer.blob_key, pointer.bytes) for pointer in some]) if is_large else None
            found += otherwise(some) if got is None else got
        return found

    def _get_ranges(self, asked: Sequence[tuple[str, int]]) -> list[memoryview | None] | None:
        """The first bytes of each key, in one round trip; None in place of all: ask in the usual way."""
        client = self._conn.main
        pool: Any = client.connection_pool
        with translated(client.url_redacted, client.secret, known=client.known), leaving_replicas(client):
            connection = pool.get_connection()
            try:
                if not isinstance(line := getattr(connection, "_sock", None), socket.socket):
                    return None
                commands = [("GETRANGE", key, 0, size) for key, size in asked]
                connection.send_packed_command(connection.pack_commands(commands))
                answers = Answers(line)
                return [answers.string(size + 1, self._blocks) for _, size in asked]
            except Unexpected:
                connection.disconnect()
                return None
            except BaseException:
                connection.disconnect()
                raise
            finally:
                pool.release(connection)


class Answers:
    """What a server sends, read from its line."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._rest = b""

    def string(self, most: int, blocks: Blocks) -> memoryview | None:
        """The next answer; None for one without a byte. Raises Unexpected."""
        head = self._head()
        if not (head.startswith(b"$") and (head[1:].isdigit() or head == b"$-1")):
            raise Unexpected(head)
        size = int(head[1:])
        if size > most:
            raise Unexpected(head)
        if size < 0:
            return None
        data = blocks.take(size + 2)
        self._fill(data)
        if bytes(data[size:]) != b"\r\n":
            raise Unexpected(head)
        return data[:size].toreadonly() if size else None

    def _head(self) -> bytes:
        while (end := self._rest.find(b"\r\n", 0, LONGEST_HEAD)) < 0:
            if len(self._rest) >= LONGEST_HEAD:
                raise Unexpected(self._rest[:LONGEST_HEAD])
            self._rest += self._some(self._line.recv(HEAD))
        head, self._rest = self._rest[:end], self._rest[end + 2 :]
        return head

    def _fill(self, data: memoryview) -> None:
        have = min(len(self._rest), len(data))
        data[:have], self._rest = self._rest[:have], self._rest[have:]
        while have < len(data):
            have += self._some(self._line.recv_into(data[have:]))

    @staticmethod
    def _some(got: Any) -> Any:
        if not got:
            raise Disconnected("the server closed the connection")
        return got
