"""Claiming: what the claim script is asked about a ticket, and its answer as a value.

It never talks to a server.
"""

import re
from typing import Any, Literal

from heddle.broker import keys
from heddle.broker.counts import count
from heddle.broker.records import integer, text
from heddle.broker.types import Claim, Lease, Ticket

HEALTHY_BATCHES = 100
"""So many accepted since a shard's last failure, and the next one does not follow it any more."""
NONCE = re.compile(r"[0-9A-Za-z_-]{1,64}")

Claimed = Claim | Literal["HELD", "GONE"]
"""The claim; HELD when another worker was first; GONE when there is nothing to claim (removed, stopped)."""


def ask_claim(ticket: Ticket, worker: str, nonce: str, ttl_ms: int) -> tuple[list[str], list[str | int]]:
    """Keys and arguments of the script. Raises ValueError for a nonce that is none."""
    if not NONCE.fullmatch(nonce):
        raise ValueError(f"a nonce is 1 to 64 letters and digits, not {nonce!r}")
    experiment, p, shard = ticket.experiment, ticket.partition, ticket.shard
    own = [keys.ctl(experiment, p), keys.shard(experiment, p, shard), keys.lease(experiment, p, shard)]
    own += [keys.due(experiment, p), keys.queued(experiment, p)]
    return own, [shard, worker, nonce, ttl_ms, HEALTHY_BATCHES]


def read_claim(ticket: Ticket, worker: str, nonce: str, answer: Any) -> Claimed:
    """What the script answered."""
    reply = [text(item) for item in answer]
    if reply[0] != "OK":
        return "HELD" if reply[0] == "HELD" else "GONE"
    return Claim(
        lease=Lease(ticket.experiment, ticket.partition, ticket.shard, worker, integer(reply[1]), nonce),
        seq=integer(reply[2]),
        given=integer(reply[3]),
        command=reply[4],  # type: ignore[arg-type]
        policy=integer(reply[5]),
        min_policy=integer(reply[6]),
        eval_policy=integer(reply[7]),
        snapshot=reply[8] or None,
        kind=reply[9],  # type: ignore[arg-type]
        attempts=count(reply[10]),
        sync=reply[11] == "1",
        deaths=count(reply[12]),
        no_snapshot=reply[13],
        plane=reply[14],
        suspect=reply[15] == "1",
        company=count(reply[16]),
    )
