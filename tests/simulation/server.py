"""The simulated server: commands and scripts on a keyspace in memory, with what a real one can lose.

It never decides about time: its clock is given. It answers as Redis 7 and Valkey do (`test_fidelity.py` holds it to
that), for the commands that Heddle sends. A server that is killed comes back without a tail of what it wrote, or with
an older backup; it forgets its scripts; it may be out of memory.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.simulation.commands_plain import PLAIN
from tests.simulation.commands_stream import STREAMS
from tests.simulation.database import Database
from tests.simulation.lua import Engine
from tests.simulation.values import OK, ServerError, Status, Value

COMMANDS = PLAIN | STREAMS
READS = frozenset(
    b"EXISTS PTTL SCAN GET GETRANGE STRLEN HGET HMGET HGETALL HVALS ZCARD ZSCORE ZRANK ZRANGE ZREVRANGE "
    b"ZRANGEBYSCORE TIME PUBLISH PING XLEN XRANGE XREVRANGE XREAD XPENDING XINFO".split()
)
"""Commands that write nothing; every other one counts as a script's first write, also when it changes nothing."""
UNWRITTEN = READS | {b"SCRIPT", b"INFO", b"CONFIG"}
NEEDS_MEMORY = frozenset(b"SET HSET HSETNX HINCRBY ZADD XADD XGROUP|CREATE".split())
"""Commands that a server out of memory refuses: DENYOOM in COMMAND INFO."""
OOM = "OOM command not allowed when used memory > 'maxmemory'."
NOSCRIPT = "NOSCRIPT No matching script. Please use EVAL."
BACKUP_EVERY_MS = 500.0
BACKUPS = 40

Backup = tuple[dict[bytes, Value], dict[bytes, int]]


@dataclass(slots=True)
class Written:
    """One command in the log of writes.

    Attributes:
        at_ms: server time then; full: it was out of memory then.
        number: how many were written before, ever.
        lapse: the server's own, of a key whose time was over; not counted. Without it a clock that was set back since
            would show the key again when the log is read.
    """

    at_ms: float
    full: bool
    args: Sequence[bytes]
    number: int
    lapse: bool = False


