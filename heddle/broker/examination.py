"""The examination: everything a server says of itself, read in one go for `heddle doctor`, whether it is fit or not.

It never judges and never changes a setting. What its user may not ask is None, and said in `denied`.
"""

import contextlib
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from redis.exceptions import ResponseError

from heddle.broker import keys
from heddle.broker.connection import Connection, open_unchecked
from heddle.broker.durability import Kept, setting
from heddle.broker.fitness import ServerInfo, identify
from heddle.clock import Clock
from heddle.errors import BrokerBlocked, BrokerFull, Denied

SCAN = "SCAN"
"""Among what is denied: whoever may not look at every key is told nothing of what belongs to nobody."""
PINGS = 20
SETTINGS = ("maxmemory-policy", "maxclients", "no-appendfsync-on-rewrite", "aof-load-truncated", "appendfsync")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Examined:
    """What a server told.

    Attributes:
        url: redacted.
        server: None when it may not be asked.
        ping_ms, slowest_ms: median and worst of some round trips.
        kept: what survives when it is killed.
        info: all of INFO; {} when it may not be asked.
        settings: those of `SETTINGS` that it told.
        offset_ms: its clock minus this host's.
        now_ms: its clock.
        scripts: "" when scripts can be run, else why not.
        writes: "" when it takes writes, else why not.
        denied: what its user may not ask.
    """

    url: str
    server: ServerInfo | None
    ping_ms: float
    slowest_ms: float
    kept: Kept
    info: Mapping[str, Any]
    settings: Mapping[str, str]
    offset_ms: int
    now_ms: int
    scripts: str
    writes: str
    denied: tuple[str, ...]


def examine(url: str, *, clock: Clock) -> tuple[Examined, Connection]:
    """Examine the server at `url`; the connection stays open, for more questions.

    Raises:
        BrokerUnreachable, Denied, UsageError: it cannot be asked anything at all.
    """
    conn = open_unchecked(url, role="doctor")
    _ping_ms(conn, clock)
    denied: list[str] = []

    def ask(what: str, question: Callable[[], T]) -> T | None:
        try:
            return question()
        except (Denied, ResponseError):
            denied.append(what)
            return None

    info = ask("INFO", conn.main.info) or {}
    settings = {}
    for name in SETTINGS:
        told = ask(f"CONFIG GET {name}", lambda name=name: conn.main.config_get(name))  # type: ignore[misc]
        if told:
            settings[name] = setting(told, name)
    ask(SCAN, lambda: conn.main.scan(count=1))
    pings = [_ping_ms(conn, clock) for _ in range(PINGS)]
    before = clock.wall()
    now_ms = conn.now_ms()
    offset_ms = round(now_ms - 500.0 * (before + clock.wall()))
    examined = Examined(
        url=conn.url_redacted,
        server=identify(info) if info else None,
        ping_ms=statistics.median(pings),
        slowest_ms=max(pings),
        kept=conn.kept(),
        info=info,
        settings=settings,
        offset_ms=offset_ms,
        now_ms=now_ms,
        scripts=_reason("EVALSHA", lambda: _run_script(conn), denied),
        writes=_reason("SET", lambda: conn.main.set(keys.PROBE, "1", px=1_000), denied),
        denied=tuple(denied),
    )
    return examined, conn


def _ping_ms(conn: Connection, clock: Clock) -> float:
    began = clock.monotonic()
    with contextlib.suppress(BrokerBlocked):  # with a full disk it refuses even this: an answer, and told as `writes`
        conn.main.ping()
    return 1000.0 * (clock.monotonic() - began)


def _run_script(conn: Connection) -> None:
    sha = conn.main.script_load("return 1")
    conn.main.evalsha(sha, 0)


def _reason(what: str, attempt: Callable[[], object], denied: list[str]) -> str:
    """Why something is refused to everybody; "" when it is not, or only to this user, which `denied` is told."""
    try:
        attempt()
    except Denied:
        denied.append(what)
    except (BrokerFull, ResponseError) as error:
        return " ".join(str(error).split())
    return ""
