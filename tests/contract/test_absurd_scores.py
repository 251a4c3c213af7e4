"""Scores and numbers that nobody of ours wrote, in what all share and in what is made anew: no role ends of them."""

from dataclasses import replace
from typing import Any

import pytest

from heddle.broker import Broker, keys
from heddle.broker.faults import Damaged
from heddle.broker.numbers import MADE_ANEW, WORDS
from heddle.broker.pools import AHEAD_MS, WorkerBeat
from heddle.broker.presence import BEAT_FIELDS
from heddle.broker.records import LATEST_MS
from heddle.broker.server import LocalServer
from heddle.cli.main import run
from heddle.coord.leader import Leader
from heddle.errors import BrokerAmiss
from tests import worker_kit
from tests.broker_kit import LEADER, POOL, admit, append, claim_next, reap, run_out
from tests.trainer_kit import SPEC
from tests.worker_kit import fresh

SCORES = ["inf", "-inf", "1e300", "-1e300", "3e14"]


@pytest.mark.parametrize("score", SCORES)
def test_members_seen_at_no_time_of_a_calendar_are_no_workers_and_have_no_part_of_a_pool(
    broker: Broker, score: str
) -> None:
    pools, raw = broker.pools, broker.conn.main
    pools.heartbeat(WorkerBeat("w1"))
    pools.supervisor_beat("default", "s1", 2)
    now_ms = broker.conn.now_ms()
    for key in (keys.pool_workers("default"), keys.pool_supervisors("default")):
        raw.zadd(key, {"x": score})
    # A glance, which may only look, leaves it out
    glance = broker.overview.pools(["default"], now_ms)["default"]
    assert (list(glance.seen), list(glance.hosts)) == (["w1"], ["s1"])
    # Readers that may write drop it
    assert pools.pulses("default", ["x"])["x"].seen_ms in (0, LATEST_MS)
    assert pools.worker("x") is not None
    assert pools.supervisor_beat("default", "s1", 2).supervisors == ("s1",)
    assert pools.supervisors() == ["s1"]
    assert [worker.beat.worker for worker in pools.workers()] == ["w1"]
    for key in (keys.pool_workers("default"), keys.pool_supervisors("default")):
        assert raw.zscore(key, "x") is None


@pytest.mark.parametrize("score", SCORES)
def test_a_leader_goes_on_and_every_command_answers(valkey_server: LocalServer, score: str) -> None:
    # Given an experiment that is looked after, and absurd members in every sorted set there is
    with fresh(valkey_server.url) as broker:
        experiment = worker_kit.submit(broker, **SPEC)
        leader = Leader(broker, "c1", broker.conn.now_ms(), contact_since_ms=0)
        leader.wait(broker.conn.now_ms())
        names = [keys.pool_workers("default"), keys.pool_supervisors("default"), keys.EXPERIMENTS]
        names += [keys.due(experiment, 0), keys.waiting(experiment, 0)]
        for name in names:
            broker.conn.main.zadd(name, {"x": score})
        # Then a round goes by and the experiment is what it was
        leader.take_over(broker.conn.now_ms() + 60_000)
        leader.tick(broker.conn.now_ms() + 60_000)
        assert experiment in leader.experiments
        assert broker.experiments.status(experiment).state in ("queued", "running")
        for words in (["ls"], ["status", experiment], ["why", experiment], ["workers", "ls"], ["shards", experiment]):
            assert run([*words, "--redis-url", valkey_server.url]) == 0, words


@pytest.mark.parametrize("member", ["x", "", "-1", "9" * 5_000])
def test_a_member_that_is_no_shard_is_nobodys_lease(any_broker: Broker, member: str) -> None:
    experiment = admit(any_broker, shards=1)
    held = claim_next(any_broker).lease
    for name in (keys.due(experiment, 0), keys.waiting(experiment, 0)):
        any_broker.conn.main.zadd(name, {member: 1})
    assert any_broker.shards.reap(experiment, 0, leader_epoch=LEADER) == []
    assert any_broker.conn.main.zscore(keys.due(experiment, 0), member) is None
    assert any_broker.shards.waiting(experiment, 0) == {}
    freed = any_broker.shards.release_worker("w1", error="its process ended")
    assert [found.shard for found in freed] == [held.shard]


