"""The broker's calls as one worker and one trainer make them, one connection, one call after the other, on each server.

Figures of one client: several in parallel come to more. Over a Unix socket, as `heddle run` does it.
"""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.measure import CLOCK, Row, spread
from heddle.batch import checksum
from heddle.broker.binary import FLOOR, NAMES, ServerBinary, examine, server_binary
from heddle.broker.server import start_server
from heddle.broker.server_setup import Durability
from heddle.broker.types import AppendMeta, Claim, Lease
from heddle.client import Client, connect
from heddle.errors import BrokerUnfit
from heddle.shard import plan_shards
from heddle.spec import load_spec

ROUNDS = 5
SHARDS = 200
SIZES = {"10 KB": 10_000, "100 KB": 100_000, "1 MB": 1_000_000}
SECONDS = 0.25
ACK_AT_ONCE = 64
TTL_MS = 60_000
STEPS = 64


def binaries() -> list[ServerBinary]:
    """Every fit server on this machine: those on PATH, and the one that comes in a package."""
    on_path = [Path(found) for name in NAMES if (found := shutil.which(name))]
    looked_at = [examine(path) for path in on_path]
    fit = [found for found in looked_at if found is not None and found.version >= FLOOR[found.kind]]
    with contextlib.suppress(BrokerUnfit):
        fit.append(server_binary(os.devnull))  # nothing is on this path, so it is the package's
    return list({str(found): found for found in fit}.values())


class Actor:
    """One experiment, and both ends of it."""

    def __init__(self, client: Client) -> None:
        self.broker = broker = client.broker
        self.spec = load_spec(
            {
                "experiment": {"name": "bench-broker", "pool": "bench"},
                "env": {"id": "CartPole-v1", "num_envs": SHARDS, "envs_per_shard": 1},
                "limits": {"max_entries": 100_000, "max_bytes": "1GiB"},
                "budget": {"env_steps": 10**12},
            }
        ).spec
        self.id = client.submit(self.spec).id
        leader = broker.coordinators.claim_leader("bench", ttl_ms=TTL_MS)
        assert leader is not None, "nobody else leads a benchmark"
        broker.shards.create(self.id, 0, plan_shards(self.spec), leader_epoch=leader)
        broker.experience.ensure_group(self.id, 0)
        broker.shards.queue_tickets(self.id, 0, range(SHARDS), "bench")
        seat = broker.seats.claim_seat(self.id, "bench", ttl_ms=10 * TTL_MS)
        assert seat is not None, "nobody else trains a benchmark"
        self.seat, self.claims, self.seq = seat, 0, 0

    def claim(self) -> Lease:
        """Read a ticket, claim its shard, drop the ticket: three round trips."""
        shards = self.broker.shards
        ticket = shards.read_ticket("bench", "bench", block_ms=0)
        assert ticket is not None
        self.claims += 1
        claim = shards.claim(ticket, worker="bench", nonce=f"n{self.claims}", ttl_ms=TTL_MS)
        shards.drop_ticket(ticket)
        assert isinstance(claim, Claim)
        self.seq = claim.seq
        return claim.lease

    def claim_all(self) -> float:
        """Claims a second; the shards are given back afterwards."""
        began = CLOCK.monotonic()
        leases = [self.claim() for _ in range(SHARDS)]
        passed = CLOCK.monotonic() - began
        for lease in leases:
            self.broker.shards.release(lease)
        return SHARDS / passed

    def append(self, lease: Lease, blob: bytes, seconds: float) -> float:
        """Appends a second; what was appended stays."""
        meta = AppendMeta("train", 1, 1, 2, STEPS, len(blob), checksum(blob))
        count, began = 0, CLOCK.monotonic()
        while (passed := CLOCK.monotonic() - began) < seconds:
            self.seq += 1
            reply = self.broker.shards.append(lease, seq=self.seq, blob=blob, meta=meta, ttl_ms=TTL_MS)
            assert reply.status == "OK", reply
            count += 1
        return count / passed

    def drain(self) -> tuple[float, float]:
        """Read, fetch and ack everything: (MB fetched a second, acks a second, `ACK_AT_ONCE` in each script)."""
        experience, fetched, read_s, acks, ack_s = self.broker.experience, 0, 0.0, 0, 0.0
        while True:
            began = CLOCK.monotonic()
            pointers = experience.read(self.id, 0, "trainer", "bench", count=ACK_AT_ONCE, block_ms=0)
            if not pointers:
                return fetched / 1e6 / read_s, acks / ack_s
            fetched += sum(len(blob) for blob in experience.fetch(pointers) if blob is not None)
            read_s += CLOCK.monotonic() - began
            began = CLOCK.monotonic()
            acks += experience.ack(self.id, 0, self.seat, [(pointer, "trained") for pointer in pointers])
            ack_s += CLOCK.monotonic() - began


@contextmanager
def _actor(binary: ServerBinary, durability: Durability) -> Iterator[Actor]:
    with (
        tempfile.TemporaryDirectory(prefix="heddle-bench-") as folder,
        start_server(Path(folder) / "server", durability=durability, binary=binary) as server,
        connect(server.url) as client,
    ):
        yield Actor(client)


def run() -> list[Row]:
    """Rows for each server, with the durability of `heddle run` and without any."""
    rows = []
    for binary in binaries():
        for durability in ("fast", "memory"):
            with _actor(binary, durability) as actor:
                rows += _rows(f"broker, {binary}, {durability}", actor)
    return rows


def _rows(section: str, actor: Actor) -> list[Row]:
    actor.claim_all()
    rows = [Row(section, "claims", "1/s", spread(actor.claim_all() for _ in range(ROUNDS)))]
    lease = actor.claim()
    for name, size in SIZES.items():
        blob = os.urandom(size)
        actor.append(lease, blob, 0.05)
        actor.drain()
        appends, drains = [], []
        for _ in range(ROUNDS):
            appends.append(actor.append(lease, blob, SECONDS))
            drains.append(actor.drain())
        rows.append(Row(section, f"appends of {name}", "1/s", spread(appends)))
        rows.append(Row(section, f"appends of {name}", "MB/s", spread(rate * size / 1e6 for rate in appends)))
        rows.append(Row(section, f"read and fetch of {name}", "MB/s", spread(mb for mb, _ in drains)))
        rows.append(Row(section, f"acks of {name}, {ACK_AT_ONCE} a script", "1/s", spread(acks for _, acks in drains)))
    return rows
