"""The connection: redis-py set up as this project needs it, with errors of our own.

It never retries by itself: a lost reply says nothing about whether the write happened, so the caller decides.

Measured reasons for the settings: redis-py's own retries left four entries for one XADD with three lost replies; its
hiredis packer copies a blob twice where the Python one hands a memoryview on as it is; a timeout below BLOCK turns
every quiet read into an error.
"""

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import redis
from redis.backoff import NoBackoff
from redis.connection import PythonRespSerializer
from redis.retry import Retry

from heddle.broker.address import open_pool, secret_of
from heddle.broker.calls import Arg, Client, Pipe
from heddle.broker.durability import Kept, kept_by, misses_replicas
from heddle.broker.faults import BLOCKED, redact, split_options
from heddle.broker.fitness import ServerInfo, check_fit
from heddle.errors import BrokerBlocked, Denied, UsageError

log = logging.getLogger("heddle.broker")

CONNECT_TIMEOUT_S = 3.0
CALL_TIMEOUT_S = 5.0
"""A call without answer for this long is given up; a slow link may say more: redis://host?socket_timeout=30."""
MAX_BLOCK_MS = 2_000
"""Longest BLOCK; a role looks around at least this often."""
MAX_CONNECTIONS = 64
READ_BYTES = 1 << 20
CHUNK_CUTOFF_BYTES = 6_000


class Connection:
    """One process's way to the broker: pools for calls and for blocking reads. Threads may share it.

    Attributes:
        main: for everything that answers at once.
        url_redacted: where it leads, without the password.
        server: what answers there.
    """

    def __init__(self, main: Client, blocking: Client, url_redacted: str, server: ServerInfo) -> None:
        self.main = main
        self._blocking = blocking
        self.url_redacted = url_redacted
        self.server = server

    def blocking(self) -> Client:
        """For reads that BLOCK, for at most `MAX_BLOCK_MS`; each call in progress has a socket of its own."""
        return self._blocking

    def script(self, name: str, keys: Sequence[str], args: Sequence[Arg]) -> Any:
        """Run `lua/<name>.lua` in one round trip; the reply as the server gave it."""
        return self.main.script_call(name, keys, args)

    def pipeline(self) -> Pipe:
        """Commands and scripts in one round trip, not atomic as a whole."""
        return self.main.pipeline(transaction=False)

    def now_ms(self) -> int:
        """The server's clock."""
        seconds, micros = self.main.time()
        return int(seconds) * 1000 + int(micros) // 1000

    def uptime_ms(self) -> int:
        """Since the server was started, to a second."""
        return int(self.main.info("server")["uptime_in_seconds"]) * 1000

    def run_id(self) -> str:
        """Which run of the server this is: another one after each restart; "" when it does not tell."""
        try:
            return str(self.main.info("server").get("run_id", ""))
        except (Denied, redis.exceptions.ResponseError):
            return ""

    def out_of_memory(self) -> bool:
        """Whether it refuses writes that need memory, now."""
        memory = self.main.info("memory")
        most = int(memory.get("maxmemory", 0))
        return most > 0 and int(memory["used_memory"]) >= most

    def blocked(self) -> str:
        """Why it takes no write at all, not even what frees room: it "cannot write its disk, ..."; else ""."""
        try:
            self.main.ping()
        except BrokerBlocked as error:  # of all reading commands, PING alone is refused then
            return str(error).removeprefix(f"{self.url_redacted} ")
        return BLOCKED["NOREPLICAS"] if misses_replicas(self.main) else ""

    def kept(self) -> Kept:
        """What survives when the server is killed."""
        return kept_by(self.main)

    def close(self) -> None:
        """Let every socket go."""
        self.main.connection_pool.disconnect()
        self._blocking.connection_pool.disconnect()


def open_connection(url: str, *, role: str) -> Connection:
    """Connect and check that the server may be used.

    Args:
        url: redis://, rediss:// or unix://, see `address`.
        role: shown in the server's CLIENT LIST.

    Raises:
        UsageError: not such a URL.
        BrokerUnreachable, BrokerUnfit, Denied: in one line, with what to do.
    """
    main = _client(url, role, extra_s=0.0)
    blocking = _client(url, role, extra_s=MAX_BLOCK_MS / 1000)
    server = check_fit(main)
    main.known = blocking.known = True
    return Connection(main, blocking, main.url_redacted, server)


def open_unchecked(url: str, *, role: str) -> Connection:
    """As `open_connection`, to a server that may be unfit: for looking at it only. Nothing is asked yet."""
    main = _client(url, role, extra_s=0.0)
    blocking = _client(url, role, extra_s=MAX_BLOCK_MS / 1000)
    return Connection(main, blocking, main.url_redacted, ServerInfo("redis", (0, 0, 0)))


def retry_delays(rng: np.random.Generator, *, first_s: float = 0.05, last_s: float = 1.0) -> Iterator[float]:
    """Seconds to wait before each further try: full jitter below a doubling bound, so that nobody returns in step."""
    bound = first_s
    while True:
        yield float(rng.uniform(0.1, 1.0)) * bound
        bound = min(last_s, bound * 2)


def _check_database(url: str) -> None:
    """redis-py takes database 0 for one that is no number. Raises UsageError."""
    database = split_options(url)[0].rpartition("@")[2].rpartition("://")[2].partition("/")[2]
    if database and not database.isdecimal():
        raise UsageError(
            f"not a broker URL: {redact(url)}: {database!r} is no database number; write redis://HOST:PORT/0"
        )


def _client(url: str, role: str, *, extra_s: float) -> Client:
    kwargs: dict[str, Any] = {
        "socket_timeout": CALL_TIMEOUT_S,
        "socket_connect_timeout": CONNECT_TIMEOUT_S,
        "socket_read_size": READ_BYTES,
        "max_connections": MAX_CONNECTIONS,
        "client_name": f"heddle-{role}",
        "encoding_errors": "backslashreplace",  # a user's error may name a file by bytes that are no text
    }
    if not url.startswith("unix:"):
        kwargs["socket_keepalive"] = True
        _check_database(url)
    pool = open_pool(url, timeout=CALL_TIMEOUT_S, **kwargs)
    # What a URL may not change: replies as bytes in RESP2 shapes, no retries, blobs sent without a copy.
    pool.connection_kwargs.update(
        protocol=2,
        decode_responses=False,
        retry=Retry(NoBackoff(), 0),
        retry_on_error=[],
        command_packer=PythonRespSerializer(CHUNK_CUTOFF_BYTES, pool.get_encoder().encode),
        socket_timeout=float(pool.connection_kwargs.get("socket_timeout") or CALL_TIMEOUT_S) + extra_s,
    )
    client = Client(connection_pool=pool)
    client.url_redacted = redact(url)
    client.secret = secret_of(pool)
    return client
