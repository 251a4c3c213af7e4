"""Shard states: what a shard's hash and its lease tell, as one value.

It never talks to a server. Numbers that only count are read as nothing where somebody's hand has made them none.
"""

from collections.abc import Mapping

from heddle.broker.counts import count
from heddle.broker.records import integer
from heddle.broker.types import ShardState


def read_shard(shard: int, fields: Mapping[str, str], lease_ms: int) -> ShardState:
    """A shard by the fields of its hash.

    Args:
        lease_ms: for which its lease still runs; below 0 for none.

    Raises:
        NoNumber: what may not be guessed is no number.
    """
    leased = fields.get("state") == "leased"
    return ShardState(
        shard=shard,
        kind=fields.get("kind", "train"),  # type: ignore[arg-type]
        first_env=count(fields.get("first_env")),
        num_envs=count(fields.get("num_envs")),
        state=fields.get("state", ""),
        worker=fields.get("worker", "") if leased else "",
        epoch=count(fields.get("epoch")),
        attempts=count(fields.get("attempts")),
        seq=integer(fields.get("seq")),
        steps=count(fields.get("steps")),
        given=integer(fields.get("given")),
        deaths=count(fields.get("deaths")),
        failures=count(fields.get("failures", "").partition(":")[0]),
        failed_seq=count(fields.get("failures", "").partition(":")[2]),
        stepping=fields.get("stepping") == "1",
        parked_bytes=count(fields.get("parked")),
        lease_ms=max(0, lease_ms) if leased else 0,
        last_error=fields.get("error", ""),
        since_ms=count(fields.get("since")),
        accepted_ms=count(fields.get("accepted")),
        last_worker=fields.get("worker", ""),
        snapshot_seq=count(fields.get("snapshot", "").rpartition(":")[2]),
        no_snapshot=fields.get("no_snapshot", ""),
    )
