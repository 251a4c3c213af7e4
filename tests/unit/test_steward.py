"""How the dead of a large fleet are reaped: all in one round, as long as the broker answers."""

from types import SimpleNamespace
from typing import Any

import pytest

from heddle.broker.types import Reaped
from heddle.coord.steward import REAP_LIMIT, Steward
from heddle.coord.telling import Teller
from heddle.coord.watch import Step, Watched

BEGAN_MS, TTL_MS = 100_000, 10_000


class Broker:
    """What a steward asks of a broker that has many dead shards; each reaping takes `pause_ms` of the server's time."""

    def __init__(self, dead: int, pause_ms: int) -> None:
        self.dead, self.pause_ms, self.at_ms = dead, pause_ms, BEGAN_MS
        self.asked: list[int] = []
        self.shards: Any = self
        self.conn: Any = SimpleNamespace(now_ms=lambda: self.at_ms)

    def first_due(self, experiment: str, p: int) -> dict[str, int]:
        return {"0": 1} if self.dead else {}

    def reap(self, experiment: str, p: int, *, limit: int, asked_ms: int, **about: object) -> list[Reaped]:
        self.asked.append(asked_ms)
        taken = min(limit, self.dead)
        self.dead -= taken
        self.at_ms += self.pause_ms
        return [Reaped(shard, "w", 1, "queued", "") for shard in range(taken)]


def _steward(broker: Broker, watched: Watched) -> Steward:
    tell: Any = SimpleNamespace(reaped=lambda experiment, shards: None)
    pools: Any = None
    return Steward(broker, 1, born_ms=0, tell=tell, pools=pools, heard=watched.touch)  # type: ignore[arg-type]


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
    steward = _steward(broker, watched)
    # When they are reaped
    steward._reap(watched, BEGAN_MS)
    # Then contact is as old as it was and all are taken, or it is new and nothing more is
    assert (broker.dead, watched.contact_since_ms) == (left, since_ms)
    assert broker.asked == sorted(set(broker.asked)), "each call judges anew"


@pytest.mark.parametrize(("by_ms", "waits_ms"), [(150.0, 150), (4_000.0, TTL_MS)])
def test_a_clock_that_was_set_puts_the_reaping_of_the_dead_off_and_no_longer(by_ms: float, waits_ms: int) -> None:
    # Given a shard that is dead, and a clock that was set a moment ago
    broker = Broker(1, 0)
    watched = Watched("e", "default", TTL_MS, 5, "continue", (), contact_since_ms=0, last_ms=BEGAN_MS)
    steward = _steward(broker, watched)
    watched.clock_was_set(Step(by_ms, by_ms), BEGAN_MS)
    # When rounds are made, then it is reaped in the first that is late enough
    for at_ms in (BEGAN_MS, BEGAN_MS + waits_ms - 1):
        steward._reap(watched, at_ms)
        assert broker.dead == 1
    steward._reap(watched, BEGAN_MS + waits_ms)
    assert broker.dead == 0


def test_of_many_steps_of_a_clock_the_log_has_the_first_and_later_how_many_there_were() -> None:
    told: list[tuple[object, ...]] = []
    broker: Any = SimpleNamespace(events=SimpleNamespace(log=lambda *line: told.append(line)))
    teller = Teller(broker, "c1")
    for number in range(21):
        teller.clock_was_set(-1_240.0 if number else 300.0, BEGAN_MS + 500 * number)
    assert [line[:4] for line in told] == [(None, "coordinator", "c1", "warning")] * 2
    assert [str(line[4]).partition(";")[0] for line in told] == [
        "the broker's clock was set by +0.3 s",
        "the broker's clock was set by -1.2 s, 19 times more since that was told last",
    ]
