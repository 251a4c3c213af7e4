"""Shards that change hands, on a real server: what is continued, what begins afresh, what is left behind."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from heddle.broker import Broker
from heddle.cli.main import run
from tests.fixtures import coordinated, on_url
from tests.helpers import eventually
from tests.worker_kit import Reader, Running, submit

BROODING = {"id": "tests.snapshot_zoo:Brooding", "kwargs": {"pace_s": 0.001}}
EPISODE = 37

url = coordinated
broker = on_url


class Relay:
    """One shard of two environments, played by one owner after the other."""

    def __init__(self, url: str, broker: Broker, env: dict[str, Any], **sections: Any) -> None:
        faults = {"snapshot_every": 1, "barren_deaths": 5, **sections.pop("faults", {})}
        whole = {"num_envs": 2, "envs_per_shard": 2, **env}
        self.experiment = submit(broker, env=whole, policy=BROODING, faults=faults, **sections)
        self.broker, self.url, self.owners = broker, url, 0
        self.reader = Reader(broker, self.experiment)
        self.reader.publish(1)
        self.first: list[int] = []

    def run(self, batches: int = 8) -> None:
        """Another owner, until it gave so many batches."""
        self.owners += 1
        worker = Running(self.url, f"w{self.owners}")
        self.first.append(len(self.reader.read))

        def enough() -> bool:
            self.reader.ack(self.reader.pull(block_ms=50))
            return len(self.reader.read) >= self.first[-1] + batches

        try:
            eventually(enough, timeout_s=30)
        finally:
            worker.end()
        self.reader.ack(self.reader.pull(block_ms=50))

    def snapshot_keys(self) -> list[Any]:
        return list(self.broker.conn.main.scan_iter(match="*:snapshot:*"))

    def said(self) -> str:
        return "; ".join(event.message for event in self.broker.events.read(None) if event.role == "worker")


@pytest.fixture
def relay(url: str, broker: Broker) -> Callable[..., Relay]:
    return lambda env, **sections: Relay(url, broker, env, **sections)


def _keeping(relay: Relay) -> list[dict[str, Any]]:
    """Have the relay keep every batch, decoded, for their bytes are deleted once they are settled."""
    kept: list[dict[str, Any]] = []
    pull = relay.reader.pull

    def pulling(*, block_ms: int = 200) -> Any:
        new = pull(block_ms=block_ms)
        kept.extend(relay.reader.batch(pointer).arrays for pointer in new)
        return new

    relay.reader.pull = pulling  # type: ignore[method-assign]
    return kept


def _breaks(batches: list[dict[str, Any]]) -> list[int]:
    """Batches that do not begin with what the one before ended with."""
    found = []
    for place in range(1, len(batches)):
        before, after = batches[place - 1], batches[place]
        ends = before["obs"][np.arange(len(before["length"])), before["length"]]
        if not np.array_equal(ends, after["obs"][:, 0]):
            found.append(place)
    return found


def test_episodes_go_on_over_three_owners_and_are_counted_whole(relay: Callable[..., Relay]) -> None:
    one = relay({"id": "tests.snapshot_zoo:Walk", "kwargs": {"length": EPISODE}})
    kept = _keeping(one)
    for _ in range(3):
        one.run()
    assert _breaks(kept) == []
    lengths = np.concatenate([batch["episode_length"].ravel() for batch in kept])
    assert set(lengths[lengths > 0]) == {EPISODE}
    one.reader.check_continuity()
    assert len(one.snapshot_keys()) == 1


@pytest.mark.parametrize("every", [0, 1])
def test_without_the_snapshot_of_the_last_batch_fresh_episodes_begin(relay: Callable[..., Relay], every: Any) -> None:
    one = relay({"id": "tests.snapshot_zoo:Walk"}, faults={"snapshot_every": every})
    kept = _keeping(one)
    one.run()
    for key in one.snapshot_keys():
        one.broker.conn.main.delete(key)
    one.run()
    assert _breaks(kept) == [one.first[1]]
    assert ("its snapshot is not there any more; it plays fresh episodes" in one.said()) == (every == 1)


def test_damaged_snapshots_are_told_and_fresh_episodes_begin(relay: Callable[..., Relay]) -> None:
    one = relay({"id": "tests.snapshot_zoo:layered"})
    kept = _keeping(one)
    one.run()
    (key,) = one.snapshot_keys()
    one.broker.conn.main.setrange(key, 700, b"???")
    one.run()
    assert _breaks(kept) == [one.first[1]]
    assert "its snapshot is damaged: its checksum does not fit its bytes; it plays fresh episodes" in one.said()


def test_what_cannot_be_snapshotted_is_shown_and_played_all_the_same(
    relay: Callable[..., Relay], capsys: pytest.CaptureFixture[str]
) -> None:
    one = relay({"id": "tests.snapshot_zoo:Handle"})
    kept = _keeping(one)
    one.run()
    (shard,) = one.broker.shards.shards(one.experiment, 0)
    assert shard.no_snapshot.startswith("attribute 'handle' of Handle (lock): cannot pickle")
    assert run(["shards", one.experiment, "--redis-url", one.url]) == 0
    assert "a new owner begins fresh episodes: attribute 'handle' of Handle" in capsys.readouterr().out
    one.run()
    assert _breaks(kept) == [one.first[1]]
    assert one.said().count("it cannot be snapshotted: attribute 'handle'") == 1
    assert one.snapshot_keys() == []


def test_a_snapshot_above_the_cap_is_not_sent_and_that_is_shown(relay: Callable[..., Relay]) -> None:
    one = relay({"id": "tests.snapshot_zoo:layered"}, limits={"snapshot_bytes": 1024})
    one.run()
    (shard,) = one.broker.shards.shards(one.experiment, 0)
    assert re.fullmatch(r"a snapshot of \d{4,} bytes is above limits\.snapshot_bytes = 1024", shard.no_snapshot)
    assert one.snapshot_keys() == []


def test_an_ended_experiment_leaves_no_snapshot_behind(relay: Callable[..., Relay]) -> None:
    # Given a shard that waits for a worker, with its snapshot
    one = relay({"id": "tests.snapshot_zoo:Walk"})
    one.run()
    assert len(one.snapshot_keys()) == 1
    # When the experiment is stopped, and its trainer has left
    one.broker.experiments.finish(one.experiment, one.reader.epoch, "stopped", "enough", {})
    one.broker.seats.release_seat(one.experiment, one.reader.epoch)
    # Then the snapshot goes: right behind the end, not before it
    eventually(lambda: one.broker.experiments.status(one.experiment).ended, timeout_s=40)
    eventually(lambda: one.snapshot_keys() == [], timeout_s=40, what="the snapshot is gone")


def test_an_observation_outside_its_bounds_is_shown_and_played_all_the_same(relay: Callable[..., Relay]) -> None:
    one = relay({"id": "tests.unit.lying_env:Outside", "kwargs": {"after": 40}})  # later than validate looks
    one.run()
    assert one.said().count("gave obs[1] = ") == 1, "of each shard the first one"
    assert (
        "shard 0: environment 0 (number 0 of shard 0) gave obs[1] = 2.21429, which is outside -1..1; seed "
        in one.said()
    )
