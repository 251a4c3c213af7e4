"""Durability: what a server keeps when it is killed, by name, as the server itself tells it.

It never changes a setting. What each name promises was measured first; `docs/reliability.md` has the figures.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from redis.exceptions import ResponseError

from heddle.errors import Denied

if TYPE_CHECKING:
    from heddle.broker.calls import Client

Level = Literal["memory", "fast", "strict"]

LEVELS: tuple[Level, ...] = ("memory", "fast", "strict")
"""From the least to the most a server can promise."""
PROMISES = {
    "strict": "nothing that was accepted is lost when the server is killed",
    "fast": "the last 2 s may be lost when the server is killed; what is lost is counted",
    "memory": "everything since its last snapshot, or all, is lost when the server is killed",
    "unknown": "the server does not tell",
}


@dataclass(frozen=True, slots=True)
class Kept:
    """What survives when the server is killed.

    Attributes:
        name: of the level; "unknown" when the server does not tell.
        least: the level that is certain.
        why: the settings that say so.
    """

    name: Level | Literal["unknown"]
    least: Level
    why: str

    @property
    def promise(self) -> str:
        """What the name means, in words."""
        return PROMISES[self.name]


def why_empty(kept: Kept, uptime_ms: int) -> str:
    """That a server holds no experiment, which somebody looks for, and what to do."""
    why = f" (durability memory: all is lost when it ends, and it started {uptime_ms // 1000} s ago)"
    return f"this broker has none{why if kept.name == 'memory' else ''}; submit one with: heddle enqueue exp.toml"


def kept_by(client: "Client") -> Kept:
    """What the server behind `client` keeps. Raises BrokerUnreachable."""
    try:
        facts: Mapping[str, Any] = client.info("persistence")
    except (Denied, ResponseError):
        return Kept("unknown", "memory", "INFO is not allowed to this user")
    if not int(facts.get("aof_enabled", 0)):
        return Kept("memory", "memory", "no append-only file (appendonly no)")
    try:
        told = client.config_get("appendfsync")
    except (Denied, ResponseError):
        return Kept("unknown", "fast", "an append-only file is on; CONFIG GET appendfsync is not allowed to this user")
    fsync = setting(told, "appendfsync")
    if fsync == "always":
        return Kept("strict", "strict", "append-only file, appendfsync always")
    if fsync in ("everysec", "no"):
        return Kept("fast", "fast", f"append-only file, appendfsync {fsync}")
    return Kept("unknown", "fast", "an append-only file is on; the server does not tell its appendfsync")


def misses_replicas(client: "Client") -> bool:
    """True when the server lacks replicas without which it takes no write; False where it does not tell.

    Raises:
        BrokerUnreachable: it does not answer.
    """
    try:
        good = client.info("replication").get("min_slaves_good_slaves")
        if good is None or int(good) == 0:
            return good is not None  # it is told only where some are asked for
        return int(good) < int(setting(client.config_get("min-replicas-to-write"), "min-replicas-to-write") or 0)
    except (Denied, ResponseError):
        return False


def setting(told: Mapping[Any, Any], name: str) -> str:
    """One value of a CONFIG GET reply, as text; "" when it is not in it."""
    value = told.get(name, told.get(name.encode(), ""))
    return value.decode() if isinstance(value, bytes) else str(value)


def lacking(least: Level | None, kept: Kept) -> str:
    """Why a server that keeps `kept` does not do where `least` is asked for; "" when it does."""
    if least is None or LEVELS.index(kept.least) >= LEVELS.index(least):
        return ""
    if kept.name == "unknown":
        return f"limits.durability asks for {least}, and whether the broker keeps that cannot be known: {kept.why}"
    return (
        f"limits.durability asks for {least}, but the broker is {kept.name} ({kept.why}); lower it, or use one that is:"
        f" `heddle up --durability {least}`"
    )
