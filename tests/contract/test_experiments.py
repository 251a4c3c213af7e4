"""Experiments: submitted whole or not at all, one active per name, stopped for good, removed to the last key."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from heddle.broker import Broker, keys, open_broker
from heddle.broker.acl import ROLES
from heddle.broker.experiments import Experiments
from heddle.broker.server import LocalServer
from heddle.errors import BrokerFull, Conflict, Gone, LeaderLost, NotFound, SeatLost
from heddle.shard import ShardPlan
from tests.contract.specs import all_keys, out_of_memory, submission, submitted


@pytest.fixture
def broker(any_broker: Broker) -> Broker:
    """Every server, the fake one too."""
    return any_broker


@pytest.fixture
def real_broker(redis_server: LocalServer) -> Iterator[Broker]:
    """For what a fake server does not do: memory limits, blocking reads, idle times."""
    with open_broker(redis_server.url, role="test") as connected:
        yield connected


class Died(BaseException):
    """The client is gone; no handler of the code under test may catch it."""


class MortalMain:
    """redis-py's client as `MortalConnection` lets it be seen: every call is a chance to die."""

    def __init__(self, mortal: "MortalConnection", main: Any) -> None:
        self._mortal = mortal
        self._main = main

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._main, name)
        return lambda *args, **options: self._mortal.call(lambda: method(*args, **options))


class MortalConnection:
    """A connection whose client dies at its nth call: before it is sent, or after it was done and before the reply."""

    def __init__(self, conn: Any, calls: int, after: bool) -> None:
        self._conn = conn
        self.left = calls
        self._after = after
        self.main = MortalMain(self, conn.main)

    def call(self, do: Any) -> Any:
        self.left -= 1
        if self.left == 0 and not self._after:
            raise Died
        reply = do()
        if self.left == 0:
            raise Died
        return reply

    def script(self, *args: Any) -> Any:
        return self.call(lambda: self._conn.script(*args))

    def pipeline(self) -> Any:
        return self._conn.pipeline()

    def blocking(self) -> Any:
        return self._conn.blocking()


def let_time_pass(broker: Broker) -> None:
    """Let every key that has a TTL reach it."""
    main = broker.conn.main
    for key in list(main.scan_iter()):
        if main.pttl(key) > 0:
            main.unlink(key)


def deaths(broker: Broker) -> list[tuple[int, bool]]:
    """Every point at which a submit can be cut short."""
    counter = MortalConnection(broker.conn, 10**6, after=False)
    Experiments(counter).submit(*submission("counted"), suffix="0000")  # type: ignore[arg-type]
    broker.conn.main.flushall()
    return [(call, after) for call in range(1, 10**6 - counter.left + 1) for after in (False, True)]


# ---- submit


def test_a_submitted_experiment_is_queued_listed_and_told_to_run(broker: Broker) -> None:
    spec = submission(limits={"max_entries": 7, "max_bytes": 9}, rollout={"sync": True}, faults={"barren_deaths": 3})
    made = broker.experiments.submit(*spec, suffix=np.random.default_rng(1), owner="ada", resume_from="old-1")
    assert made.created and made.id.startswith("cartpole-")
    ctl = broker.experiments.ctl(made.id)
    assert (ctl.command, ctl.policy, ctl.rev, ctl.sync, ctl.max_entries, ctl.max_bytes) == ("run", 0, 1, True, 7, 9)
    assert broker.conn.main.hget(keys.ctl(made.id), "barren_deaths") == b"3"
    stored = broker.experiments.spec(made.id)
    assert (stored.json, stored.toml, stored.sha256, stored.name) == spec
    assert (stored.owner, stored.resume_from, stored.protocol) == ("ada", "old-1", keys.PROTOCOL)
    status = broker.experiments.status(made.id)
    assert (status.state, status.name, status.pool, status.created_ms) == (
        "queued",
        "cartpole",
        "default",
        stored.created_ms,
    )
    assert [listed.experiment for listed in broker.experiments.ls()] == [made.id]
    assert [entry.experiment for entry in broker.experiments.queue_read("c1")] == [made.id]
    groups = broker.conn.main.xinfo_groups(keys.experience(made.id, 0))
    assert [(group["name"], group["last-delivered-id"]) for group in groups] == [(b"trainer", b"0-0")]
    assert all(broker.conn.main.pttl(key) == -1 for key in all_keys(broker))


