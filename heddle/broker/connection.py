"""The connection: redis-py set up as this project needs it, with errors of our own.

It never retries by itself: a lost reply says nothing about whether the write happened, so the caller decides.

Measured reasons for the settings: redis-py's own retries left four entries for one XADD with three lost replies; its
hiredis packer copies a blob twice where the Python one hands a memoryview on as it is; a timeout below BLOCK turns
every quiet read into an error.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import redis
from redis.backoff import NoBackoff
from redis.connection import PythonRespSerializer
from redis.retry import Retry

from heddle.broker.address import open_pool, secret_of
from heddle.broker.durability import Kept, kept_by, misses_replicas
from heddle.broker.faults import BLOCKED, redact, split_options, translate, translated
from heddle.broker.fitness import ServerInfo, check_fit
from heddle.broker.scripts import Script, script
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
SCRIPT_TRIES = 3
"""Somebody may flush the scripts at any moment, also between loading one and calling it."""

Arg = str | int | float | bytes | memoryview


class Client(redis.Redis):
    """redis-py's client, raising Heddle's errors for trouble with the server; ResponseError stays for the rest."""

    url_redacted = ""
    secret = ""
    known = False
    """The server let this client in before."""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        try:  # nothing is entered for a call that goes well: there are many
            return super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
        except (redis.RedisError, OSError):
            with translated(self.url_redacted, self.secret, known=self.known), leaving_replicas(self):
                raise

    def pipeline(self, transaction: bool = True, shard_hint: Any = None) -> "Pipe":
        """As redis-py's, with Heddle's errors, and scripts by name."""
        pipe = Pipe(self.connection_pool, self.response_callbacks, transaction, shard_hint)
        pipe.url_redacted, pipe.secret, pipe.known = self.url_redacted, self.secret, self.known
        return pipe

    def script_call(self, name: str, keys: Sequence[str], args: Sequence[Arg]) -> Any:
        """Run a script; one that the server does not know (any more) is loaded first."""
        found = script(name)
        for _ in range(SCRIPT_TRIES):
            try:
                return self.evalsha(found.sha, len(keys), *keys, *args)
            except redis.exceptions.NoScriptError:
                self._load(found)
        return self.evalsha(found.sha, len(keys), *keys, *args)

    def _load(self, found: Script) -> None:
        log.debug("loaded script=%s", found.name)
        self.script_load(found.source)


MANY_SCRIPTS = 20
"""So many calls that a server did not know are run again together; few are one by one, each by itself."""


class Pipe(redis.client.Pipeline):
    """Commands and scripts in one round trip."""

    url_redacted = ""
    secret = ""
    known = False

    def script(self, name: str, keys: Sequence[str], args: Sequence[Arg]) -> "Pipe":
        """Add a script call."""
        self.execute_command("EVALSHA", script(name).sha, len(keys), *keys, *args)  # type: ignore[no-untyped-call]
        named: dict[int, str] = self.__dict__.setdefault("_named", {})
        named[len(self.command_stack) - 1] = name
        return self

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        """Send all; a script that the server did not know did not run, and only that one is run again.

        Args:
            raise_on_error: raise the first error among the replies; else they stand in their places, as redis-py's, but
                for trouble with the server, which stands there in Heddle's words.
        """
        named: dict[int, str] = getattr(self, "_named", {})
        self._named: dict[int, str] = {}
        stack = list(self.command_stack)
        try:  # as above
            replies = super().execute(raise_on_error=raise_on_error and not named)
            missing = {
                place: name
                for place, name in named.items()
                if isinstance(replies[place], redis.exceptions.NoScriptError)
            }
            if len(missing) >= MANY_SCRIPTS:
                replies = self._run_many_again(missing, stack, replies)
            for place, name in missing.items():
                if isinstance(replies[place], redis.exceptions.NoScriptError):
                    replies[place] = self._run_again(name, stack[place][0])
            for reply in replies:
                if isinstance(reply, Exception) and raise_on_error:
                    raise reply
                if isinstance(reply, redis.exceptions.ReadOnlyError):
                    leave(self)
        except (redis.RedisError, OSError):
            with translated(self.url_redacted, self.secret, known=self.known), leaving_replicas(self):
                raise
        return [self._in_our_words(reply) for reply in replies]

    def _in_our_words(self, reply: Any) -> Any:
        if not isinstance(reply, Exception):
            return reply
        return translate(reply, self.url_redacted, self.secret, known=self.known) or reply

    def _run_many_again(self, missing: Mapping[int, str], stack: list[Any], replies: list[Any]) -> list[Any]:
        """Load scripts and run their calls in order, in one round trip: one by one ten thousand take a minute."""
        client = redis.Redis(connection_pool=self.connection_pool)
        for name in dict.fromkeys(missing.values()):
            client.script_load(script(name).source)
        pipe = client.pipeline(transaction=False)
        for place in missing:
            pipe.execute_command(*stack[place][0])  # type: ignore[no-untyped-call]
        again = dict(zip(missing, pipe.execute(raise_on_error=False), strict=True))
        return [again.get(place, reply) for place, reply in enumerate(replies)]

    def _run_again(self, name: str, command: tuple[Any, ...]) -> Any:
        """Load a script and run its call; an error becomes its reply, as in the pipeline."""
        client = redis.Redis(connection_pool=self.connection_pool)
        for tries_left in reversed(range(SCRIPT_TRIES)):
            client.script_load(script(name).source)
            try:
                return client.execute_command(*command)  # type: ignore[no-untyped-call]
            except redis.exceptions.ResponseError as error:
                if not (isinstance(error, redis.exceptions.NoScriptError) and tries_left):
                    return error
        raise AssertionError("unreachable")


@contextmanager
def leaving_replicas(client: redis.Redis) -> Iterator[None]:
    """Within it, a server that became a replica is left: the address may lead to another one by now."""
    try:
        yield
    except redis.exceptions.ReadOnlyError:
        leave(client)
        raise


def leave(client: redis.Redis) -> None:
    """Connect anew for the next call."""
    client.connection_pool.disconnect(inuse_connections=False)


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
