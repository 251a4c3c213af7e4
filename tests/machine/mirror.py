"""The simulated server beside a real one: whatever a machine sends to the real one is asked of it, too.

It never changes what the machine sees. Both servers must answer alike. Their clocks are made one: of the milliseconds
between a command and its answer, those count at which the simulated server answers as the real one did.
"""

import re
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import redis

from heddle.broker import Broker
from tests.simulation.client import encoded
from tests.simulation.lua import Engine
from tests.simulation.replies import blurred
from tests.simulation.server import COMMANDS, Backup, SimServer
from tests.simulation.values import parse_id

ELSEWHERE = frozenset(b"CLIENT HELLO SELECT AUTH PING INFO KEYS HKEYS TTL TIME CONFIG WAIT XINFO".split())
"""Not asked of the simulated server: what looks at the connection or the machine, and what only tests send."""
UNORDERED = frozenset(b"HGETALL HVALS SCAN".split())
STALE_MS = 3
"""A server looks at its clock once for a few commands: so old is what it believes to be now."""
MOMENT = re.compile(rb"(?<![0-9])1[0-9]{12}(?![0-9]|-[0-9])")
"""A note of when something was; the id of an entry is none."""
CLOSE_MS = 50
"""Such a note may differ by this much, where the command that wrote it answered nothing with it: a real server looks at
its clock anew for TIME and for the id of an entry, also within one script, the simulated one does not (2 of 1,000
appends of a busy machine have the two a millisecond or more apart). So ids are asked of the real server. On a machine
that is busy with other things a command is under way for longer than this: then it may differ by as much."""
STREAMS = (b":experience", b":tickets", b":dead", b":metrics", b"heddle:queue", b"heddle:log", b"heddle:prints")
"""Ends of the names of keys that a script may add to."""


class Mirror:
    """What was compared, and what differed.

    Attributes:
        compared: commands by name.
        differences: what was asked, and both answers, since everything was flushed.
    """

    def __init__(self, beside: Any) -> None:
        """`beside` is a client of the real server's that nobody watches."""
        self._beside = beside
        self.compared: Counter[bytes] = Counter()
        self.differences: list[str] = []
        self._now_ms = 0.0
        self._close_ms = CLOSE_MS
        self._state: Backup = ({}, {})
        self._sim = SimServer(lambda: self._now_ms, Engine(), keeps_log=False)

    def saw(self, command: list[bytes], real: Any, sent_s: float, heard_s: float) -> None:
        """A real server was asked and answered, between two moments of the clock that both servers have."""
        name = command[0].upper()
        if name == b"FLUSHALL":
            self._state, self._close_ms = ({}, {}), CLOSE_MS
            self.differences.clear()
        elif command[:3] == [b"CONFIG", b"SET", b"maxmemory"]:
            self._sim.full = command[3] == b"1"
        elif name in ELSEWHERE:
            return
        elif name not in COMMANDS and name not in (b"EVALSHA", b"SCRIPT"):
            self.differences.append(f"the simulated server does not know {name.decode()}")
        else:
            self.compared[name] += 1
            sent_ms, heard_ms = int(1000.0 * sent_s), int(1000.0 * heard_s)
            self._close_ms = max(self._close_ms, heard_ms - sent_ms)
            asked = [*range(sent_ms, heard_ms + 1), *range(sent_ms - STALE_MS, sent_ms)]
            self._sim.db.told_ids = self._told_ids(command, real)
            self._compare(command, real, asked if name in (b"EVALSHA", b"XADD") else [heard_ms])

    def restarted(self) -> None:
        """The real server was killed and came back: with everything that it held but the scripts it knew."""
        self._sim.forget_scripts()

    def _told_ids(self, command: list[bytes], real: Any) -> dict[bytes, tuple[int, int]]:
        """The ids that the real server gave to what this command added, by stream."""
        if command[0].upper() == b"XADD":
            return {command[1]: parse_id(real, missing=0)} if isinstance(real, bytes) else {}
        if command[0].upper() != b"EVALSHA":
            return {}
        names = [key for key in command[3 : 3 + int(command[2])] if key.endswith(STREAMS)]
        streams = [name for name in names if self._beside.type(name) == b"stream"]
        newest = {name: self._beside.xrevrange(name, count=1) for name in streams}
        return {name: parse_id(page[0][0], missing=0) for name, page in newest.items() if page}

    def _compare(self, command: list[bytes], real: Any, moments: Sequence[int]) -> None:
        """Go on with the state whose notes of moments fit best."""
        wanted, answers, best = _plain(command, real), list[Any](), list[tuple[int, Backup]]()
        for self._now_ms in moments:
            self._sim.db.restore(self._state)
            answers.append(_plain(command, self._sim.execute(command)))
            apart = _apart_ms(answers[-1], wanted, self._close_ms)
            if apart is not None and (not best or apart < best[0][0]):
                best = [(apart, self._sim.db.copy())]
            if apart == 0:
                break
        if not best:
            self.differences.append(f"{command}: real {wanted}, simulated {answers[0]} in {len(answers)} ways")
        self._state = best[0][1] if best else self._sim.db.copy()