def test_a_leader_that_lost_its_lease_before_a_submit_cannot_admit_it(broker: Broker) -> None:
    old = broker.coordinators.claim_leader("c1")
    assert old is not None
    broker.coordinators.release_leader("c1", old)
    new = broker.coordinators.claim_leader("c2")
    assert new is not None
    experiment = submitted(broker)
    with pytest.raises(LeaderLost):
        broker.experiments.set_status(experiment, "running", leader_epoch=old)
    assert broker.experiments.set_status(experiment, "running", leader_epoch=new) == "running"


def test_the_same_spec_while_active_is_the_same_experiment_and_is_queued_once(broker: Broker) -> None:
    first = submitted(broker, suffix="aaaa")
    again = broker.experiments.submit(*submission(), suffix="bbbb")
    assert (again.id, again.created) == (first, False)
    assert [entry.experiment for entry in broker.experiments.queue_waiting()] == [first]
    assert len(broker.experiments.ls()) == 1


def test_a_lost_queue_entry_is_added_again_by_the_same_submit(broker: Broker) -> None:
    first = submitted(broker)
    broker.conn.main.delete(keys.QUEUE)
    submitted(broker, suffix="bbbb")
    assert [entry.experiment for entry in broker.experiments.queue_waiting()] == [first]


def test_an_admitted_experiment_is_not_queued_again(broker: Broker) -> None:
    first = submitted(broker)
    (entry,) = broker.experiments.queue_read("c1")
    broker.experiments.set_status(first, "running", leader_epoch=1)
    broker.experiments.queue_ack(entry)
    submitted(broker, suffix="bbbb")
    assert broker.experiments.queue_waiting() == []


def test_another_spec_under_an_active_name_is_refused_with_the_ways_on(broker: Broker) -> None:
    first = submitted(broker)
    with pytest.raises(Conflict) as refused:
        submitted(broker, suffix="bbbb", env={"id": "Other"})
    assert all(part in str(refused.value) for part in (first, "--name", "heddle stop", "heddle rm"))
    assert len(broker.experiments.ls()) == 1


@pytest.mark.parametrize("how", ["finished", "stopped", "failed", "removed"])
def test_after_the_earlier_run_ended_the_same_spec_is_a_new_run(broker: Broker, how: str) -> None:
    first = submitted(broker, suffix="aaaa")
    if how == "finished":
        seat = broker.seats.claim_seat(first, "t1")
        assert seat
        broker.experiments.finish(first, seat, "completed", "", {})
    elif how == "stopped":
        broker.experiments.set_command(first, "stop")
    elif how == "failed":
        broker.experiments.set_status(first, "failed", leader_epoch=1)
    else:
        broker.experiments.remove(first, force=True)
    again = broker.experiments.submit(*submission(), suffix="bbbb")
    assert again.created and again.id == "cartpole-bbbb"
    assert broker.experiments.resolve("cartpole") == again.id


def test_an_id_is_never_given_twice(broker: Broker) -> None:
    first = submitted(broker, suffix="aaaa")
    broker.experiments.set_command(first, "stop")
    with pytest.raises(Conflict, match="exists already"):
        submitted(broker, suffix="aaaa")


