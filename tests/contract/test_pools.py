"""Pools: heartbeats answered with what the pool asks, sizes compared and set, quotas of the leader alone."""

from dataclasses import fields
from typing import Any

import pytest

from heddle.broker import Broker, keys
from heddle.broker.pools import PRUNE_MS, WorkerBeat
from heddle.broker.presence import HostReport, Pulse
from heddle.broker.records import text
from heddle.errors import Conflict, LeaderLost, NotFound, UsageError
from tests.contract.specs import all_keys, out_of_memory
from tests.helpers import eventually

BEAT = WorkerBeat(
    "w1",
    host="h",
    pid=7,
    state="playing",
    shards=2,
    experiments=("a-1", "b-2"),
    envs=8,
    steps=100,
    ms_per_step=0.5,
    play_s=1.5,
    wait_s=0.25,
    outcomes={"accepted": 12, "fenced": 1},
    late_s=10.0,
    late_speed=42.5,
    late_waits=0.25,
)


def test_a_worker_is_listed_with_what_it_said(any_broker: Broker) -> None:
    pools = any_broker.pools
    reply = pools.heartbeat(BEAT)
    assert (reply.drain, reply.desired, reply.live, reply.floor, reply.ceil, reply.someone_below) == (
        False,
        None,
        0,
        0,
        0,
        False,
    )
    (worker,) = pools.workers()
    assert worker.beat == BEAT
    assert worker.alive and not worker.draining and worker.silent_ms < 5_000
    pools.bye("w1")
    pools.bye("w1")
    assert pools.workers() == []


def test_every_worker_is_listed_under_its_own_name_whoever_was_seen_last(broker: Broker) -> None:
    pids = {"w3": 3, "w1": 1, "w2": 2}
    for worker, pid in pids.items():
        broker.pools.heartbeat(WorkerBeat(worker, pid=pid))
        now = broker.conn.now_ms()
        eventually(lambda now=now: broker.conn.now_ms() > now, what="another millisecond")  # type: ignore[misc]
    assert [(one.beat.worker, one.beat.pid) for one in broker.pools.workers()] == [("w1", 1), ("w2", 2), ("w3", 3)]


def test_a_worker_that_falls_silent_is_shown_as_gone_and_later_not_at_all(broker: Broker) -> None:
    broker.pools.heartbeat(BEAT, ttl_ms=1)
    (gone,) = eventually(lambda: [worker for worker in broker.pools.workers() if not worker.alive])
    assert gone.beat == BEAT, "whoever looks for it is told where it ran"
    assert 0 < broker.conn.main.pttl(keys.worker("w1")) <= PRUNE_MS, "and that is forgotten with it"
    long_ago = broker.conn.now_ms() - PRUNE_MS - 1
    broker.conn.main.zadd(keys.pool_workers("default"), {"w1": long_ago})
    assert broker.pools.workers() == []
    assert all_keys(broker) == {keys.worker("w1")}


def test_a_worker_asked_to_drain_learns_it_with_its_next_heartbeat_and_keeps_its_ttl(any_broker: Broker) -> None:
    pools = any_broker.pools
    pools.heartbeat(BEAT)
    before = any_broker.conn.main.pttl(keys.worker("w1"))
    pools.drain("w1")
    assert 0 < any_broker.conn.main.pttl(keys.worker("w1")) <= before
    assert pools.heartbeat(BEAT).drain
    assert pools.workers()[0].draining
    with pytest.raises(NotFound, match="heddle workers ls"):
        pools.drain("w2")
    assert any_broker.conn.main.exists(keys.worker("w2")) == 0


def test_desired_is_compared_and_set(any_broker: Broker) -> None:
    pools = any_broker.pools
    assert (pools.pool("big").desired, pools.pool("big").rev) == (None, 0)
    first = pools.set_desired("big", 64, rev=0)
    assert (first.desired, first.rev) == (64, 1)
    with pytest.raises(Conflict, match="64 desired at rev 1"):
        pools.set_desired("big", 3, rev=0)
    assert pools.set_desired("big", 0).desired == 0
    assert pools.set_desired("big", None).desired is None
    with pytest.raises(UsageError):
        pools.set_desired("big", -1)
    pools.set_desired("big", 2)
    assert pools.heartbeat(WorkerBeat("w1", pool="big")).desired == 2
    assert pools.pools() == ["big"]


def test_quota_is_written_by_the_leader_alone_and_told_to_workers(any_broker: Broker) -> None:
    pools = any_broker.pools
    pools.set_quota("default", leader_epoch=7, floor=2, ceil=3, below=1, live=5)
    with pytest.raises(LeaderLost):
        pools.set_quota("default", leader_epoch=6, floor=0, ceil=9, below=0, live=1)
    reply = pools.heartbeat(BEAT)
    assert (reply.floor, reply.ceil, reply.someone_below, reply.live) == (2, 3, True, 5)


