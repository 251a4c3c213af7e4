"""The simulated server beside a real one: whatever a machine sends to the real one is asked of it, too.

It never changes what the machine sees. Both servers must answer alike. Their clocks are made one: of the milliseconds
between a command and its answer, those count at which the simulated server answers as the real one did.
"""

import re
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis

from heddle.broker import Broker
from tests.simulation.client import encoded
from tests.simulation.lua import Engine
from tests.simulation.replies import blurred
from tests.simulation.server import COMMANDS, Backup, SimServer
from tests.simulation.values import Stream

ELSEWHERE = frozenset(b"CLIENT HELLO SELECT AUTH PING INFO KEYS HKEYS TTL TIME CONFIG WAIT XINFO".split())
"""Not asked of the simulated server: what looks at the connection or the machine, and what only tests send."""
UNORDERED = frozenset(b"HGETALL HVALS SCAN".split())
STALE_MS = 3
"""A server looks at its clock once for a few commands: so old is what it believes to be now."""
MOMENT = re.compile(rb"(?<![0-9])1[0-9]{12}(?![0-9]|-[0-9])")
"""A note of when something was; the id of an entry is none."""
CLOSE_MS = 50
"""Such a note may differ by this much: a real server looks at its clock anew for TIME and for the id of an entry, also
within one script (in 2 of 1,000 appends of a busy machine they are a millisecond or more apart), the simulated one does
not. So no id is ruled out because the note beside it is of another millisecond; ids themselves must be the same."""
SKEW_MS = 10
"""So much worse than the best of them the notes of a state may fit, for it to be kept until the ids are told."""


class Mirror:
    """What was compared, and what differed.

    Attributes:
        compared: commands by name.
        differences: what was asked, and both answers, since everything was flushed.
    """

    def __init__(self) -> None:
        self.compared: Counter[bytes] = Counter()
        self.differences: list[str] = []
        self._now_ms = 0.0
        self._states: list[Backup] = [({}, {})]
        self._sim = SimServer(lambda: self._now_ms, Engine(), keeps_log=False)

    def saw(self, command: list[bytes], real: Any, sent_s: float, heard_s: float) -> None:
        """A real server was asked and answered, between two moments of the clock that both servers have."""
        name = command[0].upper()
        if name == b"FLUSHALL":
            self._states = [({}, {})]
            self.differences.clear()
        elif command[:3] == [b"CONFIG", b"SET", b"maxmemory"]:
            self._sim.full = command[3] == b"1"
        elif name in ELSEWHERE:
            return
        elif name not in COMMANDS and name not in (b"EVALSHA", b"SCRIPT"):
            self.differences.append(f"the simulated server does not know {name.decode()}")
        else:
            self.compared[name] += 1
            first_ms, last_ms = int(1000.0 * sent_s) - STALE_MS, int(1000.0 * heard_s)
            self._compare(command, real, range(first_ms if name in (b"EVALSHA", b"XADD") else last_ms, last_ms + 1))

    def _compare(self, command: list[bytes], real: Any, moments: range) -> None:
        """Go on with every state that the answers so far allow: a script does not tell the id of an entry.

        Of those with the same ids the one whose notes of moments fit best is taken.
        """
        wanted, found = _plain(command, real), list[tuple[Any, Backup]]()
        for state in self._states:
            for self._now_ms in moments:
                self._sim.db.restore(state)
                found.append((_plain(command, self._sim.execute(command)), self._sim.db.copy()))
        alike: dict[tuple[Any, ...], tuple[int, Backup]] = {}
        for answer, state in found:
            apart, known = _apart_ms(answer, wanted), alike.get(_ids(state))
            if apart is not None and (known is None or apart < known[0]):
                alike[_ids(state)] = (apart, state)
        if not alike:
            answers = [answer for answer, _ in found]
            self.differences.append(f"{command}: real {wanted}, simulated {answers[0]} in {len(answers)} ways")
            alike = {(): (0, found[0][1])}
        nearest = min(apart for apart, _ in alike.values())
        self._states = [state for apart, state in alike.values() if apart <= nearest + SKEW_MS]


def _ids(state: Backup) -> tuple[Any, ...]:
    """The ids in every stream: what states must not differ in, where notes of moments may."""
    return tuple((value.last, *value.entries) for _, value in sorted(state[0].items()) if isinstance(value, Stream))


@contextmanager
def mirrored(broker: Broker) -> Iterator[Mirror]:
    """Within it, all that is sent through `broker` is asked of a simulated server as well."""
    broker.conn.main.script_flush()  # what earlier tests loaded there the simulated server has never heard of
    mirror, pools = Mirror(), {client.connection_pool for client in (broker.conn.main, broker.conn.blocking())}
    before = {pool: pool.connection_class for pool in pools}
    try:
        for pool, kind in before.items():
            pool.connection_class = type("Watched", (_Watched, kind), {"mirror": mirror})
            pool.reset()
        yield mirror
    finally:
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


def _apart_ms(one: Any, other: Any) -> int | None:
    """How far apart the notes of moments in two replies are, together; None where anything else in them differs."""
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        if len(one) != len(other):
            return None
        parts = [_apart_ms(first, second) for first, second in zip(one, other, strict=True)]
        return None if None in parts else sum(part or 0 for part in parts)
    if not (isinstance(one, bytes) and isinstance(other, bytes)):
        return 0 if one == other else None
    if MOMENT.sub(b"", one) != MOMENT.sub(b"", other):
        return None
    moments = [[int(ms) for ms in MOMENT.findall(text)] for text in (one, other)]
    if len(moments[0]) != len(moments[1]):
        return None
    apart = [abs(first - second) for first, second in zip(*moments, strict=True)]
    return sum(apart) if all(ms <= CLOSE_MS for ms in apart) else None
