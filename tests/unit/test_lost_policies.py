"""A pinned version that cannot be read: how often a worker asks for it, and what it plays meanwhile."""

from types import SimpleNamespace
from typing import Any

from heddle.broker.types import Claim, Lease
from heddle.clock import ManualClock
from heddle.producers.desk import Desk
from heddle.producers.lost_policies import LostPolicies

E = "test-1a2b"


class Worker:
    """A desk with one shard for evaluation, of which the pinned version 3 is lost, and who asks for it."""

    def __init__(self) -> None:
        self.clock, self.desk, self.told = ManualClock(), Desk(), list[int]()
        broker: Any = SimpleNamespace(policies=SimpleNamespace(take_back=self._take_back))
        self.lost = LostPolicies(broker, self.desk, clock=self.clock)
        self.claim("eval", 0)
        self.desk.hear(E, policy=3, eval_policy=3)

    def claim(self, kind: Any, shard: int) -> None:
        lease = Lease(E, 0, shard, "w1", 1, "n")
        values: dict[str, Any] = {"command": "run", "policy": 1, "min_policy": 0, "eval_policy": 0, "snapshot": None}
        self.desk.take(Claim(lease=lease, seq=0, given=0, kind=kind, attempts=1, sync=False, **values), 1_000)

    def _take_back(self, _: str, version: int) -> bool:
        self.told.append(version)
        return False

    def asks_within(self, seconds: float) -> int:
        asked, until = 0, self.clock.monotonic() + seconds
        while self.clock.monotonic() < until:
            self.lost.ask_again()
            if self.desk.choose() is not None:
                asked += 1
                self.lost.met(E, 3, is_pinned=True)
            self.clock.advance(0.25)
        return asked


def test_a_lost_pinned_version_is_asked_for_at_once_and_then_twice_as_rarely_each_time() -> None:
    worker = Worker()
    assert worker.asks_within(0.5) == 1
    assert worker.asks_within(60.0) == 5  # after 1, 3, 7, 15, 31 s
    assert worker.asks_within(300.0) == 10, "never more rarely than every 30 s: it may come back"
    assert len(worker.told) == 16, "its trainer is told each time"


def test_a_higher_pinned_version_is_played_as_soon_as_it_is_heard_of() -> None:
    worker = Worker()
    worker.asks_within(60.0)
    assert worker.desk.choose() is None
    worker.desk.hear(E, eval_policy=4)
    assert worker.desk.choose() is not None


def test_training_goes_on_while_a_pinned_version_is_lost() -> None:
    worker = Worker()
    worker.asks_within(1.0)
    worker.claim("train", 1)
    chosen = worker.desk.choose()
    assert chosen is not None and chosen.claim.kind == "train"


def test_whoever_claims_the_shard_again_asks_at_once() -> None:
    worker = Worker()
    worker.asks_within(60.0)
    worker.desk.drop((E, 0, 0))
    worker.desk.forget_experiment(E)
    worker.lost.ask_again()
    worker.claim("eval", 0)
    worker.desk.hear(E, eval_policy=3)
    assert worker.asks_within(0.5) == 1
