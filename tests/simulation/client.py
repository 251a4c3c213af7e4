"""The shipped `Client` and `Pipe` on the simulated network: Heddle's code and redis-py's, without a socket.

It never models a command: redis-py builds the arguments and reads the replies.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import redis
from redis.exceptions import NoScriptError, ResponseError

from heddle.broker import Broker
from heddle.broker.calls import SCRIPT_TRIES, Client, Pipe
from heddle.broker.connection import CALL_TIMEOUT_S, MAX_BLOCK_MS, Connection
from heddle.broker.fitness import ServerInfo
from heddle.broker.scripts import script
from tests.simulation.net import Net, error_of
from tests.simulation.values import ServerError, Status

POOL = redis.ConnectionPool(protocol=2)


def encoded(args: tuple[Any, ...]) -> list[bytes]:
    """A command's arguments as they would be sent."""
    words = [*_name_of(args[0])]
    for arg in args[1:]:
        kind = type(arg)
        if kind is str:
            words.append(arg.encode())
        elif kind is bytes:
            words.append(arg)
        else:
            words.append(b"%d" % arg if kind is int else _encoded(arg))
    return words


@cache
def _name_of(command: str) -> tuple[bytes, ...]:
    return tuple(command.upper().encode().split())


def _encoded(arg: Any) -> bytes:
    if type(arg) is int:
        return b"%d" % arg
    if isinstance(arg, memoryview):
        return bytes(arg)
    if isinstance(arg, bool) or not isinstance(arg, int | float):
        raise redis.exceptions.DataError(f"Invalid input of type: {type(arg).__name__}")
    return repr(arg).encode() if isinstance(arg, float) else str(arg).encode()


class _Wire(redis.Redis):
    """Where redis-py would write to a socket."""

    net: Net
    timeout_s: float

    def __del__(self) -> None:
        """No socket is held that redis-py would give back."""

    def evalsha(self, sha: str, numkeys: int, *keys_and_args: Any) -> Any:
        """What redis-py's own comes to for one server."""
        return self.execute_command("EVALSHA", sha, numkeys, *keys_and_args)

    def execute_command(self, *args: Any, **options: Any) -> Any:
        (reply,) = self.net.call([encoded(args)], self.timeout_s)
        return _read(reply, args[0], options)


class _PipeWire(redis.client.Pipeline):
    """The same for several commands."""

    net: Net
    timeout_s: float

    def __del__(self) -> None:
        """No socket is held that redis-py would give back."""

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        stack, self.command_stack = self.command_stack, []
        if not stack:
            return []
        replies = self.net.call([encoded(args) for args, _ in stack], self.timeout_s)
        found: list[Any] = []
        for reply, (args, options) in zip(replies, stack, strict=True):
            try:
                found.append(_read(reply, args[0], options))
            except ResponseError as error:
                if raise_on_error:
                    raise
                found.append(error)
        return found


@cache
def _made_once() -> redis.Redis:
    """What redis-py's constructor makes, which takes longer than a simulated process lives."""
    return redis.Redis(connection_pool=POOL)


class SimPipe(Pipe, _PipeWire):
    """The shipped pipeline, wired."""

    def _run_many_again(self, missing: Mapping[int, str], stack: list[Any], replies: list[Any]) -> list[Any]:
        """One by one, as few are."""
        return replies

    def _run_again(self, name: str, command: tuple[Any, ...]) -> Any:
        """As the shipped one, which opens a client of its own on the pool."""
        client = SimClient(self.net, self.timeout_s)
        for tries_left in reversed(range(SCRIPT_TRIES)):
            client.script_load(script(name).source)
            try:
                return client.execute_command(*command)
            except ResponseError as error:
                if not (isinstance(error, NoScriptError) and tries_left):
                    return error
        raise AssertionError("unreachable")


class SimClient(Client, _Wire):
    """The shipped client, wired."""

    def __init__(self, net: Net, timeout_s: float) -> None:
        self.__dict__.update(_made_once().__dict__)
        self.net, self.timeout_s = net, timeout_s

    def pipeline(self, transaction: bool = True, shard_hint: Any = None) -> SimPipe:
        pipe = SimPipe(self.connection_pool, self.response_callbacks, transaction, shard_hint)
        pipe.net, pipe.timeout_s = self.net, self.timeout_s
        return pipe


def sim_broker(net: Net) -> Broker:
    """A broker of one process, with the connections that `open_broker` makes."""
    main = SimClient(net, CALL_TIMEOUT_S)
    blocking = SimClient(net, CALL_TIMEOUT_S + MAX_BLOCK_MS / 1000)
    main.ping()
    return Broker(Connection(main, blocking, "sim", ServerInfo("redis", (7, 0, 0))))


def _read(reply: Any, name: str, options: dict[str, Any]) -> Any:
    if isinstance(reply, ServerError):
        raise error_of(reply)
    callback = _callback_of(name)
    if callback is None:
        return bytes(reply) if type(reply) is Status else reply
    options.pop("keys", None)
    return callback(reply, **options)


@cache
def _callback_of(name: str) -> Callable[..., Any] | None:
    """How redis-py reads the replies of a command."""
    found: Callable[..., Any] | None = _made_once().response_callbacks.get(name)  # type: ignore[no-untyped-call]
    return found