def test_what_a_broker_forgot_in_the_middle_of_a_submit_is_announced_again(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a broker that loses its tail just before it hears the submit's last command
    script, forgotten = broker.conn.script, list[str]()

    def forgetful(name: str, own: Any, args: Any) -> Any:
        if name == "submit_confirm" and not forgotten:
            forgotten.append(name)
            broker.conn.main.delete(keys.EXPERIMENTS, keys.QUEUE)
        return script(name, own, args)

    monkeypatch.setattr(broker.conn, "script", forgetful)
    # When somebody submits
    experiment = submitted(broker)
    # Then what is told to be there is listed and waits for its admission
    assert forgotten and [one.experiment for one in broker.experiments.ls()] == [experiment]
    assert [entry.experiment for entry in broker.experiments.queue_waiting()] == [experiment]


def test_a_client_that_dies_at_any_point_of_a_submit_leaves_what_a_repeat_completes(broker: Broker) -> None:
    for call, after in deaths(broker):
        broker.conn.main.flushall()
        with pytest.raises(Died):
            Experiments(MortalConnection(broker.conn, call, after)).submit(  # type: ignore[arg-type]
                *submission(), suffix="aaaa"
            )
        made = broker.experiments.submit(*submission(), suffix="bbbb")
        assert [status.experiment for status in broker.experiments.ls()] == [made.id], (call, after)
        let_time_pass(broker)
        assert {entry.experiment for entry in broker.experiments.queue_read("c1")} == {made.id}, (call, after)
        assert broker.experiments.spec(made.id).name == "cartpole"
        own = {key for key in all_keys(broker) if "{" in key}
        assert own == {key(made.id) for key in (keys.spec, keys.ctl, keys.status)} | {keys.experience(made.id, 0)}


def test_a_client_that_dies_at_any_point_of_a_submit_blocks_nobody_for_ever(broker: Broker) -> None:
    for call, after in deaths(broker):
        broker.conn.main.flushall()
        with pytest.raises(Died):
            Experiments(MortalConnection(broker.conn, call, after)).submit(  # type: ignore[arg-type]
                *submission(), suffix="aaaa"
            )
        if call % 2:
            # A coordinator is there: what was queued is admitted.
            admitted = broker.experiments.queue_read("c1")
            let_time_pass(broker)
            for entry in admitted:
                assert broker.experiments.spec(entry.experiment).name == "cartpole"
        let_time_pass(broker)
        visible = broker.experiments.ls()
        if visible:
            assert visible[0].state == "queued"
            broker.experiments.remove(visible[0].experiment)
        assert broker.experiments.submit(*submission(env={"id": "Other"}), suffix="bbbb").created, (call, after)
        left = {entry.experiment for entry in broker.experiments.queue_read("c2")} - {"cartpole-bbbb"}
        assert left == set(), (call, after)


def test_a_submit_that_finds_no_memory_says_so_and_stores_nothing(real_broker: Broker) -> None:
    broker = real_broker
    with out_of_memory(broker), pytest.raises(BrokerFull):
        submitted(broker)
    assert all_keys(broker) == set()


# ---- find


def test_an_experiment_is_found_by_id_and_by_the_name_of_its_newest_run(broker: Broker) -> None:
    old = submitted(broker, suffix="aaaa")
    broker.experiments.set_command(old, "stop")
    new = submitted(broker, suffix="bbbb")
    assert broker.experiments.resolve(old) == old
    assert broker.experiments.resolve("cartpole") == new
    broker.experiments.remove(new, force=True)
    assert broker.experiments.resolve("cartpole") == old


def test_what_is_not_there_is_answered_with_what_comes_close(broker: Broker) -> None:
    submitted(broker)
    with pytest.raises(NotFound, match="did you mean cartpole-aaaa"):
        broker.experiments.resolve("cartpole-aaab")
    with pytest.raises(NotFound, match="heddle ls"):
        broker.experiments.resolve("zzz")
    with pytest.raises(NotFound):
        broker.experiments.spec("zzz")
    with pytest.raises(Gone):
        broker.experiments.status("zzz")


# ---- command


def test_a_command_is_compared_and_set_and_repeating_one_changes_nothing(broker: Broker) -> None:
    experiment = submitted(broker)
    paused = broker.experiments.set_command(experiment, "pause", rev=1)
    assert (paused.command, paused.rev) == ("pause", 2)
    assert broker.experiments.set_command(experiment, "pause", rev=1).rev == 2
    with pytest.raises(Conflict, match="rev 2"):
        broker.experiments.set_command(experiment, "run", rev=1)
    assert broker.experiments.set_command(experiment, "run").command == "run"


def test_stop_cannot_be_undone(broker: Broker) -> None:
    experiment = submitted(broker)
    broker.experiments.set_command(experiment, "stop")
    assert broker.experiments.set_command(experiment, "stop").command == "stop"
    for command in ("run", "pause"):
        with pytest.raises(Conflict, match="cannot be undone"):
            broker.experiments.set_command(experiment, command)


def test_an_experiment_that_is_over_takes_no_command_but_stop(broker: Broker) -> None:
    experiment = submitted(broker)
    broker.experiments.set_status(experiment, "completed", leader_epoch=1)
    assert broker.experiments.set_command(experiment, "stop").command == "stop"
    with pytest.raises(Conflict, match="is completed.*--resume"):
        broker.experiments.set_command(experiment, "run")


def test_a_trainer_that_lost_its_seat_can_stop_nothing(broker: Broker) -> None:
    experiment = submitted(broker)
    lost = broker.seats.claim_seat(experiment, "t1")
    assert lost
    broker.seats.release_seat(experiment, lost)
    seat = broker.seats.claim_seat(experiment, "t2")
    assert seat
    with pytest.raises(SeatLost):
        broker.experiments.set_command(experiment, "stop", seat_epoch=lost)
    assert broker.experiments.ctl(experiment).command == "run"
    assert broker.experiments.set_command(experiment, "stop", seat_epoch=seat).command == "stop"
    with pytest.raises(SeatLost):
        broker.experiments.set_command(experiment, "stop", seat_epoch=lost)


def test_a_leader_that_another_replaced_can_stop_nothing(broker: Broker) -> None:
    experiment = submitted(broker)
    broker.experiments.set_status(experiment, "running", leader_epoch=7)
    with pytest.raises(LeaderLost):
        broker.experiments.set_command(experiment, "stop", leader_epoch=6)
    assert broker.experiments.ctl(experiment).command == "run"
    assert broker.experiments.set_command(experiment, "stop", leader_epoch=7).command == "stop"


def test_commands_to_what_was_removed_are_gone(broker: Broker) -> None:
    before = all_keys(broker)
    with pytest.raises(Gone):
        broker.experiments.set_command("cartpole-aaaa", "run")
    with pytest.raises(Gone):
        broker.experiments.set_status("cartpole-aaaa", "running", leader_epoch=1)
    with pytest.raises(Gone):
        broker.experiments.set_active("cartpole-aaaa", leader_epoch=1, active=1, active_eval=0)
    with pytest.raises(Gone):
        broker.experiments.finish("cartpole-aaaa", 1, "completed", "", {})
    assert all_keys(broker) == before


# ---- state and outcome


def test_an_end_is_written_only_while_what_it_was_decided_on_still_holds(broker: Broker) -> None:
    """Seed 90409: the broker was killed in between, and back before the trainer had settled and told anything."""
    experiment = submitted(broker)
    end = partial(broker.experiments.set_status, experiment, "stopped", leader_epoch=7)
    broker.experiments.set_status(experiment, "running", leader_epoch=7)
    assert end(decided_on=("", 0)) == "running"  # nobody stopped it
    broker.experiments.set_command(experiment, "stop")
    assert end(decided_on=("stopped", 0)) == "running"  # nobody told its end
    broker.conn.main.hset(keys.flow(experiment, 0), "entries", 3)
    assert end(decided_on=("", 2)) == "running"
    broker.conn.main.zadd(keys.due(experiment, 0), {"0": 1e15, "by hand": 1e300, "007": 1.0})
    broker.conn.main.hset(keys.shard(experiment, 0, 0), "state", "leased")
    assert end(decided_on=("", 3)) == "running"  # a worker holds a shard
    broker.conn.main.hset(keys.shard(experiment, 0, 0), "state", "stopped")
    seat = broker.seats.claim_seat(experiment, "t1")
    assert end(decided_on=("", 3)) == "running"  # a trainer has the seat
    assert seat is not None
    broker.seats.release_seat(experiment, seat)
    broker.conn.main.hset(keys.seat(experiment), "by hand", "1")
    assert end(decided_on=("", 3)) == "stopped"


def test_states_are_written_by_the_leader_alone_and_final_ones_stay(broker: Broker) -> None:
    experiment = submitted(broker)
    assert broker.experiments.set_status(experiment, "running", leader_epoch=7) == "running"
    with pytest.raises(LeaderLost):
        broker.experiments.set_status(experiment, "paused", leader_epoch=6)
    with pytest.raises(LeaderLost):
        broker.experiments.set_active(experiment, leader_epoch=6, active=1, active_eval=1)
    broker.experiments.set_active(experiment, leader_epoch=7, active=4, active_eval=2)
    assert broker.experiments.set_status(experiment, "failed", leader_epoch=7, reason="no env") == "failed"
    assert broker.experiments.set_status(experiment, "running", leader_epoch=8) == "failed"
    status = broker.experiments.status(experiment)
    assert (status.state, status.reason, status.ended) == ("failed", "no env", True)
    assert (status.command, status.outcome, status.active, status.active_eval) == ("stop", "failed", 4, 2)
    assert 0 < status.created_ms <= status.started_ms <= status.ended_ms


def test_the_holder_of_the_seat_ends_an_experiment_and_its_first_word_stays(broker: Broker) -> None:
    experiment = submitted(broker)
    early = broker.seats.claim_seat(experiment, "t1")
    assert early
    broker.seats.release_seat(experiment, early)
    seat = broker.seats.claim_seat(experiment, "t2")
    assert seat
    with pytest.raises(SeatLost):
        broker.experiments.finish(experiment, early, "failed", "late", {})
    result = {"return": float("nan"), "env_steps": 10}
    assert broker.experiments.finish(experiment, seat, "completed", "budget", result) == "completed"
    assert broker.experiments.finish(experiment, seat, "failed", "again", {}) == "completed"
    status = broker.experiments.status(experiment)
    assert (status.command, status.outcome, status.reason) == ("stop", "completed", "budget")
    assert status.result == {"return": None, "env_steps": 10}


def test_an_experiment_can_be_stopped_ended_and_removed_when_the_broker_is_out_of_memory(real_broker: Broker) -> None:
    broker = real_broker
    experiment = submitted(broker)
    with out_of_memory(broker):
        seat = broker.seats.claim_seat(experiment, "t1")
        assert seat
        broker.experiments.set_command(experiment, "pause")
        broker.experiments.set_active(experiment, leader_epoch=1, active=3, active_eval=0)
        broker.experiments.finish(experiment, seat, "completed", "budget", {})
        broker.experiments.set_status(experiment, "completed", leader_epoch=1)
        broker.experiments.remove(experiment)
    assert all_keys(broker) == {keys.QUEUE}


# ---- remove


def populate(broker: Broker, experiment: str) -> None:
    """Give an experiment keys of every kind, some of them by the hundred."""
    pipe = broker.conn.pipeline()
    for p in (0, 1):
        for i in range(300):
            pipe.hset(keys.shard(experiment, p, i), "state", "queued")
            pipe.set(keys.blob(experiment, p, i, 1, "n", 1), b"x")
    pipe.execute()
    broker.events.metrics_add(experiment, 1, {"return": 1.0})
    seat = broker.seats.claim_seat(experiment, "t1")
    assert seat
    broker.policies.publish(experiment, seat, 1, b"weights", update=1)


def test_remove_leaves_no_key_and_touches_nothing_of_others(broker: Broker) -> None:
    experiment = submitted(broker, suffix="aaaa")
    other = submitted(broker, name="cartpole-aaaa", suffix="bbbb")
    kept = all_keys(broker) - {key for key in all_keys(broker) if "{cartpole-aaaa.0}" in key}
    populate(broker, experiment)
    broker.experiments.remove(experiment)
    assert all_keys(broker) == kept - {keys.name("cartpole")}
    assert [status.experiment for status in broker.experiments.ls()] == [other]
    assert [entry.experiment for entry in broker.experiments.queue_waiting()] == [other]
    broker.experiments.remove(experiment)


def test_remove_takes_the_tickets_along_also_one_whose_reader_died(broker: Broker) -> None:
    experiment = submitted(broker)
    broker.shards.create(experiment, 0, [ShardPlan(i, "train", i, 1) for i in range(2)], leader_epoch=1)
    broker.shards.queue_tickets(experiment, 0, range(2), "default")
    assert broker.shards.read_ticket("default", "dead", block_ms=0)
    broker.experiments.remove(experiment)
    stream = keys.pool_tickets("default")
    pending: Any = broker.conn.main.xpending(stream, keys.TICKET_GROUP)
    assert (broker.conn.main.xlen(stream), pending["pending"]) == (0, 0)


@pytest.mark.parametrize("state", ["running", "paused", "stopping"])
def test_remove_refuses_what_is_not_over_unless_forced(broker: Broker, state: Any) -> None:
    experiment = submitted(broker)
    broker.experiments.set_status(experiment, state, leader_epoch=1)
    with pytest.raises(Conflict, match=f"is {state}.*heddle stop.*--force"):
        broker.experiments.remove(experiment)
    assert broker.experiments.ctl(experiment).command == "run"
    broker.experiments.remove(experiment, force=True)
    with pytest.raises(Gone):
        broker.experiments.ctl(experiment)


def test_removing_an_old_run_leaves_its_name_to_the_new_one(broker: Broker) -> None:
    old = submitted(broker, suffix="aaaa")
    broker.experiments.set_status(old, "stopped", leader_epoch=1)
    new = submitted(broker, suffix="bbbb")
    broker.experiments.remove(old)
    assert broker.experiments.resolve("cartpole") == new


def test_a_removal_cut_short_at_any_point_can_be_repeated_to_the_last_key(broker: Broker) -> None:
    call, finished = 0, False
    while not finished:
        call += 1
        broker.conn.main.flushall()
        experiment = submitted(broker)
        populate(broker, experiment)
        try:
            Experiments(MortalConnection(broker.conn, call, after=True)).remove(experiment)  # type: ignore[arg-type]
            finished = True
        except Died:
            pass
        broker.experiments.remove(experiment)
        assert all_keys(broker) == {keys.QUEUE}, call


# ---- queue


def test_an_entry_that_a_vanished_coordinator_read_is_read_by_the_next(real_broker: Broker) -> None:
    broker = real_broker
    experiment = submitted(broker)
    (entry,) = broker.experiments.queue_read("c1")
    assert broker.experiments.queue_read("c2") == []
    main = broker.conn.main
    main.xclaim(keys.QUEUE, keys.QUEUE_GROUP, "c1", min_idle_time=0, message_ids=[entry.entry_id], idle=3_000)
    assert broker.experiments.queue_read("c2") == [entry]
    broker.experiments.queue_ack(entry)
    broker.experiments.queue_ack(entry)
    assert main.xlen(keys.QUEUE) == 0
    assert broker.experiments.status(experiment).state == "queued"


def test_entries_of_removed_experiments_are_not_read(broker: Broker) -> None:
    experiment = submitted(broker)
    broker.conn.script("remove_ctl", [keys.ctl(experiment), keys.status(experiment)], ["force"])
    assert broker.experiments.queue_read("c1") == []
    assert broker.experiments.queue_waiting() == []


def test_waiting_for_the_queue_ends_in_time_and_makes_the_group(real_broker: Broker) -> None:
    broker = real_broker
    assert broker.experiments.queue_read("c1", block_ms=20) == []
    submitted(broker)
    assert len(broker.experiments.queue_read("c1", block_ms=20)) == 1


def test_consumers_of_vanished_coordinators_are_deleted_unless_they_hold_an_entry(real_broker: Broker) -> None:
    broker = real_broker
    submitted(broker)
    broker.experiments.queue_read("holds")
    broker.experiments.queue_read("empty")
    broker.conn.main.xgroup_createconsumer(keys.QUEUE, keys.QUEUE_GROUP, "idle")
    assert broker.experiments.queue_tidy() == 0
    assert int(broker.conn.script("group_tidy", [keys.QUEUE], [keys.QUEUE_GROUP, 0])) >= 1
    consumers = broker.conn.main.xinfo_consumers(keys.QUEUE, keys.QUEUE_GROUP)
    assert [consumer["name"] for consumer in consumers] == [b"holds"]


def test_what_somebody_wrote_into_the_queue_or_the_log_by_hand_does_no_harm(broker: Broker, raw: Any) -> None:
    highest = "18446744073709551615-18446744073709551615"
    for stream in (keys.QUEUE, keys.LOG, keys.PRINTS):
        for entry in ("*", highest):
            raw.xadd(stream, {b"\xff": b"\xfe", b"experiment": b"\x80"}, id=entry)
    made = submitted(broker)
    assert made in [entry.experiment for _ in range(3) for entry in broker.experiments.queue_read("c1")]
    broker.events.log(made, "trainer", None, "info", "still here")
    assert broker.events.read(made)[-1].message == "still here"
    assert broker.events.read(None)


@pytest.mark.parametrize("rev", ["banana", "nan", "-nan", "inf", "-5", "1e300", ""])
def test_an_end_and_a_stop_are_heard_whatever_somebody_wrote_as_rev(broker: Broker, rev: str) -> None:
    ended, told = submitted(broker, "ended"), submitted(broker, "told")
    for experiment in (ended, told):
        broker.conn.main.hset(keys.ctl(experiment), "rev", rev)
    assert broker.experiments.set_status(ended, "failed", leader_epoch=1, reason="no env") == "failed"
    assert broker.experiments.set_command(told, "stop").command == "stop"
    for experiment in (ended, told):
        ctl = broker.experiments.ctl(experiment)
        assert (ctl.command, ctl.rev > 0) == ("stop", True)
    # Also where an earlier end was not told to stop, and where more is damaged
    broker.conn.main.hset(keys.ctl(ended), mapping={"command": "run", "rev": rev, "leader_epoch": "x", "policy": "y"})
    assert broker.experiments.set_status(ended, "failed", leader_epoch=1) == "failed"
    assert broker.conn.main.hget(keys.ctl(ended), "command") == b"stop"
    assert broker.experiments.set_command(ended, "stop").command == "stop"
    with pytest.raises(Conflict, match="failed"):
        broker.experiments.set_command(ended, "run")


def _spoil(raw: Any, experiment: str, what: str) -> str:
    """Damage a number of ctl, or a whole key; how that should be told."""
    if what == "policy":
        raw.hset(keys.ctl(experiment), "policy", "x")
        return f"field policy of {keys.ctl(experiment)} is 'x'"
    name = keys.ctl(experiment) if what == "ctl" else keys.spec(experiment)
    raw.delete(name)
    raw.set(name, "x")
    return f"{name} is no hash"


@pytest.mark.parametrize("what", ["policy", "ctl", "spec"])
def test_a_damaged_experiment_is_told_from_what_everybody_may_read_and_none_of_its_shards_is_asked(
    real_broker: Broker, redis_server: LocalServer, what: str
) -> None:
    # Given an experiment with shards, damaged by hand, and who may read no shard
    raw: Any = real_broker.conn.main
    experiment = submitted(real_broker)
    plans = [ShardPlan(index, "train", index, 1) for index in range(8)]
    real_broker.shards.create(experiment, 0, plans, leader_epoch=1)
    told = _spoil(raw, experiment, what)
    raw.execute_command("ACL", "SETUSER", "feeder", "reset", "on", ">secret", *ROLES["tracker"].rules())
    try:
        with open_broker(redis_server.url.replace("://", "://feeder:secret@"), role="test") as feeder:
            # When it looks at one, and at all
            raw.config_resetstat()
            raw.acl_log_reset()  # of what every connection asks at its start
            found = [feeder.experiments.status(experiment), *feeder.experiments.ls()]
            calls = {name: fact["calls"] for name, fact in raw.info("commandstats").items()}
    finally:
        raw.execute_command("ACL", "DELUSER", "feeder")
    # Then it is told what is wrong, from as few keys as of a sound one, and asked for none that it may not read
    assert [(one.state, one.name, told in one.reason) for one in found] == [("failed", "cartpole", True)] * 2
    assert (calls["cmdstat_hgetall"], calls["cmdstat_hmget"], calls.get("cmdstat_hget", 0)) == (4, 2, 0)
    assert raw.execute_command("ACL", "LOG") == []