@pytest.mark.parametrize("field", ["pid", "ttl_ms", "play_s", "beat_ttl_ms", "outcomes"])
@pytest.mark.parametrize("value", ["nan", "inf", "x", "9" * 5_000])
def test_a_worker_that_says_nonsense_hides_no_other(any_broker: Broker, field: str, value: str) -> None:
    for worker in ("w1", "w2"):
        any_broker.pools.heartbeat(WorkerBeat(worker))
    said = f"accepted={value}" if field == "outcomes" else value
    any_broker.conn.main.hset(keys.worker("w1"), mapping={field: said, "died": "signal SIGKILL"})
    first, second = any_broker.pools.workers()
    assert (first.alive, first.died, second.alive) == (False, "signal SIGKILL", True)
    assert set(any_broker.pools.pulses("default", ["w1", "w2"])) == {"w1", "w2"}


@pytest.mark.parametrize("field", sorted(MADE_ANEW.keys() - WORDS.keys()))
def test_a_number_of_a_shard_that_somebody_made_none_keeps_nobody_from_it(any_broker: Broker, field: str) -> None:
    for place, value in enumerate(("abc", "nan", "-1", "9" * 400, "")):
        _is_played_all_the_same(any_broker, f"e-{place}", field, value)


def _is_played_all_the_same(broker: Broker, experiment: str, field: str, value: str) -> None:
    # Given a shard of which somebody spoils a number before each verb
    name = keys.shard(admit(broker, shards=1, experiment=experiment), 0, 0)

    def spoil() -> None:
        broker.conn.main.hset(name, field, value)

    spoil()
    claim = claim_next(broker)
    assert (claim.lease.experiment, claim.seq, claim.attempts) == (experiment, 0, 1) and claim.lease.epoch > 0
    spoil()
    assert [shard.shard for shard in broker.shards.shards(experiment, 0)] == [0]
    if field != "epoch":  # which fences its owner
        # Then each does what it does
        assert append(broker, claim.lease, 1).status == "OK"
        spoil()
        assert append(broker, claim.lease, 1).status == "DUP"
        (renewed,) = broker.shards.renew(experiment, 0, [(claim.lease, True)], ttl_ms=1_000)
        assert renewed.status == "OK"
        spoil()
        assert broker.shards.release(claim.lease, accepted=1)
        claim = claim_next(broker, "w2")
        assert claim.seq == 1
        spoil()
    # And it is taken from an owner that is gone: neither is it quarantined, nor is counted what never was parked
    run_out(broker, claim.lease)
    assert reap(broker, experiment) == [0]
    assert broker.shards.shards(experiment, 0)[0].state == "queued"
    assert broker.experience.flow(experiment, 0).parked == 0
    assert broker.shards.drop_tickets(experiment, 0, POOL) == 1


@pytest.mark.parametrize("value", ["abc", "nan", "-1", ""])
def test_a_limit_that_somebody_made_none_quarantines_nothing(any_broker: Broker, value: str) -> None:
    experiment = admit(any_broker, shards=1, barren_deaths=value, env_failures=value, lifts=value, far=value)
    lease = claim_next(any_broker).lease
    any_broker.shards.renew(experiment, 0, [(lease, True)], ttl_ms=1_000)
    run_out(any_broker, lease)
    assert reap(any_broker) == [0]
    assert any_broker.shards.release(claim_next(any_broker).lease, error="it failed", barren=True)
    (shard,) = any_broker.shards.shards(experiment, 0)
    assert (shard.state, shard.deaths) == ("queued", 2)


@pytest.mark.parametrize("field", ["seq", "given"])
def test_of_a_batch_nothing_is_written_where_what_it_goes_by_is_no_number(any_broker: Broker, field: str) -> None:
    experiment = admit(any_broker, shards=1)
    lease = claim_next(any_broker).lease
    any_broker.conn.main.hset(keys.shard(experiment, 0, 0), field, "abc")
    with pytest.raises(Damaged):
        append(any_broker, lease, 1)
    assert any_broker.conn.main.xlen(keys.experience(experiment, 0)) == 0
    assert any_broker.experience.flow(experiment, 0).appended.batches == 0