def test_supervisors_learn_who_shares_a_pool(any_broker: Broker) -> None:
    pools = any_broker.pools
    alone = pools.supervisor_beat("default", "s2", 4)
    assert (alone.desired, alone.supervisors, dict(alone.wants)) == (None, ("s2",), {"s2": 4})
    pools.set_desired("default", 10)
    both = pools.supervisor_beat("default", "s1", 2)
    assert (both.desired, both.supervisors, dict(both.wants)) == (10, ("s1", "s2"), {"s1": 2, "s2": 4})
    pools.supervisor_bye("default", "s2")
    pools.supervisor_bye("default", "s2")
    assert pools.supervisor_beat("default", "s1", 2).supervisors == ("s1",)


def test_a_supervisor_that_fell_silent_has_no_part_any_more_until_it_returns(any_broker: Broker) -> None:
    pools = any_broker.pools
    pools.supervisor_beat("default", "s1", 1)
    any_broker.conn.main.zadd(keys.pool_supervisors("default"), {"s1": any_broker.conn.now_ms() - 60_000})
    share = pools.supervisor_beat("default", "s2", 2)
    assert (share.supervisors, dict(share.wants)) == (("s2",), {"s2": 2})
    assert any_broker.conn.main.hget(keys.pool("default"), "wants:s1") is None
    assert dict(pools.supervisor_beat("default", "s1", 1).wants) == {"s1": 1, "s2": 2}


def test_consumers_of_vanished_workers_are_deleted_unless_they_hold_a_ticket(broker: Broker) -> None:
    main, key = broker.conn.main, keys.pool_tickets("default")
    assert broker.pools.tidy_tickets("default") == (0, False)
    main.xadd(key, {"shard": "0"})
    assert broker.pools.tidy_tickets("default") == (0, False)
    main.xgroup_create(key, keys.TICKET_GROUP, id="0")
    main.xreadgroup(keys.TICKET_GROUP, "holds", {key: ">"}, count=1)
    main.xgroup_createconsumer(key, keys.TICKET_GROUP, "idle")
    assert broker.pools.tidy_tickets("default") == (0, False)
    assert broker.pools.tidy_tickets("default", idle_ms=0) == (1, False)
    assert [consumer["name"] for consumer in main.xinfo_consumers(key, keys.TICKET_GROUP)] == [b"holds"]


def test_workers_and_supervisors_are_heard_and_scaled_when_the_memory_is_full(broker: Broker) -> None:
    with out_of_memory(broker):
        broker.pools.heartbeat(BEAT)
        broker.pools.set_desired("default", 3)
        broker.pools.set_quota("default", leader_epoch=1, floor=1, ceil=1, below=0, live=1)
        broker.pools.drain("w1")
        assert broker.pools.heartbeat(BEAT).drain
        assert broker.pools.supervisor_beat("default", "s1", 1).desired == 3
        assert broker.pools.workers()[0].beat == BEAT
        broker.pools.bye("w1")
        broker.pools.supervisor_bye("default", "s1")


def test_a_worker_whose_parent_saw_it_die_is_not_alive_any_more(any_broker: Broker) -> None:
    pools = any_broker.pools
    pools.heartbeat(BEAT)
    pools.bury(BEAT.worker, "killed by SIGKILL")
    (found,) = pools.workers(BEAT.pool)
    assert (found.alive, found.died) == (False, "killed by SIGKILL")
    pools.bury("nobody", "killed by SIGKILL")
    assert len(pools.workers(BEAT.pool)) == 1


def test_a_worker_that_died_cannot_be_asked_to_drain(any_broker: Broker) -> None:
    any_broker.pools.heartbeat(BEAT)
    any_broker.pools.bury(BEAT.worker, "signal SIGKILL")
    with pytest.raises(NotFound):
        any_broker.pools.drain(BEAT.worker)


def test_a_worker_that_fell_silent_cannot_be_asked_to_drain(broker: Broker) -> None:
    broker.pools.heartbeat(BEAT, ttl_ms=1)
    eventually(lambda: not broker.pools.workers()[0].alive)
    with pytest.raises(NotFound):
        broker.pools.drain(BEAT.worker)


