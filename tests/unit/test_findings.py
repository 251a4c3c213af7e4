"""What the doctor says of a broker, from facts."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from heddle.broker.census import Census
from heddle.broker.durability import Kept
from heddle.broker.examination import Examined
from heddle.broker.fitness import ServerInfo
from heddle.cli.findings import Finding, of_broker, of_keys, of_memory, worst

WELL = Examined(
    url="unix:///s",
    server=ServerInfo("valkey", (9, 1, 2)),
    ping_ms=0.1,
    slowest_ms=0.4,
    kept=Kept("fast", "fast", "append-only file, appendfsync everysec"),
    info={
        "used_memory": 100,
        "maxmemory": 1000,
        "aof_enabled": 1,
        "aof_last_write_status": "ok",
        "role": "master",
        "connected_clients": 5,
        "maxclients": 100,
    },
    settings={"maxmemory-policy": "noeviction"},
    offset_ms=3,
    now_ms=10**12,
    scripts="",
    writes="",
    denied=(),
)


def found(seen: Examined, what: str) -> Finding:
    """The one finding about `what` that is not well, else the one there is."""
    told = [finding for finding in of_broker(seen) if finding.what == what]
    return next((finding for finding in told if finding.level != "ok"), told[0])


def test_a_broker_that_is_well_has_nothing_to_fix() -> None:
    told = [*of_broker(WELL), of_memory(WELL, 100), *of_keys(Census(), [])]
    assert worst(told) == "ok"
    assert not any(finding.do for finding in told)
    assert worst([]) == "ok"


@pytest.mark.parametrize(
    ("change", "what", "level", "says"),
    [
        ({"ping_ms": 20.0}, "answer", "warn", "20.00 ms"),
        ({"ping_ms": 500.0}, "answer", "bad", "500.00 ms"),
        ({"server": ServerInfo("redis", (6, 2, 14))}, "server", "bad", "redis 6.2.14"),
        ({"server": None}, "server", "warn", "unknown"),
        ({"scripts": "ERR unknown command"}, "scripts", "bad", "unknown command"),
        ({"denied": ("EVALSHA",)}, "scripts", "warn", "not allowed to this user"),
        ({"denied": ("SET",)}, "writes", "warn", "not allowed to this user"),
        ({"writes": "MISCONF"}, "writes", "bad", "MISCONF"),
        ({"settings": {"maxmemory-policy": "allkeys-lru"}}, "eviction", "bad", "allkeys-lru"),
        ({"settings": {}}, "eviction", "warn", "unknown"),
        ({"kept": Kept("memory", "memory", "no append-only file")}, "durability", "warn", "memory: "),
        ({"kept": Kept("unknown", "fast", "CONFIG denied")}, "durability", "warn", "unknown: "),
        ({"kept": Kept("fast", "fast", "append-only file, appendfsync no")}, "durability", "warn", "fast: "),
        ({"offset_ms": -3_600_000}, "clock", "warn", "3600.0 s behind"),
    ],
)
def test_what_a_broker_lacks_is_named_with_what_to_do(change: dict[str, Any], what: str, level: str, says: str) -> None:
    finding = found(replace(WELL, **change), what)
    assert finding.level == level
    assert says in finding.says and finding.do


@pytest.mark.parametrize(
    ("info", "what", "level"),
    [
        ({"aof_last_write_status": "err"}, "files", "bad"),
        ({"aof_last_bgrewrite_status": "err"}, "files", "warn"),
        ({"rdb_last_bgsave_status": "err"}, "files", "bad"),
        ({"aof_delayed_fsync": 3}, "files", "warn"),
        ({"role": "slave"}, "role", "bad"),
        ({"connected_clients": 90}, "clients", "warn"),
    ],
)
def test_what_a_broker_says_of_its_disk_role_and_clients_is_judged(info: dict[str, Any], what: str, level: str) -> None:
    finding = found(replace(WELL, info={**WELL.info, **info}), what)
    assert finding.level == level and finding.do


@pytest.mark.parametrize(
    ("used", "most", "wants", "level"),
    [
        (100, 1000, 500, "ok"),
        (800, 1000, 0, "warn"),
        (960, 1000, 0, "bad"),
        (100, 1000, 900, "warn"),
        (1, 0, 0, "warn"),
    ],
)
def test_memory_is_judged_by_what_is_used_and_by_what_experiments_may_use(
    used: int, most: int, wants: int, level: str
) -> None:
    seen = replace(WELL, info={**WELL.info, "used_memory": used, "maxmemory": most})
    assert of_memory(seen, wants).level == level


def test_what_belongs_to_nobody_is_named_with_its_experiment() -> None:
    census = Census(
        keys=20,
        owners=Counter({"gone-1": 3, "a-2": 17}),
        listed=("a-2",),
        homeless=("gone-1",),
        bare=Counter({"a-2": 1}),
        adrift=Counter({"a-2": 2}),
        tickets=4,
        ahead_ms=7_200_000,
    )
    told = {finding.what: finding for finding in of_keys(census, ["a-2"])}
    assert {finding.level for what, finding in told.items() if what != "number"} == {"warn"}
    assert "heddle rm --force gone-1" in told["left over"].do
    assert "7,200 s ahead" in told["epochs"].says
    assert "orphans" not in told and "1 of them ended with 17 keys" in told["number"].says
