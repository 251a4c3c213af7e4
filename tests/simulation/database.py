"""The keyspace of the simulated server: values by key, and when they expire.

It never handles a command by name; the modules `commands_*` do, through this.
"""

from typing import Any, TypeVar

from tests.simulation.values import WRONG_TYPE, ServerError, Stream, Value, ZSet, copied

V = TypeVar("V", bytes, dict[bytes, bytes], ZSet, Stream)


class Database:
    """Keys, their values and deadlines.

    Attributes:
        told_ids: by stream, the id of the next entry, where another server says it; nothing in the simulation.
        now_ms, now_us: the server's clock, standing still during a command: ms since 1970, and microseconds beyond.
        woken: streams that an entry came to since somebody looked.
        published: messages (channel, data) since somebody looked.
        lapsed: keys that went because their time was over, and when it was: a clock that leapt may stand before it.
        gone: those of them that went since somebody looked.
    """

    def __init__(self) -> None:
        self.data: dict[bytes, Value] = {}
        self.expires: dict[bytes, int] = {}
        self.told_ids: dict[bytes, tuple[int, int]] = {}
        self.now_ms = 0
        self.now_us = 0
        self.woken: set[bytes] = set()
        self.published: list[tuple[bytes, bytes]] = []
        self.lapsed: dict[bytes, int] = {}
        self.gone: list[bytes] = []

    def raw(self, key: bytes) -> Value | None:
        """Whatever lives under `key`."""
        deadline = self.expires.get(key)
        if deadline is not None and deadline <= self.now_ms:
            self._lapse(key, deadline)
        return self.data.get(key)

    def get(self, key: bytes, kind: type[V]) -> V | None:
        """The value under `key`, which is of that kind or not there. Raises ServerError."""
        value = self.raw(key) if key in self.expires else self.data.get(key)
        if value is not None and type(value) is not kind:
            raise ServerError(WRONG_TYPE)
        return value

    def make(self, key: bytes, kind: type[V]) -> V:
        """As `get`, made where it is missing."""
        value = self.get(key, kind)
        if value is None:
            value = self.data[key] = kind()
        return value

    def drop_empty(self, key: bytes, value: Any) -> None:
        """A hash or sorted set without a member is no key."""
        if not value:
            self.delete(key)

    def delete(self, key: bytes) -> None:
        self.data.pop(key, None)
        self.expires.pop(key, None)

    def expire(self) -> None:
        """Let every key go whose time is over."""
        for key, deadline in [item for item in self.expires.items() if item[1] <= self.now_ms]:
            self._lapse(key, deadline)

    def lasts(self, key: bytes, until: int) -> int:
        """How many ms a key lasts on that was given a time until then; 0 or less where it is over, or was."""
        return 0 if self.lapsed.get(key, 0) >= until else until - self.now_ms

    def _lapse(self, key: bytes, deadline: int) -> None:
        self.lapsed[key] = deadline
        self.gone.append(key)
        self.delete(key)

    def living(self) -> list[bytes]:
        """Every living key."""
        self.expire()
        return list(self.data)

    def copy(self) -> tuple[dict[bytes, Value], dict[bytes, int]]:
        """The whole of it, as a backup."""
        return {key: copied(value) for key, value in self.data.items()}, dict(self.expires)

    def restore(self, backup: tuple[dict[bytes, Value], dict[bytes, int]]) -> None:
        """Back to what a copy holds."""
        self.data = {key: copied(value) for key, value in backup[0].items()}
        self.expires = dict(backup[1])