@contextmanager
def mirrored(broker: Broker) -> Iterator[Mirror]:
    """Within it, all that is sent through `broker` is asked of a simulated server as well."""
    broker.conn.main.script_flush()  # what earlier tests loaded there the simulated server has never heard of
    pools = {client.connection_pool for client in (broker.conn.main, broker.conn.blocking())}
    before = {pool: pool.connection_class for pool in pools}
    main = broker.conn.main.connection_pool
    beside = redis.Redis(connection_pool=redis.ConnectionPool(main.connection_class, **main.connection_kwargs))
    mirror = Mirror(beside)
    try:
        for pool, kind in before.items():
            pool.connection_class = type("Watched", (_Watched, kind), {"mirror": mirror})
            pool.reset()
        yield mirror
    finally:
        beside.connection_pool.disconnect()
        for pool, kind in before.items():
            pool.disconnect()
            pool.connection_class = kind
            pool.reset()


class _Watched:
    """Put before a class of connections: pairs each command with its answer."""

    mirror: Mirror

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._asked: deque[tuple[list[bytes], float]] = deque()
        super().__init__(*args, **kwargs)

    def send_command(self, *args: Any, **kwargs: Any) -> Any:
        self._asked.append((encoded(args), time.time()))
        return super().send_command(*args, **kwargs)  # type: ignore[misc]

    def pack_commands(self, commands: Any) -> Any:
        listed = list(commands)
        self._asked.extend((encoded(args), time.time()) for args in listed)
        return super().pack_commands(listed)  # type: ignore[misc]

    def read_response(self, *args: Any, **kwargs: Any) -> Any:
        try:
            reply = super().read_response(*args, **kwargs)  # type: ignore[misc]
        except redis.ResponseError as error:
            self._heard(error)
            raise
        self._heard(reply)
        return reply

    def _heard(self, reply: Any) -> None:
        command, sent_s = self._asked.popleft()
        self.mirror.saw(command, reply, sent_s, time.time())


def _plain(command: list[bytes], reply: Any) -> Any:
    """A reply for comparing; hashes as a real server lists them have no order."""
    found = blurred(command, reply)
    if command[0] == b"HGETALL" and isinstance(found, list):
        return sorted(zip(found[::2], found[1::2], strict=True))
    return sorted(found) if command[0] in UNORDERED and isinstance(found, list) and command[0] != b"SCAN" else found


def _apart_ms(one: Any, other: Any, close_ms: int) -> int | None:
    """How far apart the notes of moments in two replies are, together; None where anything else in them differs, or two
    of them by more than `close_ms`."""
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        if len(one) != len(other):
            return None
        parts = [_apart_ms(first, second, close_ms) for first, second in zip(one, other, strict=True)]
        return None if None in parts else sum(part or 0 for part in parts)
    if not (isinstance(one, bytes) and isinstance(other, bytes)):
        return 0 if one == other else None
    if MOMENT.sub(b"", one) != MOMENT.sub(b"", other):
        return None
    moments = [[int(ms) for ms in MOMENT.findall(text)] for text in (one, other)]
    if len(moments[0]) != len(moments[1]):
        return None
    apart = [abs(first - second) for first, second in zip(*moments, strict=True)]
    return sum(apart) if all(ms <= close_ms for ms in apart) else None