class SimServer:
    """One server.

    Attributes:
        clock: server ms since 1970, with a fraction.
        full: out of memory, whatever it holds. memory: bytes of strings that it holds at most; None for any number.
        starts: how often it was started.
        started_ms: server time of the last start.
        written: how many commands the log holds.

    Args:
        rewrite: gives the text of a script to run in place of the one loaded: a planted bug.
        keeps_log: False for a server that is never restarted.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        engine: Engine,
        *,
        rewrite: Callable[[str], str] = lambda source: source,
        keeps_log: bool = True,
    ) -> None:
        self.clock = clock
        self.full = False
        self.memory: int | None = None
        self.starts = 1
        self.db = Database()
        self.started_ms = clock()
        self.written = 0
        self._engine = engine
        self._rewrite = rewrite
        self._keeps_log = keeps_log
        self._known: dict[bytes, Any] = {}
        self._ever: dict[bytes, Any] = {}
        self._wrote = False
        self._base: list[tuple[float, int, Backup]] = [(self.started_ms, 0, self.db.copy())]
        self._log: list[Written] = []
        self._oom = False

    # ---- commands

    def execute(self, args: Sequence[bytes]) -> Any:
        """One command; its reply, or the ServerError that is its reply."""
        now = self.clock()
        if not self._keeps_log:
            return self._execute(now, self.is_full(), args)
        if args[0] in UNWRITTEN:
            reply = self._execute(now, False, args)
            self._note_lapses(now)
            return reply
        if now - self._base[-1][0] >= BACKUP_EVERY_MS:
            self._back_up(now)
        full = self.full if self.memory is None else self.is_full()
        reply = self._execute(now, full, args)
        self._note_lapses(now)
        if not (isinstance(reply, ServerError) and str(reply) == NOSCRIPT):
            self._log.append(Written(now, full, args, self.written))
            self.written += 1
        return reply

    def _execute(self, now: float, full: bool, args: Sequence[bytes]) -> Any:
        db = self.db
        db.now_ms, db.now_us = int(now), int(now % 1 * 1000)
        self._oom = full
        name = args[0]
        try:
            if name == b"EVALSHA":
                return self._evalsha(args)
            found = COMMANDS.get(name)
            if found is None:
                return self._other(name, args[1:])
            if full and _needs_memory(name, args):
                raise ServerError(OOM)
            return found(db, args[1:])
        except ServerError as error:
            return error

    def _evalsha(self, args: Sequence[bytes]) -> Any:
        chunk = self._known.get(args[1])
        if chunk is None:
            raise ServerError(NOSCRIPT)
        count = int(args[2])
        self._wrote = False
        self._engine.call = self._called
        return self._engine.run(chunk, args[3 : 3 + count], args[3 + count :])

    def _called(self, name: bytes, args: Sequence[bytes]) -> Any:
        """A command that a script makes: out of memory, the first write must be one that is allowed."""
        found = COMMANDS.get(name)
        if found is None:
            raise ServerError("ERR Unknown Redis command called from script")
        if self._oom and not self._wrote and _needs_memory(name, [name, *args]):
            raise ServerError(OOM)
        if name not in READS:
            self._wrote = True
        return found(self.db, args)

    def _other(self, name: bytes, args: Sequence[bytes]) -> Any:
        if name == b"SCRIPT" and args[0].upper() == b"LOAD":
            sha = hashlib.sha1(args[1], usedforsecurity=False).hexdigest().encode()
            self._known[sha] = self._ever[sha] = self._engine.load(self._rewrite(args[1].decode()))
            return sha
        if name == b"SCRIPT" and args[0].upper() == b"FLUSH":
            self._known.clear()
            return OK
        if name == b"INFO":
            return self._info()
        if name == b"CONFIG" and args[0].upper() == b"GET":
            return [b"appendfsync", b"everysec"] if args[1] == b"appendfsync" else []
        raise ServerError(f"ERR unknown command '{name.decode()}', with args beginning with: ")

    def _info(self) -> bytes:
        up_s = max(0, int((self.clock() - self.started_ms) / 1000))
        used = 2000 if self.is_full() else 500
        lines = f"run_id:run{self.starts}\r\nuptime_in_seconds:{up_s}\r\nused_memory:{used}\r\nmaxmemory:1000\r\n"
        lines += "aof_enabled:1\r\naof_last_write_status:ok\r\n"
        return lines.encode()

    def is_full(self) -> bool:
        """Out of memory now."""
        if self.full or self.memory is None:
            return self.full
        self.db.now_ms = int(self.clock())
        self.db.expire()
        return sum(len(value) for value in self.db.data.values() if type(value) is bytes) >= self.memory

    def knows(self, sha: bytes) -> bool:
        """True for a script that it can run."""
        return sha in self._known

    def forget_scripts(self) -> None:
        """SCRIPT FLUSH, or what a restart does."""
        self._known.clear()

    # ---- what is lost

    def _note_lapses(self, now: float) -> None:
        gone = self.db.gone
        if gone:
            self._log += [Written(now, False, [b"DEL", key], self.written, lapse=True) for key in gone]
            gone.clear()

    def _back_up(self, now: float) -> None:
        self._base.append((now, self.written, self.db.copy()))
        if len(self._base) > BACKUPS:
            del self._base[1]

    def writes_since(self, ms_ago: float) -> int:
        """Number of the first command written in the last `ms_ago`."""
        since = self.clock() - ms_ago
        return next((one.number for one in self._log if one.at_ms >= since), self.written)

    def before_last(self, name: bytes, key_end: bytes) -> int:
        """Number of the last command of that name on a stream whose key ends so; of the next one when there is none."""
        found = (one.number for one in reversed(self._log) if one.args[0] == name and one.args[-2].endswith(key_end))
        return next(found, self.written)

    def come_back(self, keep: int) -> None:
        """Start again with the first `keep` commands ever written, the rest forgotten."""
        while len(self._base) > 1 and self._base[-1][1] > keep:
            self._base.pop()
        _, number, backup = self._base[-1]
        self.db.restore(backup)
        self._log = [one for one in self._log if one.number < keep or (one.lapse and one.number == keep)]
        self._known = dict(self._ever)
        for one in self._log:
            if one.number >= number:
                self._execute(one.at_ms, one.full, one.args)
        self.written = keep
        self._known.clear()
        self.starts += 1
        self.db.woken.clear()
        self.db.published.clear()
        self.db.gone.clear()
        self.started_ms = self.clock()


def _needs_memory(name: bytes, args: Sequence[bytes]) -> bool:
    return name in NEEDS_MEMORY or (name == b"XGROUP" and args[1].upper() == b"CREATE")


def shown(reply: Any) -> str:
    """A reply in short, for a trace."""
    if isinstance(reply, ServerError):
        return str(reply)[:60]
    if isinstance(reply, Status | bytes):
        return reply[:40].decode(errors="replace")
    if isinstance(reply, list):
        return "[" + " ".join(shown(item) for item in reply[:12]) + "]"
    return str(reply)
