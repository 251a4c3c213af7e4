"""How the dead of a large fleet are reaped: all in one round, as long as the broker answers."""

from types import SimpleNamespace
from typing import Any

import pytest

from heddle.broker.types import Reaped
from heddle.coord.steward import REAP_LIMIT, Steward
from heddle.coord.watch import Watched

BEGAN_MS, TTL_MS = 100_000, 10_000


class Broker:
    """What a steward asks of a broker that has many dead shards; each reaping takes `pause_ms` of the server's time."""

    def __init__(self, dead: int, pause_ms: int) -> None:
        self.dead, self.pause_ms, self.at_ms = dead, pause_ms, BEGAN_MS
        self.asked: list[int] = []
        self.shards: Any = self
        self.conn: Any = SimpleNamespace(now_ms=lambda: self.at_ms)

    def next_due_ms(self, experiment: str, p: int) -> int | None:
        return 1 if self.dead else None

    def reap(self, experiment: str, p: int, *, limit: int, asked_ms: int, **about: object) -> list[Reaped]:
        self.asked.append(asked_ms)
        taken = min(limit, self.dead)
        self.dead -= taken
        self.at_ms += self.pause_ms
        return [Reaped(shard, "w", 1, "queued", "") for shard in range(taken)]


@pytest.mark.parametrize(
    ("pause_ms", "left", "since_ms"),
    [(1_000, 0, 0), (3_334, 9 * REAP_LIMIT, BEGAN_MS + 3_334)],
    ids=["each answer is a sign of life", "a broker that was frozen kept owners from renewing"],
)
def test_reaping_that_lasts_longer_than_a_gap_goes_on_while_the_broker_answers(
    pause_ms: int, left: int, since_ms: int
) -> None:
    # Given ten times as many dead shards as one call takes
    broker = Broker(10 * REAP_LIMIT, pause_ms)
    watched = Watched("e", "default", TTL_MS, 5, "continue", (), contact_since_ms=0, last_ms=BEGAN_MS)
    tell: Any = SimpleNamespace(reaped=lambda experiment, shards: None)
    pools: Any = None
    steward = Steward(broker, 1, born_ms=0, tell=tell, pools=pools, heard=watched.touch)  # type: ignore[arg-type]
    # When they are reaped
    steward._reap(watched, BEGAN_MS)
    # Then contact is as old as it was and all are taken, or it is new and nothing more is
    assert (broker.dead, watched.contact_since_ms) == (left, since_ms)
    assert broker.asked == sorted(set(broker.asked)), "each call judges anew"
