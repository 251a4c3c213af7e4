"""Experiments that share a pool: each shard of each of them gets its turns, however many shards the others have."""

from collections import Counter
from collections.abc import Iterator

import pytest

from heddle.broker import Broker
from heddle.broker.server import LocalServer
from tests.helpers import eventually
from tests.worker_kit import Reader, Running, coordinating, fresh, submit

SHARDS = (1, 2, 3, 6)
TURNS = 12
FACTOR = 3.0
"""Between the shard that got the most turns and the one that got the fewest; a busy machine needs some of it."""


@pytest.fixture
def broker(valkey_server: LocalServer) -> Iterator[Broker]:
    with coordinating(valkey_server.url), fresh(valkey_server.url) as connected:
        yield connected


def turns_of(readers: list[Reader]) -> Counter[tuple[int, int]]:
    """(experiment, shard) -> batches that came so far."""
    for reader in readers:
        reader.ack(reader.pull(block_ms=5))
    return Counter((place, pointer.shard) for place, reader in enumerate(readers) for pointer in reader.read)


def spread_evenly(broker: Broker, readers: list[Reader]) -> bool:
    """Each of two workers holds half of all shards."""
    shards = [shard for reader in readers for shard in broker.shards.shards(reader.experiment, 0)]
    holders = Counter(shard.worker for shard in shards if shard.state == "leased")
    return sorted(holders.values()) == [len(shards) // 2, len(shards) // 2]


def fewest(turns: Counter[tuple[int, int]]) -> int:
    """Of any shard; one without any is not named."""
    return min(turns.values()) if len(turns) == sum(SHARDS) else 0


def test_four_experiments_with_unequal_numbers_of_shards_share_two_workers_fairly(
    valkey_server: LocalServer, broker: Broker
) -> None:
    # Given four experiments of one pool, and two workers
    readers = []
    for count in SHARDS:
        env = {"num_envs": count, "envs_per_shard": 1, "kwargs": {"step_s": 0.001}}
        readers.append(Reader(broker, submit(broker, experiment={"name": f"with-{count}"}, env=env)))
        readers[-1].publish(1)
    workers = [Running(valkey_server.url, name) for name in ("w1", "w2")]
    try:
        # When each worker holds as many shards as the other
        eventually(lambda: turns_of(readers) and spread_evenly(broker, readers), timeout_s=60, what="an even spread")
        before = turns_of(readers)
        eventually(lambda: fewest(turns_of(readers) - before) >= TURNS, timeout_s=120, what=f"{TURNS} turns of each")
        # Then each got about as many turns as any other, and so each experiment by the number of its shards
        turns = turns_of(readers) - before
        assert max(turns.values()) <= FACTOR * fewest(turns), turns
    finally:
        for worker in workers:
            worker.end(30.0)


def test_what_an_experiment_that_ends_had_goes_to_the_others(valkey_server: LocalServer, broker: Broker) -> None:
    readers = []
    for count in (2, 4):
        env = {"num_envs": count, "envs_per_shard": 1, "kwargs": {"step_s": 0.001}}
        readers.append(Reader(broker, submit(broker, experiment={"name": f"with-{count}"}, env=env)))
        readers[-1].publish(1)
    workers = [Running(valkey_server.url, name) for name in ("w1", "w2")]
    try:
        eventually(lambda: len(turns_of(readers)) == 6, timeout_s=60, what="a batch of each shard")
        broker.experiments.set_command(readers[1].experiment, "stop")

        def spread() -> bool:
            turns_of(readers)
            shards = broker.shards.shards(readers[0].experiment, 0)
            return len({shard.worker for shard in shards if shard.state == "leased"}) == 2

        eventually(spread, timeout_s=60, what="each worker holds one of the two that are left")
    finally:
        for worker in workers:
            worker.end(30.0)