def test_what_a_supervisor_says_of_its_host_is_known_while_it_is_here(any_broker: Broker) -> None:
    pools = any_broker.pools
    report = HostReport("box", 8, free_bytes=1 << 34, worker_bytes=1 << 26, running=3, most=9)
    pools.supervisor_beat("default", "s1", 2, host=report)
    pools.supervisor_beat("default", "s2", 2)
    assert pools.hosts("default") == {"s1": report, "s2": None}
    pools.supervisor_bye("default", "s1")
    assert pools.hosts("default") == {"s2": None}
    any_broker.conn.main.zadd(keys.pool_supervisors("default"), {"s2": any_broker.conn.now_ms() - 60_000})
    pools.supervisor_beat("default", "s3", 2, host=report)
    kept = {text(key) for key in any_broker.conn.main.hkeys(keys.pool("default"))}
    assert kept == {"wants:s3", "host:s3"}


def test_of_some_workers_the_hearts_are_told_and_of_strangers_nothing(any_broker: Broker) -> None:
    pools = any_broker.pools
    pools.heartbeat(WorkerBeat("w1", ttl_ms=4_000, limit_ms=60_000, experiments=("a-1", "b-2")))
    pools.heartbeat(WorkerBeat("w2", ttl_ms=2_000))
    seen = {info.beat.worker: info.seen_ms for info in pools.workers()}
    assert pools.pulses("default", ["w2", "w1", "nobody"]) == {
        "w1": Pulse(seen["w1"], 4_000, 60_000, ("a-1", "b-2")),
        "w2": Pulse(seen["w2"], 2_000, 0),
    }
    assert pools.pulses("default", []) == {}
    any_broker.conn.main.delete(keys.worker("w1"))
    assert pools.pulses("default", ["w1"]) == {"w1": Pulse(seen["w1"])}


def test_supervisors_are_listed_while_they_are_here(any_broker: Broker) -> None:
    pools = any_broker.pools
    pools.supervisor_beat("default", "s2", 1)
    pools.supervisor_beat("default", "s1", 1)
    assert pools.supervisors("default") == ["s1", "s2"]
    any_broker.conn.main.zadd(keys.pool_supervisors("default"), {"s1": any_broker.conn.now_ms() - 60_000})
    assert pools.supervisors("default") == ["s2"]


def test_a_worker_is_found_by_its_id_alone(any_broker: Broker) -> None:
    pools = any_broker.pools
    pools.heartbeat(BEAT)
    found = pools.worker(BEAT.worker)
    assert found is not None and found.beat == BEAT
    assert pools.worker("nobody") is None


def test_a_pool_wants_what_was_said_or_else_what_its_supervisors_were_started_with(any_broker: Broker) -> None:
    pools = any_broker.pools
    assert pools.wanted("big") is None
    pools.supervisor_beat("big", "s1", 2)
    pools.supervisor_beat("big", "s2", 3)
    assert pools.wanted("big") == 5
    pools.set_desired("big", 1)
    assert pools.wanted("big") == 1


def test_all_that_a_heartbeat_says_is_read(broker: Broker) -> None:
    kinds = {"str": "word", "int": 7, "float": 2.5, "tuple[str, ...]": ("a-1", "b-2"), "Mapping[str, int]": {"env": 3}}
    said: dict[str, Any] = {}
    for number, one in enumerate(fields(WorkerBeat)):
        kind = one.type if isinstance(one.type, str) else getattr(one.type, "__name__", str(one.type))
        value: Any = kinds.get(kind) or kinds[str(one.type).replace("collections.abc.", "")]
        said[one.name] = value + number if isinstance(value, int | float) else value
    beat = WorkerBeat(**(said | {"worker": "w1", "pool": "default", "state": "playing"}))
    broker.pools.heartbeat(beat)
    (heard,) = broker.pools.workers()
    assert heard.beat == beat


def test_a_heartbeat_of_an_older_version_that_tells_nothing_of_late_is_read_with_its_means(broker: Broker) -> None:
    late = ("late_s", "late_speed", "late_waits")
    for state in ("playing", "waiting", "idle"):
        broker.pools.heartbeat(WorkerBeat(state, state=state, steps=300, play_s=2.0, wait_s=1.0))
        assert broker.conn.main.hdel(keys.worker(state), *late) == 3
    found = {info.beat.worker: (info.beat.steps_per_second, info.beat.waits) for info in broker.pools.workers()}
    assert found == {"playing": (100.0, 1 / 3), "waiting": (100.0, 1 / 3), "idle": (0.0, None)}


def test_every_worker_is_listed_with_its_own_heartbeat_whoever_beat_last(broker: Broker) -> None:
    names = ["w3", "w1", "w2"]
    for pid, name in enumerate(names):
        broker.pools.heartbeat(WorkerBeat(name, pid=pid))
        broker.conn.main.zadd(keys.pool_workers("default"), {name: broker.conn.now_ms() + pid})  # not in order of id
    assert {worker.beat.worker: worker.beat.pid for worker in broker.pools.workers()} == {"w3": 0, "w1": 1, "w2": 2}
