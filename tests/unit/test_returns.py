"""Returns: which shard a worker hands on to one that has too few, and when."""

from types import SimpleNamespace

from heddle.broker.types import Claim, Lease
from heddle.producers.desk import Desk
from heddle.producers.holdings import Holding
from heddle.producers.quota import Quota
from heddle.producers.returns import Returns


def desk_with(*played_before: int) -> tuple[Desk, Returns, list[Holding]]:
    """A worker with a shard for each number, of batches that others had given of it; and what gives them back."""
    desk = Desk()
    for shard, seq in enumerate(played_before):
        lease = Lease("test-1a2b", 0, shard, "w1", 1, "n")
        desk.take(Claim(lease, seq, 0, "run", 1, 0, 0, None, "train", 1, False), 1_000)
    nobody = SimpleNamespace()
    return desk, Returns(nobody, desk, nobody, nobody, worker="w1"), list(desk.holdings())  # type: ignore[arg-type]


def beat(desk: Desk, returns: Returns) -> list[int]:
    """A heartbeat which tells that another worker has too few; the shards that leave then."""
    desk.set_quota(Quota(1, 1, someone_below=True, live=2))
    returns.heed_quota(0.0)
    return [one.lease.shard for one in desk.holdings() if one.leaving]


def test_a_dead_workers_shard_is_handed_on_once_it_was_played_or_could_not_be() -> None:
    # Given two shards that others had played, as after the death of their worker
    desk, returns, (_, second) = desk_with(5, 7)
    # When another worker begins and has none, then neither leaves before its first batch
    assert beat(desk, returns) == []
    # And once it has given one, it does
    second.accepted += 1
    assert beat(desk, returns) == [1]
    # But where nothing can be played, as with a full stream, the other worker need not wait for ever
    desk, returns, _ = desk_with(5, 7)
    assert [beat(desk, returns), beat(desk, returns)] == [[], [1]]


def test_a_shard_that_nobody_has_played_yet_is_handed_on_at_once() -> None:
    desk, returns, _ = desk_with(0, 0)
    assert beat(desk, returns) == [1]
