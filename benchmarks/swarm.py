"""Light workers: many in one process, none of which plays. Each makes the calls that a worker makes for its leases, its
heartbeat and its tickets, by the worker's own rules and at its pace.

    python -m benchmarks.swarm URL EXPERIMENT FIRST COUNT

prints how many shards they hold and which ones they claimed since the line before, four times a second; ends with its
input.
"""

import heapq
import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.measure import CLOCK
from heddle.broker import Broker, open_broker
from heddle.broker.pools import WorkerBeat
from heddle.broker.types import Claim, Lease, Ticket
from heddle.producers.quota import (
    BEAT_S,
    MOST_PER_LOOK,
    Quota,
    beat_every_s,
    look_every_s,
    may_take_above,
    surplus,
    tickets_at_once,
    wants_more,
)

THREADS = 3
POOL = "default"
REPORT_S = 0.25


@dataclass(slots=True)
class LightWorker:
    """What one of them knows.

    Attributes:
        held: its leases, by shard.
        starts: of its next heartbeat, renewal and look at the tickets, monotonic seconds.
    """

    name: str
    rng: np.random.Generator
    quota: Quota = field(default_factory=Quota)
    held: dict[int, Lease] = field(default_factory=dict)


class Swarm:
    """Some light workers on one connection, driven by whoever calls `run`."""

    def __init__(self, broker: Broker, experiment: str, names: list[str], *, ttl_ms: int) -> None:
        self._broker, self._experiment, self._ttl_ms = broker, experiment, ttl_ms
        self.workers = [LightWorker(name, np.random.default_rng(place)) for place, name in enumerate(names)]
        self._claimed: list[int] = []
        self._due: list[tuple[float, int, str]] = []
        now = CLOCK.monotonic()
        for place, worker in enumerate(self.workers):
            for what in ("beat", "renew", "look"):
                heapq.heappush(self._due, (now + BEAT_S * worker.rng.random(), place, what))

    @property
    def held(self) -> int:
        """Shards that they hold together."""
        return sum(len(worker.held) for worker in self.workers)

    def claimed(self) -> list[int]:
        """Shards that they got since this was asked last; from any thread."""
        told, self._claimed = self._claimed, []
        return told

    def run(self, until: float) -> None:
        """Do what falls due before `until`, monotonic seconds."""
        while True:
            at, place, what = self._due[0]
            now = CLOCK.monotonic()
            if min(at, now) >= until or now >= until:
                return
            if at > now:
                CLOCK.sleep(min(at, until) - now)
                continue
            worker = self.workers[place]
            pause_s = getattr(self, f"_{what}")(worker)
            heapq.heapreplace(self._due, (CLOCK.monotonic() + pause_s, place, what))

    def _beat(self, worker: LightWorker) -> float:
        state = "playing" if worker.held else "idle"
        experiments = (self._experiment,) if worker.held else ()
        beat = WorkerBeat(
            worker=worker.name,
            pool=POOL,
            host="swarm",
            pid=os.getpid(),
            state=state,
            shards=len(worker.held),
            experiments=experiments,
            ttl_ms=self._ttl_ms,
        )
        reply = self._broker.pools.heartbeat(beat)
        worker.quota = Quota(reply.floor, reply.ceil, reply.someone_below, max(1, reply.live))
        if worker.held and surplus(len(worker.held), worker.quota, chance=worker.rng.random()):
            _, lease = worker.held.popitem()
            self._broker.shards.release(lease)
        return beat_every_s(worker.quota, ttl_s=self._ttl_ms / 1000)

    def _renew(self, worker: LightWorker) -> float:
        leases = [(lease, False) for lease in worker.held.values()]
        for renewal in self._broker.shards.renew(self._experiment, 0, leases, ttl_ms=self._ttl_ms):
            if renewal.status != "OK":
                del worker.held[renewal.shard]
        return self._ttl_ms / 3000

    def _look(self, worker: LightWorker) -> float:
        left = MOST_PER_LOOK
        while left > 0 and (served := self._look_once(worker, left)):
            left -= served
        pause_s = look_every_s(len(worker.held), worker.quota, ttl_s=self._ttl_ms / 1000)
        if not worker.held:
            pause_s = max(pause_s, BEAT_S)  # a worker blocks for so long; a thread for many cannot
        return pause_s * (0.75 + 0.5 * worker.rng.random())

    def _look_once(self, worker: LightWorker, most: int) -> int:
        shards = self._broker.shards
        count = self._wanted(worker, most)
        if count > 1:
            return self._take_some(worker, shards.read_tickets(POOL, worker.name, count=count, block_ms=0))
        ticket = shards.read_ticket(POOL, worker.name, block_ms=0) if count else None
        if ticket is None:
            return 0
        claim = shards.claim(ticket, worker=worker.name, nonce=worker.rng.bytes(8).hex(), ttl_ms=self._ttl_ms)
        self._note(worker, claim)
        shards.drop_ticket(ticket)
        return 1

    def _wanted(self, worker: LightWorker, most: int) -> int:
        held = len(worker.held)
        if wants_more(held, worker.quota):
            return tickets_at_once(held, worker.quota, most=most)
        seen = self._broker.shards.peek_ticket(POOL)
        if seen is None or not may_take_above(age_ms=seen.age_ms, urgent=seen.urgent, ttl_ms=self._ttl_ms):
            return 0
        return tickets_at_once(held, worker.quota, waiting=seen.waiting, most=most)

    def _take_some(self, worker: LightWorker, tickets: Sequence[Ticket]) -> int:
        wanted = [(ticket, worker.rng.bytes(8).hex(), self._ttl_ms) for ticket in tickets]
        for answer in self._broker.shards.claim_all(wanted, worker=worker.name):
            if isinstance(answer, Exception):
                raise answer
            self._note(worker, answer)
        self._broker.shards.drop_tickets_read(tickets)
        return len(tickets)

    def _note(self, worker: LightWorker, claim: object) -> None:
        if isinstance(claim, Claim):
            worker.held[claim.lease.shard] = claim.lease
            self._claimed.append(claim.lease.shard)


def main() -> None:
    """Serve until the input ends."""
    url, experiment, first, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    swarms = []
    for part in range(THREADS):
        names = [f"light-{number}" for number in range(first + part, first + count, THREADS)]
        broker = open_broker(url, role="worker")
        swarms.append(Swarm(broker, experiment, names, ttl_ms=int(sys.argv[5])))
    for swarm in swarms:
        threading.Thread(target=_forever, args=(swarm,), daemon=True).start()
    threading.Thread(target=_report, args=(swarms,), daemon=True).start()
    sys.stdin.read()


def _forever(swarm: Swarm) -> None:
    try:
        while True:
            swarm.run(CLOCK.monotonic() + 60.0)
    except BaseException as error:  # noqa: BLE001  top of a thread: whoever reads the numbers must not wait for more
        print(f"failed {error!r}", flush=True)
        os._exit(1)


def _report(swarms: list[Swarm]) -> None:
    while True:
        print(
            sum(swarm.held for swarm in swarms), *(shard for swarm in swarms for shard in swarm.claimed()), flush=True
        )
        CLOCK.sleep(REPORT_S)


if __name__ == "__main__":
    main()
