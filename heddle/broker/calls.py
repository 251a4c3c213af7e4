"""Calls: redis-py's client and pipeline, with scripts by name and errors of our own.

They never retry a call whose answer was lost; only a script that the server did not know is loaded and run.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import redis

from heddle.broker.faults import translate, translated
from heddle.broker.kinds import Suspects, names_in
from heddle.broker.scripts import Script, script

log = logging.getLogger("heddle.broker")

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
            suspects = partial(suspects_in, self, args)
            with (
                translated(self.url_redacted, self.secret, known=self.known, suspects=suspects),
                leaving_replicas(self),
            ):
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
        failed: tuple[Any, ...] = ()
        try:  # as above
            replies = super().execute(raise_on_error=False)
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
            for place, reply in enumerate(replies):
                if isinstance(reply, Exception) and raise_on_error:
                    failed = stack[place][0]
                    raise reply
                if isinstance(reply, redis.exceptions.ReadOnlyError):
                    leave(self)
        except (redis.RedisError, OSError):
            suspects = partial(suspects_in, self, failed)
            with (
                translated(self.url_redacted, self.secret, known=self.known, suspects=suspects),
                leaving_replicas(self),
            ):
                raise
        return [self._in_our_words(reply, stack[place][0]) for place, reply in enumerate(replies)]

    def _in_our_words(self, reply: Any, command: tuple[Any, ...]) -> Any:
        if not isinstance(reply, Exception):
            return reply
        suspects = partial(suspects_in, self, command)
        return translate(reply, self.url_redacted, self.secret, known=self.known, suspects=suspects) or reply

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


def suspects_in(client: redis.Redis, command: tuple[Any, ...]) -> Suspects:
    """The keys of a command that met one of another kind, and a way to ask of which each is."""
    asking = redis.Redis(connection_pool=client.connection_pool)

    def ask(name: str) -> str:
        try:
            found: Any = asking.type(name)
            return str(found, "ascii")
        except (redis.RedisError, OSError):  # it may not be asked, or is away by now: then it is not told
            return ""

    return Suspects(names_in(command), ask)


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
