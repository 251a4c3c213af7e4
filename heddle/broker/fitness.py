"""Fitness: whether the server that answers may be used as a broker.

It never changes a setting of the server; it says how to.
"""

import contextlib
import logging
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from redis.exceptions import ResponseError

from heddle.broker.binary import FLOOR
from heddle.broker.durability import setting
from heddle.errors import BrokerBlocked, BrokerUnfit, Denied

if TYPE_CHECKING:
    from heddle.broker.calls import Client

log = logging.getLogger("heddle.broker")


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What answers.

    Attributes:
        kind: valkey or redis.
        version: major, minor, patch; (0, 0, 0) when it may not be asked.
    """

    kind: Literal["valkey", "redis"]
    version: tuple[int, int, int]

    def __str__(self) -> str:
        return f"{self.kind} {'.'.join(map(str, self.version))}"


def check_fit(client: "Client") -> ServerInfo:
    """What answers, when it is new enough and never evicts.

    Raises:
        BrokerUnfit: it must not be used; the message says how to fix it.
        BrokerUnreachable, Denied: it cannot be asked.
    """
    with contextlib.suppress(BrokerBlocked):  # it may be looked at all the same
        client.ping()
    try:
        facts: dict[str, Any] = client.info()
    except Denied:
        log.warning("cannot check the server's version and eviction policy: its user may not call INFO")
        return ServerInfo("redis", (0, 0, 0))
    server = identify(facts)
    floor = FLOOR[server.kind]
    if server.version < floor:
        need = ".".join(map(str, floor[:2]))
        raise BrokerUnfit(
            f"{client.url_redacted} is {server}, and {server.kind} {need} or newer is needed; "
            "run a newer server, or let `heddle up` start one"
        )
    policy = _eviction_policy(client, facts)
    if policy not in ("noeviction", ""):
        raise BrokerUnfit(
            f"{client.url_redacted} evicts keys when it is full (maxmemory-policy {policy}), which would lose data "
            "silently; run `redis-cli CONFIG SET maxmemory-policy noeviction`, or start it with "
            "`--maxmemory-policy noeviction`"
        )
    return server


def identify(facts: dict[str, Any]) -> ServerInfo:
    """Kind and version as INFO tells them; a Valkey says that it is Redis 7.2.4, and its own version beside it."""
    kind: Literal["valkey", "redis"] = "valkey" if "valkey_version" in facts else "redis"
    numbers = [int(number) for number in re.findall(r"\d+", str(facts.get(f"{kind}_version", "0.0.0")))]
    major, minor, patch = (numbers + [0, 0, 0])[:3]
    return ServerInfo(kind, (major, minor, patch))


def _eviction_policy(client: "Client", facts: dict[str, Any]) -> str:
    """Its maxmemory-policy; "" when neither INFO nor CONFIG tells."""
    told = facts.get("maxmemory_policy")
    if told is None:
        try:
            settings: dict[Any, Any] = client.config_get("maxmemory-policy")
        except (Denied, ResponseError):
            log.warning("cannot check the server's eviction policy; it must be noeviction")
            return ""
        return setting(settings, "maxmemory-policy")
    return str(told)
