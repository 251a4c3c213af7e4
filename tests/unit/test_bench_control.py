"""The light workers of the control benchmark: they keep the worker's rules, and say what they hold."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from benchmarks.control import SHARDS, source
from benchmarks.measure import CLOCK
from benchmarks.swarm import Swarm
from heddle.broker.pools import BeatReply
from heddle.broker.types import Claim, Lease
from heddle.shard import plan_shards
from heddle.spec import load_spec

CALM = BeatReply(drain=False, desired=None, live=1, floor=2, ceil=2, someone_below=False)


class Broker:
    """What light workers ask of a broker: so many tickets, of which each claim gets its shard."""

    def __init__(self, tickets: int, *, urgent: bool = False) -> None:
        self.left, self.urgent, self.reply = tickets, urgent, CALM
        self.released: list[int] = []
        self.lost: set[int] = set()
        self.together: list[int] = []
        self.pools: Any = SimpleNamespace(heartbeat=lambda beat: self.reply)
        self.shards: Any = self

    def peek_ticket(self, pool: str) -> Any:
        return SimpleNamespace(age_ms=0, urgent=self.urgent, waiting=self.left) if self.left else None

    def read_ticket(self, pool: str, worker: str, *, block_ms: int) -> Any:
        if not self.left:
            return None
        self.left -= 1
        return SimpleNamespace(shard=self.left)

    def claim(self, ticket: Any, *, worker: str, nonce: str, ttl_ms: int) -> Any:
        lease = Lease("exp", 0, ticket.shard, worker, 1, nonce)
        return Claim(lease, 0, 0, "run", 1, 0, 0, None, "train", 1, False)

    def drop_ticket(self, ticket: Any) -> None:
        pass

    def read_tickets(self, pool: str, worker: str, *, count: int, block_ms: int) -> list[Any]:
        some = [self.read_ticket(pool, worker, block_ms=block_ms) for _ in range(min(count, self.left))]
        self.together.append(len(some))
        return some

    def claim_all(self, wanted: Any, *, worker: str) -> list[Any]:
        return [self.claim(ticket, worker=worker, nonce=nonce, ttl_ms=ttl_ms) for ticket, nonce, ttl_ms in wanted]

    def drop_tickets_read(self, tickets: Any) -> None:
        pass

    def release(self, lease: Lease) -> None:
        self.released.append(lease.shard)

    def renew(self, experiment: str, p: int, leases: Any, *, ttl_ms: int) -> list[Any]:
        told = [lease.shard for lease, _ in leases]
        return [SimpleNamespace(shard=shard, status="FENCED" if shard in self.lost else "OK") for shard in told]


def swarm(broker: Broker, *, ttl_ms: int = 1_000) -> Swarm:
    return Swarm(broker, "exp", ["light-0"], ttl_ms=ttl_ms)  # type: ignore[arg-type]


def run(made: Swarm, seconds: float) -> None:
    made.run(CLOCK.monotonic() + seconds)


def test_a_light_worker_claims_up_to_its_quota_and_leaves_the_rest_to_others() -> None:
    broker = Broker(5)
    made = swarm(broker)
    made._beat(made.workers[0])
    made._look(made.workers[0])
    assert (made.held, broker.left) == (2, 3)


def test_what_a_dead_worker_left_is_taken_above_the_quota() -> None:
    broker = Broker(5, urgent=True)
    made = swarm(broker)
    made._beat(made.workers[0])
    made._look(made.workers[0])
    assert (made.held, broker.left) == (5, 0)


def test_in_a_large_pool_it_takes_what_the_dead_left_eight_at_a_time_and_eight_a_look() -> None:
    broker = Broker(500, urgent=True)
    broker.reply = replace(CALM, live=2_000)
    made = swarm(broker)
    made._beat(made.workers[0])
    made._look(made.workers[0])
    assert (made.held, broker.together) == (8, [2, 6]), "up to its quota, and then of what is urgent"


def test_it_gives_up_what_is_above_its_quota_while_others_have_less() -> None:
    broker = Broker(5, urgent=True)
    made = swarm(broker)
    made._beat(made.workers[0])
    made._look(made.workers[0])
    broker.reply = replace(CALM, someone_below=True)
    made._beat(made.workers[0])
    assert made.held == 4
    assert len(broker.released) == 1


def test_it_holds_no_more_what_another_one_has_claimed() -> None:
    broker = Broker(2)
    made = swarm(broker)
    made._beat(made.workers[0])
    made._look(made.workers[0])
    broker.lost = {1}
    made._renew(made.workers[0])
    assert list(made.workers[0].held) == [0]


def test_it_does_what_falls_due_by_itself() -> None:
    broker = Broker(2)
    made = swarm(broker)
    run(made, 1.5)
    assert made.held == 2


def test_the_experiment_has_as_many_shards_as_are_said() -> None:
    assert len(plan_shards(load_spec(source(SHARDS)).spec)) == SHARDS