SOUND = WorkerBeat(
    "w1", pid=7, state="playing", shards=3, experiments=("e",), envs=6, steps=50, ms_per_step=0.5, play_s=2.0,
    wait_s=1.0, outcomes={"accepted": 4, "fenced": 1}, profile={"env": 9}, ttl_ms=2_000, doing="step", subject="e/1",
    doing_ms=11, limit_ms=12, own_limit_ms=13, still_ms=14, cpu_s=1.5, rss_bytes=1_000, reason="it is tired",
    late_s=10.0, late_speed=25.0, late_waits=0.5,
)  # fmt: skip
NOTHING: dict[str, Any] = {"ttl_ms": 10_000, "outcomes": {"accepted": 4, "fenced": 0}}
"""What counts instead of a field that is no number; 0 for the others."""


@pytest.mark.parametrize("value", ["nan", "-inf", "x", "-1", "1e400", "9" * 400, "9" * 5_000])
def test_of_a_heartbeat_only_the_field_is_lost_that_somebody_made_no_number(any_broker: Broker, value: str) -> None:
    numbers = [name for name in BEAT_FIELDS if isinstance(getattr(SOUND, name), int | float)]
    for field in (*numbers, "outcomes", "beat_ttl_ms"):
        any_broker.pools.heartbeat(SOUND)
        said = f"accepted=4 fenced={value}" if field == "outcomes" else value
        any_broker.conn.main.hset(keys.worker("w1"), field, said)
        (found,) = any_broker.pools.workers()
        expected = SOUND if field == "beat_ttl_ms" else replace(SOUND, **{field: NOTHING.get(field, 0)})
        assert (found.beat, found.alive) == (expected, True), field
        assert found.beat.steps_per_second < 1e9
    # And it can be asked to drain still
    any_broker.pools.drain("w1")
    assert any_broker.pools.workers()[0].draining


@pytest.mark.parametrize("ahead_ms", [2 * AHEAD_MS, 365 * AHEAD_MS])
def test_who_was_seen_next_year_has_no_part_of_a_pool(broker: Broker, ahead_ms: int) -> None:
    pools, raw = broker.pools, broker.conn.main
    pools.heartbeat(WorkerBeat("w1"))
    pools.supervisor_beat("default", "s1", 2)
    raw.hset(keys.pool("default"), "wants:s2", 5)
    now_ms = broker.conn.now_ms()
    for key, name in ((keys.pool_workers("default"), "w2"), (keys.pool_supervisors("default"), "s2")):
        raw.zadd(key, {name: now_ms + ahead_ms})
    glance = broker.overview.pools(["default"], now_ms)["default"]
    assert (list(glance.seen), list(glance.hosts)) == (["w1"], ["s1"])
    share = pools.supervisor_beat("default", "s1", 2)
    assert (share.supervisors, share.wants) == (("s1",), {"s1": 2})
    assert [worker.beat.worker for worker in pools.workers()] == ["w1"]
    # And whoever is here after all is back with the next beat
    assert pools.supervisor_beat("default", "s2", 1).supervisors == ("s1", "s2")


@pytest.mark.parametrize("value", ["nan", "inf", "x", "-1", "1e9"])
def test_a_pool_with_nonsense_in_it_is_made_anew_or_named(broker: Broker, value: str) -> None:
    pools, hset = broker.pools, broker.conn.main.hset
    pools.supervisor_beat("default", "s1", 2)
    for field in ("rev", "live", "floor", "ceil", "below", "wants:s2"):
        hset(keys.pool("default"), field, value)
    assert pools.supervisor_beat("default", "s1", 2).wants == {"s1": 2}
    assert pools.heartbeat(WorkerBeat("w1")).desired is None
    assert pools.set_desired("default", 3).rev > 0
    hset(keys.pool("default"), "desired", value)
    with pytest.raises(BrokerAmiss, match="heddle workers scale N --pool default") as told:
        pools.wanted()
    assert (told.value.key, repr(value) in str(told.value)) == (keys.pool("default"), True)
    assert pools.set_desired("default", 2).desired == 2
