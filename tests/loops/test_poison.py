"""A worker among environments that go wrong in every way: it lives, others play on, each failure is on record."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heddle.broker import Broker
from heddle.broker.failure_types import Failure
from tests.fixtures import coordinated, on_url, starting
from tests.helpers import eventually
from tests.poison_kit import POISON, STATEFUL
from tests.worker_kit import Reader, Running, states, submit

pytestmark = pytest.mark.timeout(240)

Start = Callable[..., Running]
HEALTHY = 0
CAUSES = {
    "segfault": ("signal", "SIGSEGV"),
    "os_exit": ("exit", "exit code 9"),
    "sys_exit": ("exit", "sys.exit(3)"),
    "raise": ("exception", "the arm fell off"),
    "hang": ("timeout", "step lasted longer than 1 s"),
    "reset_hang": ("timeout", "reset lasted longer than 1.5 s"),
    "allocate_all": ("memory", "env.memory = 400 MiB"),
    "leak_files": ("exception", "Too many open files"),
    "flood": ("exception", "drowned"),
    "nan": ("answer", "not a finite number"),
    "shape": ("answer", "shape (3,)"),
    "make_segfault": ("signal", "SIGSEGV"),
}

url = coordinated
broker = on_url
start = starting


def poison(broker: Broker, *, faults: dict[str, Any] | None = None, **env: Any) -> str:
    section = {"id": POISON, "num_envs": 2, "envs_per_shard": 1, "isolation": "process", **env}
    return submit(
        broker,
        env=section,
        rollout={"steps": 16},  # more than it takes to fail: nothing of such a shard is ever accepted
        faults={"lease_ttl": 5.0, "barren_deaths": 1, **(faults or {})},
    )


def last_failure(broker: Broker, experiment: str, shard: int) -> Failure:
    return broker.shards.failures(experiment, 0, shard)[0]


def test_whatever_an_environment_does_its_worker_lives_the_others_play_on_and_the_cause_is_on_record(
    broker: Broker, start: Start
) -> None:
    hows = {str(env + 1): how for env, how in enumerate(CAUSES)}
    # Given a healthy shard and one for each thing that can go wrong, all of them for one worker
    experiment = poison(
        broker,
        num_envs=1 + len(hows),
        kwargs={"hows": hows},
        step_timeout=1.0,
        reset_timeout=1.5,
        memory="400MiB",
    )
    worker = start()
    reader = Reader(broker, experiment, check=False)
    reader.publish(1)
    # When they have gone wrong
    bad = {shard: "quarantined" for shard in range(1, 1 + len(hows))}

    def all_set_aside() -> bool:
        reader.ack(reader.pull(block_ms=50))
        return states(broker, experiment) == {HEALTHY: "leased", **bad}

    eventually(all_set_aside, timeout_s=150, what=f"all quarantined: {states(broker, experiment)}")
    # Then each is set aside for its own reason, and only those
    for shard, how in ((int(env), how) for env, how in hows.items()):
        failure = last_failure(broker, experiment, shard)
        assert (failure.cause, failure.worker, failure.attempt) == (CAUSES[how][0], "w1", 1), (how, failure)
        assert CAUSES[how][1] in failure.what, (how, failure)
        assert failure.what[:40] in broker.shards.shards(experiment, 0)[shard].last_error
        if not how.startswith("make_"):
            assert (failure.env, failure.episode) == (shard, 2), (how, failure)
    before = len(reader.read)

    def healthy_plays() -> bool:
        reader.ack(reader.pull(block_ms=50))
        return len(reader.read) >= before + 3

    eventually(healthy_plays)
    healthy = broker.shards.shards(experiment, 0)[HEALTHY]
    assert (healthy.attempts, healthy.deaths) == (1, 0)
    assert broker.shards.failures(experiment, 0, HEALTHY) == []
    assert worker.thread.is_alive()
    reader.check_continuity()


def test_a_shard_that_fails_with_each_of_two_workers_is_set_aside_and_both_play_on(
    broker: Broker, start: Start
) -> None:
    # Given a shard whose environment ends its process, one that is healthy, and two workers
    experiment = poison(broker, kwargs={"how": "os_exit", "only": [1]}, num_envs=3, faults={"barren_deaths": 2})
    workers = [start("w1"), start("w2")]
    reader = Reader(broker, experiment, check=False)
    reader.publish(1)

    def set_aside() -> bool:
        reader.ack(reader.pull(block_ms=50))
        return states(broker, experiment) == {0: "leased", 1: "quarantined", 2: "leased"}

    # When it has failed twice, whoever had it
    eventually(set_aside, timeout_s=60, what="it is set aside")
    assert [failure.attempt for failure in broker.shards.failures(experiment, 0, 1)] == [2, 1]
    # Then both workers live, and the others' shards go on without having changed hands for it
    before = len(reader.read)

    def goes_on() -> bool:
        reader.ack(reader.pull(block_ms=50))
        return {pointer.shard for pointer in reader.read[before:]} == {0, 2}

    eventually(goes_on, timeout_s=30)
    assert all(worker.thread.is_alive() and not worker.exits for worker in workers)
    assert all(shard.deaths == 0 for shard in broker.shards.shards(experiment, 0) if shard.shard != 1)
    reader.check_continuity()


def test_a_child_that_hangs_keeps_no_other_shard_of_its_worker_waiting(broker: Broker, start: Start) -> None:
    # Given a step that hangs for longer than this test lasts, beside a healthy shard
    experiment = poison(broker, kwargs={"how": "hang", "only": [1]}, step_timeout=600.0)
    worker = start()
    reader = Reader(broker, experiment, check=False)
    reader.publish(1)
    desk = worker.worker.desk

    def hangs() -> bool:
        reader.ack(reader.pull(block_ms=20))
        return any(h.claim.lease.shard == 1 and h.waits and h.player is not None for h in desk.holdings())

    def others_play() -> bool:
        reader.ack(reader.pull(block_ms=20))
        return hangs() and len(reader.read) >= before + 20

    eventually(lambda: hangs() and len(reader.read) > 2, timeout_s=60, what="the hanging step")
    before = len(reader.read)
    # Then the other shard goes on
    eventually(others_play, timeout_s=60, what="20 batches of the other shard while one hangs")
    # and the worker ends without waiting for it
    assert worker.end() == 0
    assert set(states(broker, experiment).values()) == {"queued"}
    reader.pull()
    reader.check_continuity()


@pytest.mark.parametrize("isolation", ["inline", "process"])
def test_a_shard_that_failed_once_is_played_again_and_its_failure_can_still_be_looked_at(
    isolation: str, broker: Broker, start: Start, tmp_path: Path
) -> None:
    cure = tmp_path / "cure"
    kwargs = {"how": "raise", "cure": str(cure), "only": [1]}
    experiment = poison(broker, kwargs=kwargs, isolation=isolation, faults={"barren_deaths": 5})
    start()
    reader = Reader(broker, experiment, check=False)
    reader.publish(1)
    eventually(lambda: broker.shards.failures(experiment, 0, 1), timeout_s=60, what="its failure")
    cure.touch()

    def plays() -> bool:
        reader.ack(reader.pull(block_ms=50))
        return len(reader.seqs(1)) >= 2

    eventually(plays, timeout_s=60, what="it plays")
    assert broker.shards.shards(experiment, 0)[1].attempts >= 2
    failure = last_failure(broker, experiment, 1)
    assert (failure.cause, failure.doing, failure.episode, failure.step) == ("exception", "step", 2, 3)
    assert (failure.isolation, failure.start, failure.num_actions) == (isolation, "reset", 3)
    assert "do_raise" in failure.traceback
    replay = broker.shards.replay(experiment, 0, 1, failure.number)
    assert replay is not None
    assert list(replay.actions) == list(failure.last_actions)


def test_an_inline_step_that_hangs_is_on_record_with_the_place_where_it_hangs(broker: Broker, start: Start) -> None:
    kwargs = {"how": "hang", "only": [1]}
    experiment = poison(broker, kwargs=kwargs, isolation="inline", step_timeout=0.6, faults={"barren_deaths": 5})
    worker = start()
    reader = Reader(broker, experiment, check=False)
    reader.publish(1)
    eventually(lambda: worker.exits == [70], timeout_s=30, what="the watchdog")
    failure = last_failure(broker, experiment, 1)
    assert (failure.cause, failure.doing, failure.env, failure.episode, failure.step) == ("timeout", "step", 1, 2, 3)
    assert "do_hang" in failure.traceback


def test_an_inline_set_state_that_hangs_is_told_as_the_restoring_that_it_is(broker: Broker, start: Start) -> None:
    # Given a snapshot that a worker left
    kwargs = {"how": "set_hang"}
    few = {"id": STATEFUL, "num_envs": 1, "isolation": "inline", "reset_timeout": 0.6}
    experiment = poison(broker, kwargs=kwargs, faults={"barren_deaths": 5, "snapshot_every": 1}, **few)
    first = start("w1")
    reader = Reader(broker, experiment, check=False)
    reader.publish(1)
    eventually(
        lambda: any(shard.snapshot_seq > 0 for shard in broker.shards.shards(experiment, 0)),
        timeout_s=30,
        what="a snapshot",
    )
    assert first.end() == 0
    # When the next one restores it
    second = start("w2")
    eventually(lambda: second.exits == [70], timeout_s=30, what="the watchdog")
    failure = last_failure(broker, experiment, 0)
    assert failure.what == f"restoring the snapshot of {experiment}/0 lasted longer than 0.6 s"
    assert "do_set_hang" in failure.traceback


def test_an_inline_environment_that_calls_sys_exit_ends_no_worker(broker: Broker, start: Start) -> None:
    experiment = poison(broker, kwargs={"how": "sys_exit", "only": [1]}, isolation="inline")
    worker = start()
    reader = Reader(broker, experiment, check=False)
    reader.publish(1)
    eventually(lambda: states(broker, experiment).get(1) == "quarantined", timeout_s=30)
    assert last_failure(broker, experiment, 1).cause == "exit"
    assert worker.thread.is_alive()
