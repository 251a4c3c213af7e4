"""Findings: what `heddle doctor` says about a broker, from facts that were read. Pure: no socket, no clock.

It never softens: what is bad is said with what to do about it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from heddle.broker.binary import FLOOR
from heddle.broker.census import Census
from heddle.broker.examination import Examined
from heddle.cli.specs import size

Level = Literal["ok", "warn", "bad"]
LEVELS: tuple[Level, ...] = ("ok", "warn", "bad")

SLOW_PING_MS = 5.0
VERY_SLOW_PING_MS = 100.0
FULL_WARN, FULL_BAD = 0.75, 0.95
CLIENTS_WARN = 0.8
OFFSET_WARN_MS = 5_000
AHEAD_WARN_MS = 2_000
MARGIN = 1.3
"""What stored batches take in a server's memory, for each byte of theirs; measured at 1.0 to 1.32."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line.

    Attributes:
        area: install, host, broker, fleet, or keys.
        what: was looked at.
        says: what was found.
        do: what to do about it; "" when nothing is to be done.
    """

    area: str
    what: str
    level: Level
    says: str
    do: str = ""


def worst(findings: Sequence[Finding]) -> Level:
    """The worst level of all."""
    return max((finding.level for finding in findings), key=LEVELS.index, default="ok")


def of_broker(seen: Examined) -> Iterator[Finding]:
    """What a server says of itself."""
    level: Level = "bad" if seen.ping_ms > VERY_SLOW_PING_MS else "warn" if seen.ping_ms > SLOW_PING_MS else "ok"
    yield Finding(
        "broker",
        "answer",
        level,
        f"{seen.url}, {seen.ping_ms:.2f} ms, at worst {seen.slowest_ms:.1f} ms",
        "" if level == "ok" else "every append waits that long: bring workers and broker closer together",
    )
    yield _version(seen)
    yield _may(seen, "scripts", "EVALSHA", seen.scripts, "every step of the protocol is a script: use another server")
    yield _may(seen, "writes", "SET", seen.writes, "see memory, files and role below")
    yield _eviction(seen)
    yield _durability(seen)
    if seen.info:
        yield from _files(seen.info, seen.settings)
        yield _role(seen.info)
        yield _clients(seen.info, seen.settings)
    yield _clock(seen)


def of_memory(seen: Examined, wants_bytes: int) -> Finding:
    """Head-room, now and if every experiment used what it may."""
    used, most = int(seen.info.get("used_memory", 0)), int(seen.info.get("maxmemory", 0))
    if not seen.info:
        return Finding("broker", "memory", "warn", "unknown: INFO is not allowed to this user", "allow +info")
    if not most:
        return Finding(
            "broker", "memory", "warn", f"{size(used)} used, no maxmemory: the system may kill it when it is full",
            "set maxmemory below what the machine has: redis-cli CONFIG SET maxmemory 4gb",
        )  # fmt: skip
    share, said = used / most, f"{size(used)} used of {size(most)}"
    if share >= FULL_WARN:
        level: Level = "bad" if share >= FULL_BAD else "warn"
        return Finding("broker", "memory", level, said, "raise maxmemory, or remove ended experiments: heddle rm EXP")
    if wants_bytes * MARGIN > most:
        said += f"; experiments may have {size(wants_bytes)} in flight"
        return Finding("broker", "memory", "warn", said, "raise maxmemory, or lower limits.max_bytes")
    return Finding("broker", "memory", "ok", said)


def of_keys(census: Census, ended: Sequence[str]) -> Iterator[Finding]:
    """What lies there, and what belongs to nobody."""
    old = sum(census.owners[experiment] for experiment in ended)
    said = f"{census.keys:,}{'' if census.complete else ' and more'} of ours, {len(census.listed)} experiments"
    yield Finding("keys", "number", "ok", f"{said}, {len(ended)} of them ended with {old:,} keys")
    if census.homeless:
        yield Finding(
            "keys", "left over", "warn",
            f"{sum(census.owners[one] for one in census.homeless):,} keys of {', '.join(census.homeless[:3])}",
            f"a removal was cut short: heddle rm --force {census.homeless[0]}",
        )  # fmt: skip
    for experiment, count in census.bare.items():
        yield Finding(
            "keys", "entries", "warn", f"{count} of {experiment} have no bytes any more",
            "the trainer counts them as dropped; if they stay, no trainer runs",
        )  # fmt: skip
    for experiment, count in census.adrift.items():
        yield Finding(
            "keys", "batches", "warn", f"{count} of {experiment} are stored and named by no entry",
            f"they go with the experiment: heddle rm {experiment}, once it is over",
        )  # fmt: skip
    if census.tickets:
        yield Finding(
            "keys", "tickets", "warn", f"{census.tickets} of shards that are not there", "a coordinator drops them"
        )
    if not (census.homeless or census.bare or census.adrift or census.tickets):
        yield Finding("keys", "orphans", "ok", "none")
    if census.ahead_ms > AHEAD_WARN_MS:
        yield Finding(
            "keys", "epochs", "warn", f"{census.ahead_ms / 1000:,.0f} s ahead of the server's clock: it was set back",
            "epochs still rise; let a clock be slewed, never stepped",
        )  # fmt: skip


def _version(seen: Examined) -> Finding:
    if seen.server is None:
        return Finding("broker", "server", "warn", "unknown: INFO is not allowed to this user", "allow +info")
    floor = FLOOR[seen.server.kind]
    if seen.server.version < floor:
        need = ".".join(map(str, floor[:2]))
        return Finding("broker", "server", "bad", str(seen.server), f"run {seen.server.kind} {need} or newer")
    return Finding("broker", "server", "ok", str(seen.server))


def _may(seen: Examined, what: str, command: str, reason: str, do: str) -> Finding:
    if reason:
        return Finding("broker", what, "bad", reason, do)
    if command in seen.denied:
        said = f"{command} is not allowed to this user, who can only look then"
        return Finding("broker", what, "warn", said, "see what each role needs: heddle acl ROLE")
    return Finding("broker", what, "ok", "taken")


def _eviction(seen: Examined) -> Finding:
    policy = seen.settings.get("maxmemory-policy") or str(seen.info.get("maxmemory_policy", ""))
    if not policy:
        return Finding("broker", "eviction", "warn", "unknown: the server does not tell", "make sure it is noeviction")
    if policy != "noeviction":
        do = "redis-cli CONFIG SET maxmemory-policy noeviction: it would lose data silently"
        return Finding("broker", "eviction", "bad", policy, do)
    return Finding("broker", "eviction", "ok", policy)


def _durability(seen: Examined) -> Finding:
    kept = seen.kept
    said = f"{kept.name}: {kept.promise} ({kept.why})"
    if kept.name in ("memory", "unknown"):
        do = (
            "of `heddle up`: start it again with --durability fast; of another server: appendonly yes, "
            "appendfsync everysec (fast) or always (strict)"
            if kept.name == "memory"
            else "allow +config|get and +info"
        )
        return Finding("broker", "durability", "warn", said, do)
    if kept.why.endswith("appendfsync no"):
        do = "set appendfsync everysec: a power cut may lose 30 s"
        return Finding("broker", "durability", "warn", said, do)
    if seen.settings.get("no-appendfsync-on-rewrite") == "yes":
        do = "set no-appendfsync-on-rewrite no: a power cut during a rewrite may lose 30 s"
        return Finding("broker", "durability", "warn", said, do)
    return Finding("broker", "durability", "ok", said)


def _files(info: Mapping[str, Any], settings: Mapping[str, str]) -> Iterator[Finding]:
    """How its last writes to disk went."""
    troubles = 0
    if int(info.get("aof_enabled", 0)) and str(info.get("aof_last_write_status", "ok")) != "ok":
        troubles += 1
        yield Finding(
            "broker", "files", "bad", "the last write of its append-only file failed", "make room on its disk"
        )
    if str(info.get("aof_last_bgrewrite_status", "ok")) != "ok":
        troubles += 1
        yield Finding(
            "broker", "files", "warn", "the last rewrite of its append-only file failed", "see its log; it grows"
        )
    if str(info.get("rdb_last_bgsave_status", "ok")) != "ok":
        troubles += 1
        yield Finding(
            "broker", "files", "bad", "its last snapshot failed, and it may refuse writes", "make room on its disk"
        )
    if delayed := int(info.get("aof_delayed_fsync", 0)):
        troubles += 1
        yield Finding(
            "broker", "files", "warn", f"{delayed} times its disk took longer than a second to sync",
            "what is accepted meanwhile is lost when it is killed: a faster disk, or one of its own",
        )  # fmt: skip
    if int(info.get("aof_enabled", 0)) and settings.get("aof-load-truncated") == "no":
        troubles += 1
        do = "set aof-load-truncated yes: after kill -9 it may refuse to start"
        yield Finding("broker", "files", "warn", "aof-load-truncated no", do)
    if not troubles:
        yield Finding("broker", "files", "ok", "no failed write" if int(info.get("aof_enabled", 0)) else "none kept")


def _role(info: Mapping[str, Any]) -> Finding:
    role, replicas = str(info.get("role", "master")), int(info.get("connected_slaves", 0))
    if role != "master":
        return Finding("broker", "role", "bad", "a replica, which takes no writes", "give the address of its primary")
    if replicas:
        said = f"primary with {replicas} replicas: a failover may lose what they had not got yet, and it is counted"
        return Finding("broker", "role", "ok", said)
    return Finding("broker", "role", "ok", "alone")


def _clients(info: Mapping[str, Any], settings: Mapping[str, str]) -> Finding:
    now = int(info.get("connected_clients", 0))
    told = settings.get("maxclients") or info.get("maxclients")
    if not told:
        return Finding("broker", "clients", "ok", f"{now}, limit unknown")
    most = int(told)
    if now >= CLIENTS_WARN * most:
        return Finding("broker", "clients", "warn", f"{now} of {most}", "raise maxclients: a worker takes about 4")
    return Finding("broker", "clients", "ok", f"{now} of {most}")


def _clock(seen: Examined) -> Finding:
    said = f"{abs(seen.offset_ms) / 1000:.1f} s {'ahead of' if seen.offset_ms > 0 else 'behind'} this host"
    if abs(seen.offset_ms) >= OFFSET_WARN_MS:
        return Finding(
            "broker", "clock", "warn", said, "nothing depends on it but how times are shown; run NTP on both"
        )
    return Finding("broker", "clock", "ok", said)
