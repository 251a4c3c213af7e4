"""The leader's lease: of several coordinators one leads, fenced by an epoch that only rises.

This module never renews by itself: the keeper does. Every call works when the broker is out of memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from heddle.broker import keys
from heddle.broker.connection import Connection
from heddle.broker.counts import count
from heddle.broker.records import integer, text

LEADER_TTL_MS = 3_000
"""How long leadership outlives the leader's last renewal: takeover stays below 4 s."""

HIGHEST_EPOCH = 2**52
"""No leader's is higher, and what claims add to it stays exact in scripts: epochs begin as server ms, some 2**41."""

LEADER_FIELDS = ("id", "epoch", "until")
"""Fields of the leader's hash that tell who leads."""


@dataclass(frozen=True, slots=True)
class Leader:
    """Who leads.

    Attributes:
        coordinator: its id.
        epoch: its fencing number.
        left_ms: until another may lead, unless it is renewed; 0 when it is over.
        until_ms: server ms at which it is or was over.
    """

    coordinator: str
    epoch: int
    left_ms: int
    until_ms: int = 0


class Coordinators:
    """Every call about leadership, on one connection."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn

    def claim_leader(self, coordinator: str, *, above: int = 0, ttl_ms: int = LEADER_TTL_MS) -> int | None:
        """Lead, unless another's lease runs.

        Args:
            coordinator: id of this process, never used by another one: while it leads it gets its epoch again.
            above: an epoch by which one of its own was fenced, or that one; it gets a higher one.

        Returns:
            The epoch; None while another leads.
        """
        reply = self._conn.script("leader_claim", [keys.COORDINATOR], [coordinator, ttl_ms, above, HIGHEST_EPOCH])
        return integer(reply[1]) if text(reply[0]) == "OK" else None

    def renew_leader(self, coordinator: str, epoch: int, *, ttl_ms: int = LEADER_TTL_MS) -> bool:
        """Keep leading, also when the lease is over and nobody took it; False when it is lost for good."""
        return bool(self._conn.script("leader_renew", [keys.COORDINATOR], [coordinator, epoch, ttl_ms]))

    def release_leader(self, coordinator: str, epoch: int) -> bool:
        """Stop leading, so that another may at once; False when it was not the caller's any more."""
        return bool(self._conn.script("leader_release", [keys.COORDINATOR], [coordinator, epoch]))

    def fence(self, key: str) -> int:
        """The epoch of the last leader that wrote to a key; also one that somebody wrote there, who never led."""
        return count(self._conn.main.hget(key, "leader_epoch"))

    def mend_fence(self, key: str, epoch: int) -> str:
        """Write the caller's epoch over one that no leader ever had, and that nobody could rise above.

        Returns:
            What was found there; "" where it is an epoch that a leader may have.
        """
        return text(self._conn.script("fence_mend", [key], [epoch, HIGHEST_EPOCH]))

    def leader(self) -> Leader | None:
        """Who leads, or led last; None when nobody ever did or the last one left."""
        pipe = self._conn.pipeline()
        pipe.hmget(keys.COORDINATOR, *LEADER_FIELDS)
        pipe.time()
        (coordinator, epoch, until), (seconds, micros) = pipe.execute()
        return read_leader((coordinator, epoch, until), int(seconds) * 1000 + int(micros) // 1000)


def read_leader(values: Sequence[Any], now_ms: int) -> Leader | None:
    """Those fields as a value; None when nobody ever led or the last one left."""
    coordinator, epoch, until = values
    if coordinator is None:
        return None
    return Leader(text(coordinator), count(epoch), max(0, count(until) - now_ms), count(until))
