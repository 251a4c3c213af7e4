"""What the broker promises about the record of a shard's failures."""

import json
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
import redis

from heddle.broker import Broker, keys
from heddle.broker.failure_types import REPLAY_BYTES, Failure, Replay
from heddle.broker.failures import FAILURES_KEPT, RECORD_BYTES
from tests.broker_kit import E, admit
from tests.contract.specs import all_keys, out_of_memory, submitted

FAILURE = Failure(
    cause="signal",
    what="signal SIGSEGV",
    doing="step",
    env=5,
    seed=17,
    episode=2,
    step=31,
    last_actions=(0, 1, [0.5, -1.0]),
    num_actions=31,
    start="reset",
    output=("one", "two"),
    traceback="",
    worker="w1",
    attempt=3,
    isolation="process",
)


def replay_of(actions: Any, snapshot: bytes = b"") -> Replay:
    return Replay(actions.tobytes(), actions.dtype.name, actions.shape, snapshot)


def test_a_failure_is_read_as_it_was_noted_with_the_time_of_the_server(any_broker: Broker) -> None:
    admit(any_broker)
    before_ms = any_broker.conn.now_ms()
    assert any_broker.shards.note_failure(E, 0, 1, FAILURE)
    (found,) = any_broker.shards.failures(E, 0, 1)
    assert before_ms <= found.time_ms <= any_broker.conn.now_ms()
    assert replace(found, time_ms=0, number=0) == FAILURE
    assert any_broker.shards.failures(E, 0, 0) == []


def test_only_the_last_failures_are_kept_newest_first(any_broker: Broker) -> None:
    admit(any_broker)
    for seed in range(10):
        any_broker.shards.note_failure(E, 0, 0, replace(FAILURE, seed=seed), replay_of(np.arange(3)))
    found = any_broker.shards.failures(E, 0, 0)
    assert [failure.seed for failure in found] == [9, 8, 7]
    assert [failure.number for failure in found] == [10, 9, 8]
    fields: Any = any_broker.conn.main.hkeys(keys.failure(E, 0, 0))
    assert len(fields) == 1 + 2 * FAILURES_KEPT + 2, "only the newest can be played again"


def test_the_actions_and_the_snapshot_of_a_failure_come_back_as_they_were(any_broker: Broker) -> None:
    admit(any_broker)
    actions = np.linspace(-1, 1, 60, dtype=np.float32).reshape(20, 3)
    any_broker.shards.note_failure(E, 0, 0, FAILURE, replay_of(actions, b"\x00state"))
    assert any_broker.shards.replay(E, 0, 0, 1) == replay_of(actions, b"\x00state")
    any_broker.shards.note_failure(E, 0, 0, FAILURE)
    assert any_broker.shards.replay(E, 0, 0, 1) is None
    assert any_broker.shards.replay(E, 0, 0, 2) is None


def test_a_failure_takes_a_bounded_amount_of_memory(any_broker: Broker) -> None:
    admit(any_broker)
    huge = replace(FAILURE, output=("x" * 5_000,) * 100, traceback="y" * 100_000, last_actions=(list(range(9_000)),))
    too_long = np.random.default_rng(1).integers(0, 255, REPLAY_BYTES + 1, dtype=np.uint8)
    any_broker.shards.note_failure(E, 0, 0, huge, replay_of(too_long))
    (found,) = any_broker.shards.failures(E, 0, 0)
    assert (found.start, found.num_actions) == ("unknown", 0), "what is too long to keep is not said to be there"
    assert any_broker.shards.replay(E, 0, 0, found.number) is None
    record: Any = any_broker.conn.main.hget(keys.failure(E, 0, 0), f"{found.number}:record")
    assert len(record) <= RECORD_BYTES


def test_a_full_broker_refuses_the_record_without_an_error(broker: Broker) -> None:
    admit(broker)
    with out_of_memory(broker):
        assert not broker.shards.note_failure(E, 0, 0, FAILURE)
    assert broker.shards.failures(E, 0, 0) == []


def test_removing_the_experiment_removes_its_failures_and_none_is_noted_afterwards(
    broker: Broker, raw: redis.Redis
) -> None:
    experiment = submitted(broker)
    raw.hset(keys.ctl(experiment), "command", "run")
    assert broker.shards.note_failure(experiment, 0, 0, FAILURE, replay_of(np.arange(3)))
    broker.experiments.remove(experiment, force=True)
    assert not broker.shards.note_failure(experiment, 0, 0, FAILURE)
    assert not [key for key in all_keys(broker) if experiment in key]


@pytest.mark.parametrize(
    "record",
    ["0", "nan", "{}", "[]", "x", '{"cause": 1}', "[" * 100_000]
    + [json.dumps({**asdict(FAILURE), name: wrong}) for name, wrong in (("env", "x"), ("what", None), ("seed", []))]
    + [json.dumps({**asdict(FAILURE), name: 7}) for name in ("output", "last_actions", "cause")],
)
def test_a_record_that_nobody_of_ours_wrote_is_left_out(any_broker: Broker, record: str) -> None:
    admit(any_broker)
    for _ in range(2):
        any_broker.shards.note_failure(E, 0, 1, FAILURE)
    any_broker.conn.main.hset(keys.failure(E, 0, 1), "2:record", record)
    assert [found.number for found in any_broker.shards.failures(E, 0, 1)] == [1]


@pytest.mark.parametrize("value", ["x", "nan", "-1", "9" * 5_000])
def test_the_count_and_times_of_failures_by_hand_are_no_ones_end(any_broker: Broker, value: str) -> None:
    admit(any_broker)
    any_broker.shards.note_failure(E, 0, 1, FAILURE)
    any_broker.conn.main.hset(keys.failure(E, 0, 1), "1:time", value)
    assert [found.time_ms for found in any_broker.shards.failures(E, 0, 1)] == [0]
    any_broker.conn.main.hset(keys.failure(E, 0, 1), "last", value)
    assert any_broker.shards.failures(E, 0, 1) == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("form", "0"),
        ("form", "x"),
        ("form", '["nope", 3]'),
        ("form", '["int64", 99]'),
        ("actions", "x"),
        ("form", "[]"),
    ],
)
def test_nothing_is_played_again_of_what_somebody_changed(any_broker: Broker, field: str, value: str) -> None:
    admit(any_broker)
    any_broker.shards.note_failure(E, 0, 1, FAILURE, replay_of(np.arange(3)))
    assert any_broker.shards.replay(E, 0, 1, 1) is not None
    any_broker.conn.main.hset(keys.failure(E, 0, 1), f"1:{field}", value)
    assert any_broker.shards.replay(E, 0, 1, 1) is None
