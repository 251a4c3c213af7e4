"""The overview says what the single calls say, in few round trips, and with the rights of who only looks."""

from typing import Any

import redis

from heddle.broker import Broker, keys, open_broker
from heddle.broker.acl import ROLES
from heddle.broker.fleet import BEATS, FIRST_BEATS, FleetReader
from heddle.broker.lines import PRINTED
from heddle.broker.pools import WorkerBeat
from heddle.broker.server import LocalServer
from tests.broker_kit import LEADER, E, admit, append, claim_next, run_out
from tests.trainer_kit import submit


def test_it_says_what_the_single_calls_say(broker: Broker) -> None:
    # Given an experiment with experience, metrics, a worker and a trainer
    experiment = submit(broker)
    epoch = broker.seats.claim_seat(experiment, "t-1")
    broker.events.metrics_add(experiment, 1, {"return": 2.0}, seat_epoch=epoch)
    broker.pools.heartbeat(WorkerBeat("w-1", host="h", pid=3, steps=5))
    broker.pools.set_desired("default", 4)
    broker.events.log(experiment, "worker", "w-1", "info", "a line")
    # When the fleet is looked at
    fleet = FleetReader(broker).read()
    # Then all of it is there
    glance = fleet.experiments[experiment]
    assert glance.status == broker.experiments.status(experiment)
    assert glance.ctl == broker.experiments.ctl(experiment)
    assert glance.flow == broker.experience.flow(experiment, 0)
    assert (glance.sitter.trainer, glance.seats) == ("t-1", 1)
    assert [metric.values for metric in glance.metrics] == [{"return": 2.0}]
    assert glance.shards == len(broker.shards.shards(experiment, 0))
    assert (fleet.pools["default"].wanted, list(fleet.workers["default"])) == (4, ["w-1"])
    assert fleet.workers["default"]["w-1"].beat == broker.pools.workers()[0].beat
    assert [event.message for event in fleet.events][-1] == "a line"


def test_the_next_look_brings_only_what_is_new(broker: Broker) -> None:
    experiment = submit(broker)
    reader = FleetReader(broker)
    broker.events.metrics_add(experiment, 1, {"return": 2.0})
    broker.events.log(None, "client", "", "info", "old")
    reader.read()
    broker.events.metrics_add(experiment, 2, {"return": 3.0})
    broker.events.log(None, "client", "", "info", "new")
    broker.events.log("a-1", PRINTED, "w-1", "info", "printed")
    fleet = reader.read()
    assert [metric.update for metric in fleet.experiments[experiment].metrics] == [2]
    assert [event.message for event in fleet.events] == ["new", "printed"]
    again = reader.read()
    assert again.events == () == again.experiments[experiment].metrics


def test_a_look_at_a_thousand_workers_asks_for_some_and_comes_round_to_all(broker: Broker) -> None:
    # Given a thousand workers
    for number in range(1_000):
        broker.pools.heartbeat(WorkerBeat(f"w-{number:04d}", pid=1, steps=1), ttl_ms=600_000)
    reader = FleetReader(broker)
    # When it is looked at for the first times, then all were seen
    first = reader.read()
    assert first.reads <= FIRST_BEATS + BEATS and len(first.workers["default"]) >= FIRST_BEATS
    reader.read()
    # When they go on, then each look asks for a hundred of them and the watched one, and ten come round
    now_ms = broker.conn.now_ms()
    broker.conn.main.zadd(keys.pool_workers("default"), {f"w-{n:04d}": now_ms + 60_000 for n in range(1_000)})
    pipe = broker.conn.pipeline()
    for number in range(1_000):
        pipe.hset(keys.worker(f"w-{number:04d}"), "steps", 2)
    pipe.execute()
    assert reader.read(watched=["w-0999"]).workers["default"]["w-0999"].beat.steps == 2
    reads = [reader.read(watched=["w-0999"]).reads for _ in range(10)]
    assert max(reads) <= BEATS + 1
    assert {info.beat.steps for info in reader.read().workers["default"].values()} == {2}


def test_a_worker_that_fell_silent_is_looked_at_at_once(broker: Broker) -> None:
    for number in range(300):
        broker.pools.heartbeat(WorkerBeat(f"w-{number:04d}", pid=1))
    reader = FleetReader(broker)
    reader.read()
    ahead = {f"w-{n:04d}": broker.conn.now_ms() + 60_000 for n in range(299)}
    broker.conn.main.zadd(keys.pool_workers("default"), {**ahead, "w-0299": broker.conn.now_ms() - 3_000})
    broker.pools.bury("w-0299", "it ended with signal SIGKILL", pool="default", kind="signal")
    fleet = reader.read()
    dead = fleet.workers["default"]["w-0299"]
    assert (dead.died, dead.alive, dead.silent_ms >= 3_000) == ("it ended with signal SIGKILL", False, True)
    assert fleet.pools["default"].deaths == {"signal": 1}


def test_what_became_of_ownerships_is_counted_for_good(broker: Broker) -> None:
    admit(broker, shards=2)
    one, two = claim_next(broker, "w1"), claim_next(broker, "w2")
    append(broker, one.lease, 1)
    run_out(broker, one.lease)
    broker.shards.reap(E, 0, leader_epoch=LEADER)
    broker.shards.release_worker("w2")
    totals = broker.overview.experiments({E: None})[E].totals
    assert totals == {"reaped": 1, "vouched": 1, "quarantined": 0}
    assert two.lease.worker == "w2"


def test_an_experiment_that_is_over_is_not_looked_at_every_time_and_one_that_was_removed_not_at_all(
    broker: Broker,
) -> None:
    over, gone, goes_on = (
        submit(broker, experiment={"name": "over"}),
        submit(broker, experiment={"name": "gone"}),
        submit(broker, experiment={"name": "on"}),
    )
    broker.conn.main.hset(keys.status(over), "state", "completed")
    reader = FleetReader(broker)
    fleet = reader.read()
    assert set(fleet.experiments) == {gone, goes_on} and set(fleet.ended) == {over}
    broker.experiments.remove(gone, force=True)
    broker.conn.main.hset(keys.status(over), "state", "running")  # a broker that forgot its end
    reader.read()
    fleet = reader.read()
    assert set(fleet.experiments) == {over, goes_on} and fleet.ended == {}


def test_who_may_only_look_can_use_it(broker: Broker, redis_server: LocalServer, raw: redis.Redis) -> None:
    experiment = submit(broker)
    broker.pools.heartbeat(WorkerBeat("w-1"))
    execute: Any = raw.execute_command
    execute("ACL", "SETUSER", "looker", "reset", "on", ">secret", *ROLES["reader"].rules())
    url = redis_server.url.replace("://", "://looker:secret@")
    try:
        with open_broker(url, role="test") as looker:
            fleet = FleetReader(looker).read()
            assert set(fleet.experiments) == {experiment} and set(fleet.workers["default"]) == {"w-1"}
    finally:
        execute("ACL", "DELUSER", "looker")
