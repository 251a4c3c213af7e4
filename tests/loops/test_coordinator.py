"""The coordinator on a real server: what it promises to clients, workers and trainers, also when things die."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from heddle.broker import Broker, keys, open_broker
from heddle.broker.coordinators import HIGHEST_EPOCH
from heddle.broker.pools import WorkerBeat
from heddle.broker.server import LocalServer, restart, start_server
from heddle.broker.types import Claim, Ticket
from heddle.clock import SystemClock
from heddle.coord.coordinator import Coordinator
from heddle.coord.leader import Leader
from heddle.coord.watch import Step
from heddle.errors import BrokerBlocked, BrokerFull, BrokerUnreachable, Gone
from heddle.shard import plan_shards
from heddle.spec import load_spec
from heddle.stop import StopFlag
from tests.broker_kit import append
from tests.helpers import eventually

SPEC: dict[str, Any] = {
    "experiment": {"name": "test"},
    "env": {"id": "CartPole-v1", "num_envs": 4, "envs_per_shard": 2},
    "budget": {"env_steps": 1000},
    "faults": {"lease_ttl": 0.5, "barren_deaths": 2},
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LocalServer]:
    with start_server(tmp_path / "server") as running:
        yield running


@pytest.fixture
def broker(server: LocalServer) -> Iterator[Broker]:
    connected = open_broker(server.url, role="test")
    yield connected
    connected.close()


@pytest.fixture
def coordinate(server: LocalServer) -> Iterator[Callable[[], StopFlag]]:
    """Starts coordinators in threads, and ends them."""
    running: list[tuple[StopFlag, threading.Thread]] = []

    def begin() -> StopFlag:
        flag = StopFlag()
        thread = threading.Thread(target=Coordinator(server.url, stop=flag).run)
        thread.start()
        running.append((flag, thread))
        return flag

    yield begin
    for flag, thread in running:
        flag.drain("the test is over")
        thread.join(10)
        assert not thread.is_alive()


def submit(broker: Broker, **sections: dict[str, Any]) -> str:
    """Submit SPEC with changes; returns the id."""
    raw = {name: {**SPEC.get(name, {}), **sections.get(name, {})} for name in {*SPEC, *sections}}
    spec = load_spec(raw).spec
    return broker.experiments.submit(
        spec.canonical_json(), "", spec.sha256(), spec.experiment.name, suffix=os.urandom(3).hex()
    ).id


def state(broker: Broker, experiment: str) -> str:
    return broker.experiments.status(experiment).state


def await_state(broker: Broker, experiment: str, wanted: str, timeout_s: float = 5.0) -> str:
    """Wait for a state; returns the reason."""
    eventually(lambda: state(broker, experiment) == wanted, timeout_s=timeout_s, what=f"state {wanted}")
    return broker.experiments.status(experiment).reason


def take(broker: Broker, worker: str = "w1", ttl_ms: int = 500) -> tuple[Ticket, Claim]:
    """Read one ticket and claim its shard, as a worker does."""
    ticket = eventually(lambda: broker.shards.read_ticket("default", worker, block_ms=100), what="a ticket")
    assert ticket is not None
    claim = broker.shards.claim(ticket, worker=worker, nonce=os.urandom(4).hex(), ttl_ms=ttl_ms)
    assert isinstance(claim, Claim), claim
    broker.shards.drop_ticket(ticket)
    return ticket, claim


def lead(broker: Broker) -> Leader:
    """A leader whose rounds the test itself makes."""
    return Leader(broker, "c1", broker.conn.now_ms(), contact_since_ms=0)


def shard_states(broker: Broker, experiment: str) -> list[str]:
    return [shard.state for shard in broker.shards.shards(experiment, 0)]


def test_a_submitted_experiment_runs_with_its_shards_counted_and_a_ticket_for_each(
    broker: Broker, coordinate: Callable[[], StopFlag]
) -> None:
    coordinate()
    experiment = submit(broker, eval={"num_envs": 2, "episodes": 4})
    await_state(broker, experiment, "running")
    ctl = broker.experiments.ctl(experiment)
    assert (ctl.active, ctl.active_eval) == (2, 1)
    taken = {take(broker)[0].shard for _ in range(3)}
    assert taken == {0, 1, 2}
    assert broker.experiments.queue_waiting() == []


def test_a_spec_that_cannot_be_run_fails_with_the_reason_and_leaves_the_queue(
    broker: Broker, coordinate: Callable[[], StopFlag]
) -> None:
    unreadable = submit(broker)
    broker.conn.main.hset(keys.spec(unreadable), "json", '{"experiment": {"name": "x", "sed": 3}}')
    foreign = submit(broker, experiment={"name": "foreign"})
    broker.conn.main.hset(keys.spec(foreign), "protocol", "99")
    too_safe = submit(broker, experiment={"name": "safe"}, limits={"durability": "strict"})
    coordinate()
    assert "its spec cannot be read: <spec>  experiment.sed" in await_state(broker, unreadable, "failed")
    assert "it speaks protocol 99" in await_state(broker, foreign, "failed")
    assert "asks for strict, but the broker is fast" in await_state(broker, too_safe, "failed")
    eventually(lambda: broker.experiments.queue_waiting() == [])


def test_a_dead_workers_shard_is_offered_again_within_its_ttl_and_a_second(
    broker: Broker, coordinate: Callable[[], StopFlag]
) -> None:
    coordinate()
    experiment = submit(broker)
    _, first = take(broker)
    take(broker)
    eventually(lambda: shard_states(broker, experiment) == ["leased", "leased"])
    eventually(lambda: "queued" in shard_states(broker, experiment), timeout_s=1.5, what="reaped")
    offered = {take(broker, "w2")[1].lease.shard for _ in range(2)}
    assert first.lease.shard in offered


def test_a_lost_ticket_is_issued_again_and_so_is_one_that_came_to_nothing(
    broker: Broker, coordinate: Callable[[], StopFlag]
) -> None:
    coordinate()
    experiment = submit(broker)
    await_state(broker, experiment, "running")
    ticket = eventually(lambda: broker.shards.read_ticket("default", "w1", block_ms=100))
    assert ticket is not None  # read, and its reader dies before it claims
    other = eventually(lambda: broker.shards.read_ticket("default", "w1", block_ms=100))
    assert other is not None
    broker.shards.drop_ticket(other)  # lost altogether
    assert {take(broker, "w2", 30_000)[0].shard for _ in range(2)} == {ticket.shard, other.shard}


def test_pause_and_run_show_in_the_state(broker: Broker, coordinate: Callable[[], StopFlag]) -> None:
    coordinate()
    experiment = submit(broker)
    await_state(broker, experiment, "running")
    broker.experiments.set_command(experiment, "pause")
    await_state(broker, experiment, "paused", 2.0)
    broker.experiments.set_command(experiment, "run")
    await_state(broker, experiment, "running", 2.0)


def test_a_stop_without_a_trainer_ends_by_itself_and_takes_the_tickets_away(
    broker: Broker, coordinate: Callable[[], StopFlag]
) -> None:
    coordinate()
    experiment = submit(broker)
    await_state(broker, experiment, "running")
    broker.experiments.set_command(experiment, "stop")
    assert await_state(broker, experiment, "stopped") == "no trainer was there to end it"
    eventually(lambda: broker.conn.main.xlen(keys.pool_tickets("default")) == 0)


def test_a_leader_that_the_broker_went_back_to_goes_on_behind_the_fence_of_one_that_it_forgot(
    broker: Broker, coordinate: Callable[[], StopFlag]
) -> None:
    # A backup from before the last takeover: the later leader wrote once more under its epoch before it noticed.
    coordinate()
    experiment = submit(broker)
    await_state(broker, experiment, "running")
    leader = broker.coordinators.leader()
    assert leader is not None
    broker.conn.main.hset(keys.ctl(experiment), "leader_epoch", leader.epoch + 1)
    broker.experiments.set_command(experiment, "pause")
    await_state(broker, experiment, "paused")
    again = broker.coordinators.leader()
    assert again is not None and again.epoch > leader.epoch + 1


@pytest.mark.parametrize("said", ["inf", "x", "99999999999999", "9007199254740000", "9007199254740992"])
def test_an_epoch_written_by_hand_keeps_no_coordinator_from_leading(
    broker: Broker, coordinate: Callable[[], StopFlag], said: str
) -> None:
    # Given a coordinator that leads, and an epoch by hand that no leader ever had
    coordinate()
    experiment = submit(broker)
    await_state(broker, experiment, "running")
    for key in (keys.ctl(experiment), keys.pool("default")):
        broker.conn.main.hset(key, "leader_epoch", said)
    # Then somebody leads all the same, and decides
    broker.experiments.set_command(experiment, "pause")
    await_state(broker, experiment, "paused")
    assert broker.coordinators.leader() is not None


def test_an_epoch_above_which_there_is_none_is_mended_and_told_and_leaders_still_fence_each_other(
    broker: Broker, coordinate: Callable[[], StopFlag]
) -> None:
    # Given a coordinator that leads, and the highest whole number that a script knows as everybody's epoch
    coordinate()
    experiment, raw = submit(broker), broker.conn.main
    await_state(broker, experiment, "running")
    for key in (keys.ctl(experiment), keys.pool("default"), keys.COORDINATOR):
        raw.hset(key, mapping={"epoch" if key == keys.COORDINATOR else "leader_epoch": 2**53})
    # When it goes on
    broker.experiments.set_command(experiment, "pause")
    await_state(broker, experiment, "paused")
    # Then its epoch is one that others can rise above, and so is what it wrote
    leader = eventually(lambda: (found := broker.coordinators.leader()) and found.epoch <= HIGHEST_EPOCH and found)
    assert leader
    eventually(lambda: broker.experiments.ctl(experiment).leader_epoch <= HIGHEST_EPOCH)
    lines = [event.message for event in broker.events.read(None, count=500)]
    assert [line for line in lines if line.startswith(f"mended key={keys.ctl(experiment)} field=leader_epoch was=")]


def test_an_experiment_stopped_before_it_was_admitted_never_starts(
    broker: Broker, coordinate: Callable[[], StopFlag]
) -> None:
    experiment = submit(broker)
    broker.experiments.set_command(experiment, "stop")
    coordinate()
    assert await_state(broker, experiment, "stopped") == "stopped before it was admitted"


def test_a_stop_after_half_an_admission_waits_for_the_workers_that_have_begun(broker: Broker) -> None:
    experiment = submit(broker)
    epoch = broker.coordinators.claim_leader("c1")
    assert epoch is not None
    plans = plan_shards(load_spec(SPEC).spec)
    broker.shards.create(experiment, 0, plans, leader_epoch=epoch)
    broker.shards.queue_tickets(experiment, 0, [0], "default")
    ticket = broker.shards.read_ticket("default", "w1", block_ms=0)
    assert ticket is not None
    claim = broker.shards.claim(ticket, worker="w1", nonce="n1", ttl_ms=60_000)
    assert isinstance(claim, Claim)
    broker.experiments.set_command(experiment, "stop")
    leader = Leader(broker, "c1", epoch, contact_since_ms=0)
    leader.wait(broker.conn.now_ms())
    assert broker.experiments.status(experiment).state == "stopping"
    broker.shards.release(claim.lease)


def test_the_final_state_waits_for_workers_to_release_and_the_trainer_to_leave(
    broker: Broker, coordinate: Callable[[], StopFlag]
) -> None:
    coordinate()
    experiment = submit(broker, faults={"lease_ttl": 30})
    claims = [take(broker, ttl_ms=30_000)[1] for _ in range(2)]
    seat = broker.seats.claim_seat(experiment, "t1", ttl_ms=30_000)
    assert seat is not None
    broker.experiments.finish(experiment, seat, "completed", "budget reached", {"best_return": 500.0})
    assert await_state(broker, experiment, "stopping") == "budget reached"
    for claim in claims:
        broker.shards.release(claim.lease)
    eventually(lambda: shard_states(broker, experiment) == ["stopped", "stopped"])
    assert state(broker, experiment) == "stopping"
    broker.seats.release_seat(experiment, seat)
    assert await_state(broker, experiment, "completed") == "budget reached"
    assert broker.experiments.status(experiment).result == {"best_return": 500.0}


def test_an_end_that_a_broker_which_went_back_took_away_leaves_the_shards_their_snapshots(broker: Broker) -> None:
    """A leader decides, is frozen, and writes when the broker knows nothing of the stop any more."""
    # Given an experiment whose end is due
    leader, experiment = lead(broker), submit(broker)
    leader.wait(broker.conn.now_ms())
    own, raw = keys.shard(experiment, 0, 0), broker.conn.main
    kept = keys.snapshot(experiment, 0, 0, 1, "n1", 1)
    raw.set(kept, b"of an environment")
    raw.hset(own, "snapshot", kept)
    seat = broker.seats.claim_seat(experiment, "t1", ttl_ms=30_000)
    assert seat is not None
    broker.experiments.finish(experiment, seat, "completed", "budget reached", {})
    broker.seats.release_seat(experiment, seat)
    set_status = broker.experiments.set_status

    def after_it_went_back(experiment: str, state: Any, **options: Any) -> Any:
        if state == "completed":
            raw.hset(keys.ctl(experiment), mapping={"command": "run", "outcome": ""})
        return set_status(experiment, state, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(broker.experiments, "set_status", after_it_went_back)
        for _ in range(3):
            leader.tick(broker.conn.now_ms())
    assert raw.hget(keys.ctl(experiment), "command") == b"run"
    assert state(broker, experiment) != "completed"
    assert raw.exists(kept)
    # When it ends after all
    raw.hset(keys.ctl(experiment), mapping={"command": "stop", "outcome": "completed", "reason": "budget reached"})

    def ended() -> bool:
        leader.tick(broker.conn.now_ms())
        return state(broker, experiment) == "completed"

    eventually(ended)
    # Then they are gone
    assert not raw.exists(kept)
    assert not raw.hexists(own, "snapshot")


def test_a_clock_that_was_set_by_little_puts_reaping_off_by_as_much_and_is_told_once(broker: Broker) -> None:
    """What a leader is told by its coordinator: no real server here can have its clock set."""
    # Given a shard whose owner died, and a leader that could reap it
    leader, experiment = lead(broker), submit(broker)
    leader.wait(broker.conn.now_ms())
    claim = take(broker)[1]
    broker.conn.main.delete(keys.lease(experiment, 0, claim.lease.shard))
    broker.conn.main.zadd(keys.due(experiment, 0), {str(claim.lease.shard): 1})
    # When it hears twice that the clock was set
    at_ms = broker.conn.now_ms()
    for _ in range(2):
        leader.clock_was_set(Step(120.0, 150.0), at_ms)
    leader.tick(at_ms + 299)
    # Then it waits as long, and no longer
    assert "leased" in shard_states(broker, experiment)

    def reaps() -> bool:
        leader.tick(broker.conn.now_ms())
        return "leased" not in shard_states(broker, experiment)

    eventually(reaps, timeout_s=20)
    lines = [event.message for event in broker.events.read(None) if "clock was set" in event.message]
    assert lines == ["the broker's clock was set by +0.1 s; dead workers' shards wait as long, or a TTL"]


def test_what_a_coordinator_that_died_behind_an_end_left_is_dropped_by_the_next_one(
    broker: Broker, coordinate: Callable[[], StopFlag], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given an experiment of many shards, each with a snapshot, that ended, and nobody dropped any
    monkeypatch.setattr("heddle.broker.shards.BATCH", 2)
    first, experiment = lead(broker), submit(broker, env={"id": "CartPole-v1", "num_envs": 5, "envs_per_shard": 1})
    first.wait(broker.conn.now_ms())
    raw = broker.conn.main
    kept = [keys.snapshot(experiment, 0, shard, 1, "n1", 1) for shard in range(5)]
    for shard, snapshot in enumerate(kept):
        raw.set(snapshot, b"of an environment")
        raw.hset(keys.shard(experiment, 0, shard), "snapshot", snapshot)
    broker.experiments.set_status(experiment, "failed", leader_epoch=broker.conn.now_ms(), reason="it was told to")
    # When another coordinator begins to lead
    coordinate()
    # Then they go, a few in each of its rounds, and nothing of that is left
    eventually(lambda: not raw.exists(*kept), what="snapshots to be dropped")
    eventually(lambda: not raw.hexists(keys.ctl(experiment), "snapshots_from"))
    assert not any(raw.hexists(keys.shard(experiment, 0, shard), "snapshot") for shard in range(5))
    assert state(broker, experiment) == "failed"


@pytest.mark.parametrize("shards", ["1e3", "1000000000"])
def test_snapshots_of_a_run_that_has_no_end_of_them_keep_those_of_no_other_run(broker: Broker, shards: str) -> None:
    # Given two runs that ended, of the newer of which, whose turn is first, somebody wrote how many shards it has
    raw, leader = broker.conn.main, lead(broker)
    sound, hopeless = submit(broker, experiment={"name": "sound"}), submit(broker)
    leader.wait(broker.conn.now_ms())
    kept = keys.snapshot(sound, 0, 0, 1, "n1", 1)
    raw.set(kept, b"of an environment")
    raw.hset(keys.shard(sound, 0, 0), "snapshot", kept)
    for experiment in (hopeless, sound):
        broker.experiments.set_status(experiment, "failed", leader_epoch=broker.conn.now_ms())
    raw.hset(keys.ctl(hopeless), "shards", shards)
    # When a leader goes round three times
    following = Leader(broker, "c2", broker.conn.now_ms() + 1, contact_since_ms=0)
    following.take_over(broker.conn.now_ms())
    for _ in range(3):
        following.tick(broker.conn.now_ms())
    # Then those of the second are gone
    assert not raw.exists(kept) and not raw.hexists(keys.ctl(sound), "snapshots_from")


def test_shards_that_kill_every_worker_fail_the_experiment_with_the_workers_words(
    broker: Broker, coordinate: Callable[[], StopFlag]
) -> None:
    coordinate()
    experiment = submit(broker, env={"id": "CartPole-v1", "num_envs": 2, "envs_per_shard": 2})
    for _ in range(2):
        broker.shards.release(take(broker)[1].lease, error="RuntimeError: no such level", barren=True)
    reason = await_state(broker, experiment, "failed")
    assert reason == "every train shard is quarantined; shard 0: RuntimeError: no such level"
    assert broker.experiments.ctl(experiment).active == 0


def test_one_quarantined_shard_is_left_out_or_fails_all_as_the_spec_says(
    broker: Broker, coordinate: Callable[[], StopFlag]
) -> None:
    coordinate()
    patient = submit(broker, faults={"lease_ttl": 30, "barren_deaths": 1})
    broker.shards.release(take(broker, ttl_ms=30_000)[1].lease, error="boom", barren=True)
    eventually(lambda: broker.experiments.ctl(patient).active == 1)
    await_state(broker, patient, "running")
    take(broker, ttl_ms=30_000)
    strict = submit(
        broker, experiment={"name": "strict"}, faults={"lease_ttl": 30, "barren_deaths": 1, "on_quarantine": "fail"}
    )
    _, claim = take(broker, ttl_ms=30_000)
    broker.shards.release(claim.lease, error="boom", barren=True)
    assert await_state(broker, strict, "failed") == f"shard {claim.lease.shard} is quarantined: boom"


def test_a_stop_of_somebody_comes_before_the_quarantine_that_follows_it(
    broker: Broker, coordinate: Callable[[], StopFlag]
) -> None:
    coordinate()
    faults = {"lease_ttl": 30, "barren_deaths": 1, "on_quarantine": "fail"}
    experiment = submit(broker, faults=faults)
    claims = [take(broker, ttl_ms=30_000)[1] for _ in range(2)]
    epoch = broker.seats.claim_seat(experiment, "t-1-0", ttl_ms=30_000)
    assert epoch is not None
    # When somebody stops it, and a shard fails for good while it is given back
    broker.experiments.set_command(experiment, "stop")
    await_state(broker, experiment, "stopping")
    broker.shards.release(claims[0].lease, error="boom", barren=True)
    broker.shards.release(claims[1].lease)
    eventually(lambda: broker.experiments.ctl(experiment).active == 1)
    status = broker.experiments.status(experiment)
    assert (status.state, status.reason) == ("stopping", ""), "what a trainer would tell as a failure"
    broker.experiments.finish(experiment, epoch, "stopped", "stopped by command", {})
    broker.seats.release_seat(experiment, epoch)
    # Then it was stopped, and what came behind that is told behind it
    told = f"stopped by command; shard {claims[0].lease.shard} is quarantined: boom"
    assert await_state(broker, experiment, "stopped") == told


def test_a_shard_whose_quarantine_is_lifted_counts_again_and_is_played(
    broker: Broker, coordinate: Callable[[], StopFlag]
) -> None:
    coordinate()
    experiment = submit(broker, faults={"lease_ttl": 30, "barren_deaths": 1})
    _, claim = take(broker, ttl_ms=30_000)
    broker.shards.release(claim.lease, error="boom", barren=True)
    eventually(lambda: broker.experiments.ctl(experiment).active == 1)
    broker.shards.lift_quarantine(experiment, 0, claim.lease.shard)
    eventually(lambda: broker.experiments.ctl(experiment).active == 2, timeout_s=5)
    assert {take(broker, ttl_ms=30_000)[1].lease.shard, take(broker, ttl_ms=30_000)[1].lease.shard} == {0, 1}


def test_a_quota_follows_the_workers_that_are_here(broker: Broker, coordinate: Callable[[], StopFlag]) -> None:
    coordinate()
    submit(broker)
    broker.pools.heartbeat(WorkerBeat("w1", shards=2))
    broker.pools.heartbeat(WorkerBeat("w2", shards=0))
    eventually(lambda: (broker.pools.pool("default").floor, broker.pools.pool("default").below) == (1, 1))
    assert broker.pools.heartbeat(WorkerBeat("w1", shards=2)).someone_below
    broker.pools.drain("w2")
    broker.pools.heartbeat(WorkerBeat("w2", state="draining"))
    eventually(lambda: (broker.pools.pool("default").live, broker.pools.pool("default").ceil) == (1, 2))


def test_a_removed_experiment_is_forgotten_and_the_others_go_on(
    broker: Broker, coordinate: Callable[[], StopFlag]
) -> None:
    coordinate()
    gone = submit(broker)
    kept = submit(broker, experiment={"name": "kept"})
    await_state(broker, gone, "running")
    await_state(broker, kept, "running")
    broker.experiments.remove(gone, force=True)
    with pytest.raises(Gone):
        broker.experiments.status(gone)
    broker.experiments.set_command(kept, "pause")
    await_state(broker, kept, "paused")


def test_what_is_removed_while_it_is_admitted_ends_nobodys_term(broker: Broker) -> None:
    leader, gone, kept = lead(broker), submit(broker), submit(broker, experiment={"name": "kept"})
    create = broker.shards.create

    def removed_meanwhile(experiment: str, *args: Any, **options: Any) -> int:
        if experiment == gone:
            broker.experiments.remove(experiment, force=True)
        return create(experiment, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(broker.shards, "create", removed_meanwhile)
        leader.wait(broker.conn.now_ms())
    assert state(broker, kept) == "running"
    assert broker.experiments.queue_waiting() == []


def test_what_is_removed_while_a_new_leader_looks_around_does_not_end_its_term(broker: Broker) -> None:
    gone, kept = submit(broker), submit(broker, experiment={"name": "kept"})
    lead(broker).wait(broker.conn.now_ms())
    broker.conn.main.hset(keys.spec(gone), "protocol", "99")  # so that the next one refuses it
    set_status = broker.experiments.set_status

    def removed_meanwhile(experiment: str, *args: Any, **options: Any) -> Any:
        broker.experiments.remove(experiment, force=True)
        return set_status(experiment, *args, **options)

    leader = lead(broker)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(broker.experiments, "set_status", removed_meanwhile)
        leader.take_over(broker.conn.now_ms())
    assert leader.experiments == (kept,)


def test_an_entry_that_only_fails_is_turned_away_with_the_reason_and_the_next_is_admitted(broker: Broker) -> None:
    leader, odd, kept = lead(broker), submit(broker), submit(broker, experiment={"name": "kept"})
    create = broker.shards.create

    def odd_create(experiment: str, *args: Any, **options: Any) -> int:
        if experiment == odd:
            raise ZeroDivisionError("no shards")
        return create(experiment, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(broker.shards, "create", odd_create)
        leader.wait(broker.conn.now_ms())
    assert (state(broker, odd), state(broker, kept)) == ("failed", "running")
    assert broker.experiments.status(odd).reason == "it cannot be admitted: ZeroDivisionError: no shards"
    assert broker.experiments.queue_waiting() == []


def test_an_admission_whose_leader_died_before_the_state_moved_is_taken_up_again(
    broker: Broker, coordinate: Callable[[], StopFlag]
) -> None:
    experiment = submit(broker)
    with pytest.MonkeyPatch.context() as patch:

        def full(*_: Any, **__: Any) -> None:
            raise BrokerFull("for now")

        patch.setattr(broker.experiments, "set_active", full)
        lead(broker).wait(broker.conn.now_ms())  # shards and tickets are there, and then this leader is no more
    assert state(broker, experiment) == "queued"
    coordinate()
    await_state(broker, experiment, "running", 6.0)
    eventually(lambda: broker.experiments.queue_waiting() == [])


def test_shards_that_the_broker_forgot_right_after_their_admission_are_made_again(
    broker: Broker, coordinate: Callable[[], StopFlag]
) -> None:
    coordinate()
    experiment = submit(broker)
    eventually(lambda: broker.experiments.status(experiment).state == "running")
    broker.conn.main.unlink(*(keys.shard(experiment, 0, shard) for shard in range(2)), keys.queued(experiment, 0))
    broker.conn.main.hdel(keys.ctl(experiment), "shards")
    eventually(lambda: len(broker.shards.shards(experiment, 0)) == 2)
    eventually(lambda: len(broker.shards.tickets_of(experiment, 0)) == 2)


def test_tickets_of_a_removal_that_was_cut_short_do_not_stay(
    broker: Broker, coordinate: Callable[[], StopFlag]
) -> None:
    coordinate()
    experiment = submit(broker)
    await_state(broker, experiment, "running")
    assert eventually(lambda: broker.shards.read_ticket("default", "dead", block_ms=100))
    broker.conn.main.unlink(keys.ctl(experiment))  # the first step of a removal
    eventually(lambda: broker.conn.main.xlen(keys.pool_tickets("default")) == 0)


def test_of_two_coordinators_one_leads_and_hands_over_at_once(
    broker: Broker, coordinate: Callable[[], StopFlag]
) -> None:
    first = coordinate()
    leader = eventually(broker.coordinators.leader)
    assert leader is not None
    coordinate()
    first.drain("scaled down")
    eventually(
        lambda: (now := broker.coordinators.leader()) is not None and now.coordinator != leader.coordinator,
        timeout_s=1.5,
    )
    await_state(broker, submit(broker), "running")


PROCESS = """
import sys
from heddle.clock import SystemClock
from heddle.coord.coordinator import Coordinator
from heddle.stop import StopFlag
Coordinator(sys.argv[1], stop=StopFlag(), coordinator_id="doomed").run()
"""


def test_a_killed_leader_is_replaced_within_four_seconds_and_nothing_it_had_read_is_lost(
    server: LocalServer, broker: Broker, coordinate: Callable[[], StopFlag]
) -> None:
    doomed = subprocess.Popen([sys.executable, "-c", PROCESS, server.url])
    try:
        eventually(lambda: broker.coordinators.leader() is not None)
        before = submit(broker)
        await_state(broker, before, "running")
        coordinate()
        doomed.send_signal(signal.SIGSTOP)  # frozen, so that it reads nothing more
        during = submit(broker, experiment={"name": "during"})
        broker.conn.main.xreadgroup(keys.QUEUE_GROUP, "doomed", {keys.QUEUE: ">"})  # read, and never admitted
    finally:
        doomed.kill()
        doomed.wait()
    eventually(lambda: (now := broker.coordinators.leader()) is not None and now.coordinator != "doomed", timeout_s=4.0)
    await_state(broker, during, "running")
    broker.experiments.set_command(before, "pause")
    await_state(broker, before, "paused")


def test_a_frozen_leader_that_thaws_finds_that_it_leads_no_more(
    server: LocalServer, broker: Broker, coordinate: Callable[[], StopFlag]
) -> None:
    frozen = subprocess.Popen([sys.executable, "-c", PROCESS, server.url])
    try:
        eventually(lambda: broker.coordinators.leader() is not None)
        coordinate()
        frozen.send_signal(signal.SIGSTOP)
        leader = eventually(
            lambda: now if (now := broker.coordinators.leader()) and now.coordinator != "doomed" else None
        )
        frozen.send_signal(signal.SIGCONT)
        experiment = submit(broker)
        await_state(broker, experiment, "running")
        assert leader is not None
        assert broker.experiments.ctl(experiment).leader_epoch == leader.epoch
    finally:
        frozen.kill()
        frozen.wait()


def test_it_goes_on_after_the_broker_was_killed_and_came_back(
    tmp_path: Path, coordinate: Callable[[], StopFlag], server: LocalServer, broker: Broker
) -> None:
    coordinate()
    experiment = submit(broker)
    take(broker, ttl_ms=60_000)
    await_state(broker, experiment, "running")
    os.kill(server.pid, signal.SIGKILL)
    eventually(lambda: not server.is_running())
    with restart(server) as again:
        fresh = open_broker(again.url, role="test")
        after = submit(fresh, experiment={"name": "after"})
        await_state(fresh, after, "running", 5.0)
        fresh.experiments.set_command(experiment, "pause")
        await_state(fresh, experiment, "paused")
        fresh.close()


def test_a_worker_that_outlives_a_long_outage_of_the_broker_keeps_its_shard(
    coordinate: Callable[[], StopFlag], server: LocalServer, broker: Broker
) -> None:
    # Given a worker with a lease of one second
    coordinate()
    experiment = submit(broker, env={"id": "CartPole-v1", "num_envs": 2}, faults={"lease_ttl": 1.0})
    _, claim = take(broker, ttl_ms=1_000)
    await_state(broker, experiment, "running")
    # When the broker is away for longer than that
    os.kill(server.pid, signal.SIGKILL)
    eventually(lambda: not server.is_running())
    SystemClock().sleep(1.5)
    with restart(server) as again:
        fresh = open_broker(again.url, role="test")
        eventually(lambda: (now := fresh.coordinators.leader()) is not None and now.left_ms > 0)
        SystemClock().sleep(0.5)  # the coordinator is back for half a TTL and has seen that the lease is over
        # Then the worker, back as well, still owns it
        [renewal] = fresh.shards.renew(experiment, 0, [(claim.lease, False)], ttl_ms=1_000)
        assert renewal.status == "OK"
        # And when it falls silent for good, it loses it
        eventually(lambda: shard_states(fresh, experiment) == ["queued"], timeout_s=3.0)
        fresh.close()


def test_a_leader_that_lost_sight_of_the_broker_before_its_first_round_reaps_no_living_worker(
    broker: Broker, coordinate: Callable[[], StopFlag], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a worker with a lease of one second, under a leader that left
    first = coordinate()
    experiment = submit(broker, env={"id": "CartPole-v1", "num_envs": 2}, faults={"lease_ttl": 1.0})
    _, claim = take(broker, ttl_ms=1_000)
    await_state(broker, experiment, "running")
    first.drain("replaced")
    eventually(lambda: (now := broker.coordinators.leader()) is None or now.left_ms == 0)
    broker.shards.renew(experiment, 0, [(claim.lease, False)], ttl_ms=1_000)
    # When the next one gets the lead, and then nobody reaches the broker for longer than the lease
    take_over, away = Leader.take_over, threading.Event()

    def late(leader: Leader, now_ms: int) -> None:
        if not away.is_set():
            away.set()
            SystemClock().sleep(1.5)
            raise BrokerUnreachable("no answer")
        take_over(leader, now_ms)

    monkeypatch.setattr(Leader, "take_over", late)
    coordinate()
    assert away.wait(5)
    SystemClock().sleep(2.0)  # half a second and a little after the broker is back
    # Then the worker, back as well, still owns its shard
    [renewal] = broker.shards.renew(experiment, 0, [(claim.lease, False)], ttl_ms=1_000)
    assert renewal.status == "OK"
    eventually(lambda: shard_states(broker, experiment) == ["queued"], timeout_s=3.0)


def test_out_of_memory_does_not_keep_a_dead_workers_shard_from_being_reaped(
    broker: Broker, coordinate: Callable[[], StopFlag]
) -> None:
    coordinate()
    experiment = submit(broker, env={"id": "CartPole-v1", "num_envs": 2})
    take(broker)
    await_state(broker, experiment, "running")
    broker.conn.main.config_set("maxmemory", "1")
    eventually(lambda: shard_states(broker, experiment) == ["queued"], what="reaped")
    broker.conn.main.config_set("maxmemory", "0")
    take(broker, "w2")


def test_every_change_of_state_is_one_line_in_the_log(broker: Broker, coordinate: Callable[[], StopFlag]) -> None:
    coordinate()
    experiment = submit(broker)
    await_state(broker, experiment, "running")
    broker.experiments.set_command(experiment, "stop")
    await_state(broker, experiment, "stopped")
    said = [event.message for event in broker.events.read(experiment) if event.role == "coordinator"]
    assert said == [
        "admitted pool=default shards=2",
        "counted active=2 active_eval=0",
        "running",
        "stopping",
        "stopped reason='no trainer was there to end it'",
    ]


def said_of(broker: Broker, experiment: str, verb: str) -> list[tuple[str, str]]:
    """(level, line) of what the coordinator said with that verb."""
    return [(one.level, one.message) for one in broker.events.read(experiment) if one.message.startswith(f"{verb} ")]


def test_a_trainer_that_falls_silent_is_told_by_name_once_and_one_that_left_is_not(broker: Broker) -> None:
    leader, experiment = lead(broker), submit(broker, faults={"lease_ttl": 30})
    leader.wait(broker.conn.now_ms())
    # Given one that left
    epoch = broker.seats.claim_seat(experiment, "t1", ttl_ms=30_000)
    assert epoch is not None and broker.seats.release_seat(experiment, epoch)
    leader.tick(broker.conn.now_ms())
    # When the next one falls silent
    broker.seats.claim_seat(experiment, "t2", ttl_ms=50)
    eventually(lambda: broker.seats.holder(experiment) is None)
    for later_ms in (0, 2_000, 4_000):
        leader.tick(broker.conn.now_ms() + later_ms)
    # Then only that is told, once
    told = "misses trainer=t2 because='it does not renew its seat: it ended, is frozen or is cut off'"
    assert said_of(broker, experiment, "misses") == [("warning", told)]


@pytest.mark.parametrize("cap", [1, 100], ids=["the stream is full", "the server has no room"])
def test_shards_that_wait_for_room_for_long_are_told_with_their_trainer_where_the_stream_is_full(
    broker: Broker, cap: int
) -> None:
    leader, experiment = lead(broker), submit(broker, faults={"lease_ttl": 60})
    leader.wait(broker.conn.now_ms())
    broker.seats.claim_seat(experiment, "t1", ttl_ms=60_000)
    # Given a shard whose second batch finds no room
    broker.conn.main.hset(keys.ctl(experiment), "max_entries", 1)
    lease = take(broker, ttl_ms=60_000)[1].lease
    assert [append(broker, lease, seq).status for seq in (1, 2)] == ["OK", "FULL"]
    broker.conn.main.hset(keys.ctl(experiment), "max_entries", cap)
    # When that lasts
    for later_ms in range(0, 16_000, 1_500):
        leader.tick(broker.conn.now_ms() + later_ms)
    # Then it is told once, unless something else keeps it out
    told = "full batches=1 waiting_shards=1 trainer=t1 because='its trainer does not keep up'"
    assert said_of(broker, experiment, "full") == ([("info", told)] if cap == 1 else [])


def test_leases_that_nobody_could_renew_while_the_broker_refused_every_write_are_not_reaped(
    broker: Broker, coordinate: Callable[[], StopFlag], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a coordinator that is quick to come back, and a worker with a lease of half a second
    monkeypatch.setattr("heddle.coord.coordinator.RETRY_LAST_S", 0.05)
    coordinate()
    experiment = submit(broker)
    claim = take(broker, ttl_ms=500)[1]
    await_state(broker, experiment, "running")
    raw, clock = broker.conn.main, SystemClock()
    for _ in range(2):
        # When every write is refused for longer than that, as with a full disk, and the worker can renew late only
        raw.config_set("min-replicas-to-write", 1)
        with pytest.raises(BrokerBlocked):
            broker.shards.renew(experiment, 0, [(claim.lease, False)], ttl_ms=500)
        clock.sleep(0.8)
        raw.config_set("min-replicas-to-write", 0)
        clock.sleep(0.4)
        # Then it still holds its shard
        (renewal,) = broker.shards.renew(experiment, 0, [(claim.lease, False)], ttl_ms=500)
        assert renewal.status == "OK"
    # And one that does not come back is reaped as ever
    eventually(lambda: broker.shards.shards(experiment, 0)[claim.lease.shard].state == "queued", timeout_s=3)
