"""What metrics take of a server's memory, and what readers make of an entry that is hurt."""

import math

import pytest

from heddle.broker import Broker, foreign, keys, metrics, open_broker
from heddle.broker.metrics import Columns
from heddle.broker.records import dump_json
from heddle.broker.server import LocalServer
from tests.contract.specs import seated

STAGES = ("rollout", "append", "stream", "queue")
NAMES = [form.format(stage) for stage in STAGES for form in ("{}_seconds", "{}_p95_seconds", "slowest_{}_seconds")]
NAMES += [
    "policy_loss",
    "value_loss",
    "entropy",
    "kl",
    "clip_fraction",
    "grad_norm",
    "explained_variance",
    "lr",
    "clip",
]
NAMES += ["update_seconds", "wait_seconds", "worker_wait_seconds", "play_step_p50_seconds", "play_step_p95_seconds"]
NAMES += ["lag_mean", "lag_max", "lag_0", "steps_per_second", "wall_seconds", "return", "length", "publish_seconds"]
NAMES += ["in_flight_batches", "in_flight_bytes", "worker_waiting", "checkpoint_seconds", "cpu_seconds", "rss_bytes"]


def measured(update: int) -> dict[str, float]:
    """As much as an update of PPO tells, all of it with many digits, and one number only now and then."""
    told = {name: math.sin(update + place) for place, name in enumerate(NAMES)} | {"env_steps": 256.0 * update}
    return told | ({"lag_1": 3.0} if update % 3 == 0 else {})


def test_an_update_takes_less_than_half_of_what_its_json_takes(broker: Broker) -> None:
    experiment, seat = seated(broker)
    raw, key = broker.conn.main, keys.metrics(experiment)
    for update in range(300):
        broker.events.metrics_add(experiment, update, measured(update), seat_epoch=seat)
        raw.xadd("json", {"update": update, "values": dump_json(measured(update))})
    took, as_json = raw.memory_usage(key, samples=0), raw.memory_usage("json", samples=0)
    assert took is not None and as_json is not None and took < as_json / 2
    assert [one.values["env_steps"] for one in broker.events.metrics_read(experiment)][-1] == 256.0 * 299


@pytest.mark.parametrize("count", [3, 50, 600])
def test_the_stream_stays_within_its_bytes_and_says_how_many_it_let_go_of(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    # Given a budget of some entries
    monkeypatch.setattr(metrics, "MOST_BYTES", most := 60_000)
    experiment, seat = seated(broker)
    # When it has been used up twice
    update = 0
    while update < 100 or broker.events.metrics_cut(experiment) < update // 2:
        update += 1
        told = {f"metric_{number}": math.sin(update + number) for number in range(count)}
        broker.events.metrics_add(experiment, update, told, seat_epoch=seat)
    # Then it takes about that much, the newest are there, and every other one was counted
    took = broker.conn.main.memory_usage(keys.metrics(experiment), samples=0)
    kept = broker.events.metrics_read(experiment, count=update)
    assert took is not None and 0.5 * most < took < 1.5 * most
    assert [one.update for one in kept] == list(range(update - len(kept) + 1, update + 1))
    assert broker.events.metrics_cut(experiment) == update - len(kept) > 0


def test_nothing_is_let_go_of_while_there_is_room(broker: Broker) -> None:
    experiment, seat = seated(broker)
    broker.events.metrics_add(experiment, 1, measured(1), seat_epoch=seat)
    assert broker.events.metrics_cut(experiment) == 0
    assert 10_000 < Columns().most == metrics.MOST_ENTRIES


def test_a_trainer_that_begins_with_a_large_entry_lets_go_of_nothing_that_there_is_room_for(
    redis_server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a stream of 150 small entries in a budget for more than a thousand
    monkeypatch.setattr(metrics, "MOST_BYTES", 60_000)
    with open_broker(redis_server.url, role="test") as broker:
        experiment, seat = seated(broker)
        for update in range(1, 151):
            broker.events.metrics_add(experiment, update, {"return": math.sin(update)}, seat_epoch=seat)
        assert broker.events.metrics_cut(experiment) == 0
    # When another trainer goes on, whose first entry is as large as dozens of them
    large = {f"metric_{number}": math.sin(number) for number in range(100)}
    with open_broker(redis_server.url, role="test") as broker:
        for update in range(151, 251):
            told = large if update == 151 else {"return": math.sin(update)}
            broker.events.metrics_add(experiment, update, told, seat_epoch=seat)
        # Then it takes that for no rule
        assert broker.events.metrics_cut(experiment) == 0
        assert len(broker.events.metrics_read(experiment)) == 250


def test_a_count_that_somebody_wrote_by_hand_keeps_nothing_from_being_measured(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "MOST_BYTES", 1)
    experiment, seat = seated(broker)
    broker.conn.main.hset(keys.ctl(experiment), "metrics_cut", "banana")
    assert broker.events.metrics_cut(experiment) == 0
    for update in range(1, 301):
        broker.events.metrics_add(experiment, update, measured(update), seat_epoch=seat)
    assert broker.events.metrics_read(experiment)[-1].update == 300
    assert broker.events.metrics_cut(experiment) > 200


# ---- one number that makes no sense


def test_a_tracker_is_given_what_can_be_read_of_an_entry_and_the_rest_is_named_once(
    any_broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(foreign, "_named", set())
    experiment, _ = seated(any_broker)
    trackers, key = any_broker.trackers, keys.metrics(experiment)
    trackers.ensure_group(experiment, "mine")
    for update in (1, 2):
        any_broker.conn.main.xadd(key, {"update": update, "return": "7", "loss": "x"})
    given = trackers.read(experiment, "mine", count=10, block_ms=0)
    assert [(one.update, one.values) for one in given] == [(1, {"return": 7.0}), (2, {"return": 7.0})]
    assert any_broker.conn.main.xpending(key, "track-mine")["pending"] == 2
    assert any_broker.events.metrics_last(experiment) == {"return": 7.0}
    (said,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert "a measurement" in said and "loss" in said and given[0].entry_id in said
