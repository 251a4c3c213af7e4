"""What broker tests share: an experiment without a submit, a worker without environments, a death without waiting."""

from dataclasses import dataclass, field
from typing import Any

import fakeredis
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from heddle.batch import checksum
from heddle.broker import Broker, keys
from heddle.broker.calls import Client
from heddle.broker.connection import Connection
from heddle.broker.experience_types import Pointer
from heddle.broker.fitness import ServerInfo
from heddle.broker.types import AppendMeta, AppendReply, Claim, Kind, Lease
from heddle.shard import ShardPlan
from tests.helpers import eventually

E = "test-1a2b"
TTL_MS = 60_000
SEAT = 5
LEADER = 7
POOL = "default"


def fake_broker() -> Broker:
    """A broker on a fakeredis of its own."""
    server = fakeredis.FakeServer(version=(7,))
    pool = redis.ConnectionPool(
        connection_class=fakeredis.FakeRedisConnection, server=server, protocol=2, retry=Retry(NoBackoff(), 0)
    )
    client = Client(connection_pool=pool)
    return Broker(Connection(client, client, "fake", ServerInfo("redis", (7, 0, 0))))


def admit(broker: Broker, *, shards: int = 2, kind: Kind = "train", experiment: str = E, **ctl: Any) -> str:
    """An experiment with that many shards of two environments, each with a ticket in the pool."""
    facts: dict[str, Any] = {
        "command": "run",
        "policy": 1,
        "min_policy": 0,
        "eval_policy": 0,
        "seat_epoch": SEAT,
        "leader_epoch": LEADER,
        "active": shards,
        "active_eval": 0,
        "rev": 1,
        "sync": 0,
        "max_entries": 100,
        "max_bytes": 1 << 20,
        "barren_deaths": 3,
        "outcome": "",
        "reason": "",
        "protocol": keys.PROTOCOL,
    }
    mapping: dict[Any, Any] = {**facts, **ctl}
    broker.conn.main.hset(keys.ctl(experiment), mapping=mapping)
    broker.conn.main.zadd(keys.EXPERIMENTS, {experiment: 1})
    broker.experience.ensure_group(experiment, 0)
    plans = [ShardPlan(index, kind, 2 * index, 2) for index in range(shards)]
    broker.shards.create(experiment, 0, plans, leader_epoch=LEADER)
    broker.shards.queue_tickets(experiment, 0, range(shards), POOL)
    return experiment


def ctl(broker: Broker, **fields: Any) -> None:
    """Change the experiment's ctl as its writers would."""
    mapping: dict[Any, Any] = dict(fields)
    broker.conn.main.hset(keys.ctl(E), mapping=mapping)


def claim_next(broker: Broker, worker: str = "w1", *, nonce: str | None = None, ttl_ms: int = TTL_MS) -> Claim:
    """Read the next ticket, claim its shard, drop the ticket."""
    ticket = broker.shards.read_ticket(POOL, worker, block_ms=0)
    assert ticket is not None, "no ticket"
    claim = broker.shards.claim(ticket, worker=worker, nonce=nonce or f"n{worker}", ttl_ms=ttl_ms)
    broker.shards.drop_ticket(ticket)
    assert isinstance(claim, Claim), claim
    return claim


def payload(lease: Lease, seq: int, size: int = 1000) -> bytes:
    """Bytes that tell which batch they are."""
    name = f"{lease.shard}:{lease.epoch}:{lease.nonce}:{seq}|".encode()
    return (name * (size // len(name) + 1))[:size]


def meta_of(data: bytes, *, kind: Kind = "train", steps: int = 64, given: int = 0, version: int = 1) -> AppendMeta:
    """What an append says of such bytes."""
    return AppendMeta(kind, version, version, 2, steps, len(data), checksum(data), given)


def append(
    broker: Broker,
    lease: Lease,
    seq: int,
    *,
    size: int = 1000,
    bare: bool = False,
    snapshot: bytes | None = None,
    ttl_ms: int = TTL_MS,
    **meta: Any,
) -> AppendReply:
    """Deliver batch `seq`; `bare` sends the script alone."""
    data = payload(lease, seq, size)
    return broker.shards.append(
        lease,
        seq=seq,
        blob=None if bare else data,
        meta=meta_of(data, **meta),
        ttl_ms=ttl_ms,
        snapshot=snapshot,
    )


def run_out(broker: Broker, lease: Lease) -> None:
    """Let a lease's time pass: its key goes, and its deadline lies behind."""
    broker.conn.main.delete(keys.lease(lease.experiment, lease.partition, lease.shard))
    broker.conn.main.zadd(keys.due(lease.experiment, lease.partition), {str(lease.shard): 1})


def reap(broker: Broker, experiment: str = E) -> list[int]:
    """Reap what is over; the shards' indexes."""
    return [found.shard for found in broker.shards.reap(experiment, 0, leader_epoch=LEADER)]


def read_all(broker: Broker, consumer: str = "seat-5", group: str = keys.TRAINER_GROUP) -> list[Pointer]:
    """Everything that a group was not given yet."""
    return broker.experience.read(E, 0, group, consumer, count=1000, block_ms=0)


@dataclass
class Books:
    """What must hold of the counters at any time, checked against the stream itself."""

    broker: Broker
    experiment: str = E
    problems: list[str] = field(default_factory=list)

    def check(self) -> None:
        """appended = what became of it + in flight, entries = XLEN, bytes and steps as in the stream, no blob lost."""
        main = self.broker.conn.main
        flow = self.broker.experience.flow(self.experiment, 0)
        entries: Any = main.xrange(keys.experience(self.experiment, 0))
        assert flow.entries == len(entries)
        assert flow.bytes == sum(int(fields[b"bytes"]) for _, fields in entries)
        assert flow.steps == sum(int(fields[b"steps"]) for _, fields in entries)
        ends = (flow.trained, flow.evaluated, flow.stale, flow.dead, flow.dropped, flow.rolled_back)
        assert flow.appended.batches == sum(end.batches for end in ends) + flow.entries
        assert flow.appended.steps == sum(end.steps for end in ends) + flow.steps
        states = self.broker.shards.shards(self.experiment, 0)
        assert flow.parked == sum(state.parked_bytes for state in states) >= 0
        for _, fields in entries:
            assert main.strlen(fields[b"blob"]) == int(fields[b"bytes"])
            assert main.ttl(fields[b"blob"]) == -1


def next_ms(broker: Broker) -> None:
    """Wait until the server's clock shows another ms: what is added from now on was added later."""
    now_ms = broker.conn.now_ms()
    eventually(lambda: broker.conn.now_ms() > now_ms)
