"""The worker on a real server, with a real coordinator, and environments that misbehave."""

import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heddle.broker import Broker, keys
from heddle.broker.policies import Policies
from heddle.broker.pools import WorkerBeat
from heddle.clock import SystemClock
from tests.fixtures import coordinated, on_url, starting
from tests.helpers import eventually
from tests.worker_kit import Reader, Running, states, submit

Start = Callable[..., Running]

url = coordinated
broker = on_url
start = starting


def held(worker: Running) -> int:
    return len(worker.worker.desk.holdings())


def said_by_workers(broker: Broker) -> str:
    """What workers told the log, of whichever experiment."""
    return "; ".join(event.message for event in broker.events.read(None) if event.role == "worker")


def read_until(reader: Reader, count: int, timeout_s: float = 15.0, *, ack: bool = True) -> None:
    """Read until `count` batches came, settling them."""

    def enough() -> bool:
        new = reader.pull(block_ms=50)
        if ack:
            reader.ack(new)
        return len(reader.read) >= count

    eventually(enough, timeout_s=timeout_s, what=f"{count} batches; got {len(reader.read)}")


def playing(broker: Broker, start: Start, batches: int, **sections: Any) -> tuple[str, Running, Reader]:
    """An experiment, the worker that plays it, and a reader that has settled so many batches of version 1."""
    experiment = submit(broker, **sections)
    worker = start()
    reader = Reader(broker, experiment)
    reader.publish(1)
    read_until(reader, batches)
    return experiment, worker, reader


def test_a_worker_plays_every_shard_with_the_newest_policy_and_its_batches_can_be_read(
    broker: Broker, start: Start
) -> None:
    experiment = submit(broker)
    worker = start()
    reader = Reader(broker, experiment)
    reader.publish(1)
    eventually(lambda: held(worker) == 2)
    read_until(reader, 6)
    reader.publish(2)
    eventually(lambda: reader.pull(block_ms=50) and reader.read[-1].version_min == 2, what="version 2")
    reader.check_continuity()
    assert {pointer.shard for pointer in reader.read} == {0, 1}
    assert all(pointer.version_min == pointer.version_max for pointer in reader.read)
    segments = reader.batch(reader.read[-1])
    assert segments.rows == 2
    assert segments.arrays["obs"].shape == (2, 9, 2)
    assert set(segments.arrays["obs"][:, 0, 0]) <= {0.0, 1.0, 2.0, 3.0}


def test_without_a_barrier_a_worker_plays_on_while_weights_are_fetched(
    broker: Broker, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a worker that plays version 1, and a fetch of version 2 that hangs
    experiment, go = submit(broker), threading.Event()
    fetch = Policies.fetch

    def slow(policies: Policies, experiment: str, version: int | None = None) -> tuple[int, bytes]:
        if policies.latest(experiment) > 1:
            assert go.wait(60)
        return fetch(policies, experiment, version)

    monkeypatch.setattr(Policies, "fetch", slow)
    worker = start(is_ahead=True)
    reader = Reader(broker, experiment)
    reader.publish(1)
    read_until(reader, 2)
    reader.publish(2)
    # When it is told of that, then it goes on with what it has
    eventually(lambda: worker.worker.desk.facts(experiment).policy == 2)
    read_until(reader, len(reader.read) + 6)
    assert {pointer.version_max for pointer in reader.read} == {1}
    # And takes the new one when it came
    go.set()

    def has_come() -> bool:
        reader.ack(reader.pull(block_ms=50))
        return reader.read[-1].version_min == 2

    eventually(has_come, what="version 2")
    reader.check_continuity()


def test_weights_that_somebody_damaged_do_not_end_a_worker_and_the_next_version_is_played(
    broker: Broker, start: Start
) -> None:
    experiment = submit(broker)
    reader = Reader(broker, experiment)
    reader.publish(1)
    broker.conn.main.hset(keys.policy(experiment, 1), "weights", b"\x80\x04cos\nsystem\n.")
    worker = start()
    eventually(lambda: worker.worker._failures > 2, what="asking in vain")
    reader.publish(2)
    read_until(reader, 4)
    assert {pointer.version_min for pointer in reader.read} == {2}
    assert worker.thread.is_alive()


def test_tickets_that_somebody_wrote_by_hand_do_no_harm(broker: Broker, start: Start) -> None:
    raw: Any = broker.conn.main
    tickets = keys.pool_tickets("default")
    for fields in ({"foo": "bar"}, {"experiment": "x", "shard": "y"}, {b"\xff": b"\xfe"}, {"shard": "9" * 30}):
        raw.xadd(tickets, dict(fields))
    raw.xadd(tickets, {"foo": "bar"}, id="18446744073709551615-18446744073709551615")
    experiment = submit(broker)
    worker = start()
    reader = Reader(broker, experiment)
    reader.publish(1)

    def both() -> bool:
        reader.ack(reader.pull(block_ms=50))
        return {pointer.shard for pointer in reader.read} == {0, 1}

    eventually(both, timeout_s=30, what="batches of both shards")
    assert worker.thread.is_alive()


def test_in_sync_every_shard_gives_each_version_once(broker: Broker, start: Start) -> None:
    experiment = submit(broker, rollout={"steps": 8, "sync": True})
    worker = start()
    reader = Reader(broker, experiment)
    for version in range(1, 6):
        reader.publish(version)
        read_until(reader, 2 * version)
    eventually(lambda: worker.worker.desk.choose() is None)
    assert reader.pull(block_ms=100) == []
    assert sorted((p.given, p.shard) for p in reader.read) == [(v, s) for v in range(1, 6) for s in (0, 1)]


def test_a_paused_worker_keeps_its_leases_and_goes_on_when_told(broker: Broker, start: Start) -> None:
    experiment = submit(broker)
    worker = start()
    reader = Reader(broker, experiment)
    reader.publish(1)
    eventually(lambda: held(worker) == 2)
    read_until(reader, 4)
    broker.experiments.set_command(experiment, "pause")
    eventually(lambda: not reader.pull(block_ms=300) and worker.worker.desk.choose() is None, what="silence")
    attempts = [shard.attempts for shard in broker.shards.shards(experiment, 0)]
    assert states(broker, experiment) == {0: "leased", 1: "leased"}
    broker.experiments.set_command(experiment, "run")
    read_until(reader, len(reader.read) + 4)
    assert [shard.attempts for shard in broker.shards.shards(experiment, 0)] == attempts


def test_stop_makes_a_worker_release_and_look_for_other_work(broker: Broker, start: Start) -> None:
    experiment = submit(broker)
    worker = start()
    reader = Reader(broker, experiment)
    reader.publish(1)
    eventually(lambda: held(worker) == 2)
    read_until(reader, 4)
    broker.experiments.set_command(experiment, "stop")
    eventually(lambda: set(states(broker, experiment).values()) == {"stopped"})
    eventually(lambda: held(worker) == 0)
    other = submit(broker, experiment={"name": "other"})
    second = Reader(broker, other)
    second.publish(1)
    read_until(second, 2)


def test_a_full_stream_makes_a_worker_wait_without_losing_anything(broker: Broker, start: Start) -> None:
    experiment = submit(broker, limits={"max_entries": 4})
    worker = start()
    reader = Reader(broker, experiment)
    reader.publish(1)
    desk = worker.worker.desk
    eventually(lambda: held(worker) == 2 and desk.choose() is None and desk.counters.batches >= 6, what="it waits")
    eventually(lambda: broker.experience.flow(experiment, 0).entries == 4, what="a full stream")
    assert desk.counters.batches <= 4 + 2 * 2
    waited = desk.counters.wait_s
    eventually(lambda: desk.counters.wait_s > waited + 0.2, what="seconds of waiting")
    read_until(reader, 20)
    reader.check_continuity()
    assert desk.counters.unsent == 0
    told_ms = sum(pointer.waited_ms for pointer in reader.read)
    assert told_ms >= 200, "batches tell how long their worker waited"
    assert sum(pointer.held_ms for pointer in reader.read) >= 200, "and how long each of them waited for room"
    eventually(lambda: broker.pools.workers()[0].beat.wait_s >= told_ms / 1000 - 0.1, what="the heartbeat tells it too")


def test_a_heartbeat_tells_of_late_who_plays_who_waits_and_who_has_nothing(broker: Broker, start: Start) -> None:
    experiment = submit(broker, limits={"max_entries": 4})
    start()
    reader = Reader(broker, experiment)
    reader.publish(1)

    def beat() -> WorkerBeat:
        return broker.pools.workers()[0].beat

    def take() -> WorkerBeat:
        reader.ack(reader.pull(block_ms=50))
        return beat()

    # While its batches are taken it has a speed; when they are not, it waits
    eventually(lambda: take().steps_per_second > 0 and beat().ms_per_step > 0, what="a speed")
    eventually(lambda: (beat().waits or 0.0) >= 0.9, timeout_s=15, what="waits of a full stream")
    eventually(lambda: beat().steps_per_second == 0, timeout_s=15, what="no speed of a full stream")
    # And after the end it does neither, though it has played and waited
    broker.experiments.set_command(experiment, "stop")
    eventually(lambda: take().state == "idle", what="no shards")
    assert (beat().steps_per_second, beat().waits, beat().late_waits) == (0, None, 0)
    assert beat().steps > 0 and beat().play_s > 0 and beat().wait_s > 5


def test_a_broker_without_memory_costs_no_lease_and_no_batch(broker: Broker, start: Start) -> None:
    experiment = submit(broker)
    worker = start()
    reader = Reader(broker, experiment)
    reader.publish(1)
    eventually(lambda: held(worker) == 2)
    read_until(reader, 4)
    epochs = [shard.epoch for shard in broker.shards.shards(experiment, 0)]
    desk = worker.worker.desk
    broker.conn.main.config_set("maxmemory", 1)
    eventually(
        lambda: desk.choose() is None and worker.worker._parts.appender.tally.out_of_memory >= 2, what="refusals"
    )
    clock = SystemClock()
    clock.sleep(3 * 0.6)  # three lease times
    broker.conn.main.config_set("maxmemory", 512 << 20)
    read_until(reader, len(reader.read) + 8)
    reader.check_continuity()
    assert [shard.epoch for shard in broker.shards.shards(experiment, 0)] == epochs
    assert (desk.counters.lost, desk.counters.unsent) == (0, 0)


def test_a_drained_worker_delivers_all_it_played_and_gives_everything_back(broker: Broker, start: Start) -> None:
    experiment, worker, reader = playing(broker, start, 4)
    broker.pools.drain("w1")
    eventually(lambda: not worker.thread.is_alive(), what="the worker ends")
    assert worker.code == 0
    counters = worker.worker.desk.counters
    assert (counters.accepted, counters.unsent) == (counters.batches, 0)
    assert set(states(broker, experiment).values()) == {"queued"}
    assert broker.pools.workers() == []
    reader.pull()
    reader.check_continuity()
    assert len(reader.read) == counters.accepted


def test_a_failing_environment_is_told_with_its_reason_and_does_not_end_the_worker(
    broker: Broker, start: Start, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    experiment, worker, _ = playing(
        broker, start, 2, env={"kwargs": {"fail_file": str(broken)}}, faults={"barren_deaths": 2}
    )
    broken.touch()
    eventually(
        lambda: set(states(broker, experiment).values()) == {"quarantined"}, timeout_s=30, what="both quarantined"
    )
    for shard in broker.shards.shards(experiment, 0):
        assert "the arm fell off" in shard.last_error
    assert worker.thread.is_alive()
    assert any("the arm fell off" in event.message for event in broker.events.read(experiment))
    other = submit(broker, experiment={"name": "other"})
    second = Reader(broker, other)
    second.publish(1)
    read_until(second, 2)


def test_a_hanging_environment_ends_the_process_and_is_blamed(broker: Broker, start: Start, tmp_path: Path) -> None:
    hang = tmp_path / "hang"
    experiment, worker, _ = playing(broker, start, 2, env={"kwargs": {"hang_file": str(hang)}, "step_timeout": 0.5})
    hang.touch()
    eventually(lambda: worker.exits == [70], what="exit 70")
    errors = [shard.last_error for shard in broker.shards.shards(experiment, 0)]
    assert any("step of test-" in error and "lasted longer than 0.5 s" in error for error in errors), errors


def test_environments_that_hang_while_they_are_closed_end_the_process(
    broker: Broker, start: Start, tmp_path: Path
) -> None:
    hang = tmp_path / "hang"
    _, worker, _ = playing(broker, start, 4, env={"kwargs": {"close_file": str(hang)}, "step_timeout": 0.5})
    hang.touch()
    broker.shards.release_worker("w1")  # it loses both shards, and gets others to hold while it closes those
    eventually(lambda: worker.exits == [70], what="exit 70")
    assert "close of test-" in said_by_workers(broker)


def test_environments_that_hang_while_the_worker_ends_end_the_process(
    broker: Broker, start: Start, tmp_path: Path
) -> None:
    hang = tmp_path / "hang"
    _, worker, _ = playing(broker, start, 4, env={"kwargs": {"close_file": str(hang)}, "step_timeout": 0.5})
    hang.touch()
    worker.stop.drain("the test ends it")
    eventually(lambda: worker.exits == [70], what="exit 70")


def test_a_policy_that_hangs_while_it_takes_weights_over_ends_the_process_and_is_told(
    broker: Broker, start: Start, tmp_path: Path
) -> None:
    hang = tmp_path / "hang"
    policy = {"id": "tests.worker_kit:Sluggish", "kwargs": {"hang_file": str(hang)}}
    _, worker, reader = playing(broker, start, 4, policy=policy, env={"step_timeout": 0.5})
    hang.touch()
    reader.stage.spec.policy.kwargs["hang_file"] = ""  # the reader makes its own
    reader.publish(2)
    eventually(lambda: worker.exits == [70], what="exit 70")
    assert "load of test-" in said_by_workers(broker)


def test_waiting_for_a_policy_room_or_command_is_not_hanging(broker: Broker, start: Start) -> None:
    experiment = submit(broker, env={"step_timeout": 0.3}, limits={"max_entries": 2})
    worker = start(drain_s=0.5)
    eventually(lambda: held(worker) == 2)
    reader = Reader(broker, experiment)
    reader.publish(1)
    eventually(lambda: worker.worker.desk.counters.batches >= 4)
    worker.thread.join(1.0)
    assert worker.exits == []
    assert worker.thread.is_alive()


def _told(broker: Broker, what: str) -> dict[str, int]:
    """The outcomes that the worker's heartbeat tells, once `what` is among them."""
    outcomes = dict(broker.pools.workers()[0].beat.outcomes)
    return outcomes if what in outcomes else {}


def test_a_worker_that_lost_its_shards_drops_what_it_played_and_claims_anew(broker: Broker, start: Start) -> None:
    experiment, worker, reader = playing(broker, start, 4)
    eventually(lambda: held(worker) == 2)
    epochs = {shard.shard: shard.epoch for shard in broker.shards.shards(experiment, 0)}
    assert len(broker.shards.release_worker("w1")) == 2  # as if its supervisor had seen it die
    eventually(
        lambda: all(s.state == "leased" and s.epoch > epochs[s.shard] for s in broker.shards.shards(experiment, 0)),
        what="claimed anew",
    )
    read_until(reader, len(reader.read) + 4)
    reader.check_continuity()
    eventually(lambda: worker.worker.desk.counters.lost == 2, what="both answers were heard")
    eventually(lambda: _told(broker, "lost").get("lost") == 2, what="the heartbeat tells it")
    eventually(lambda: _told(broker, "lost").get("claims", 0) >= 4, what="it tells the new claims")
    assert _told(broker, "lost")["accepted"] > 0


def test_batches_that_the_broker_forgot_are_reported_and_the_shard_goes_on(broker: Broker, start: Start) -> None:
    experiment, worker, reader = playing(broker, start, 6, env={"num_envs": 2, "envs_per_shard": 2})
    broker.experiments.set_command(experiment, "pause")
    eventually(lambda: not reader.pull(block_ms=200) and worker.worker.desk.choose() is None)
    shard = keys.shard(experiment, 0, 0)
    seq = int(broker.conn.main.hget(shard, "seq") or 0)
    broker.conn.main.hset(shard, "seq", seq - 2)  # as a broker that came back without its last writes
    eventually(lambda: broker.experience.flow(experiment, 0).forgotten.batches == 2, what="reported")
    assert broker.experience.flow(experiment, 0).forgotten.steps == 2 * 2 * 8
    broker.experiments.set_command(experiment, "run")
    eventually(lambda: any(p.seq == seq - 1 and p.epoch > reader.read[0].epoch for p in reader.pull()), what="goes on")
    assert worker.worker.desk.counters.gap + worker.worker.desk.counters.forgotten >= 2


def test_batches_that_the_broker_forgot_are_reported_by_a_worker_that_gives_the_shard_back_unaware(
    broker: Broker, start: Start
) -> None:
    experiment, worker, reader = playing(
        broker, start, 6, env={"num_envs": 2, "envs_per_shard": 2}, faults={"lease_ttl": 60.0}
    )
    broker.experiments.set_command(experiment, "pause")
    eventually(lambda: not reader.pull(block_ms=200) and worker.worker.desk.choose() is None)
    shard = keys.shard(experiment, 0, 0)
    seq = int(broker.conn.main.hget(shard, "seq") or 0)
    broker.conn.main.hset(shard, "seq", seq - 2)  # as a broker that came back without its last writes
    assert worker.end() == 0  # before any renewal
    forgotten = broker.experience.flow(experiment, 0).forgotten
    assert (forgotten.batches, forgotten.steps) == (2, 2 * 2 * 8)
    assert worker.worker.desk.counters.forgotten == 2
    assert states(broker, experiment) == {0: "queued"}


def test_batches_of_a_claim_that_the_broker_forgot_are_reported(broker: Broker, start: Start) -> None:
    experiment = submit(broker, env={"num_envs": 2, "envs_per_shard": 2})
    shard = keys.shard(experiment, 0, 0)
    before: Any = eventually(lambda: broker.conn.main.hgetall(shard))
    worker = start()
    reader = Reader(broker, experiment)
    reader.publish(1)
    read_until(reader, 6)
    broker.experiments.set_command(experiment, "pause")
    eventually(lambda: not reader.pull(block_ms=200) and worker.worker.desk.choose() is None)
    (holding,) = worker.worker.desk.holdings()
    accepted = holding.accepted
    pipe = broker.conn.main.pipeline()
    pipe.unlink(shard, keys.lease(experiment, 0, 0), keys.due(experiment, 0))
    pipe.hset(shard, mapping=before)  # as a broker that came back without its last writes, the claim among them
    pipe.execute()
    eventually(lambda: broker.experience.flow(experiment, 0).forgotten.batches == accepted, what="reported")
    assert broker.experience.flow(experiment, 0).forgotten.steps == accepted * 2 * 8


def test_evaluation_shards_play_their_episodes_with_the_pinned_version_once(broker: Broker, start: Start) -> None:
    experiment = submit(broker, eval={"num_envs": 2, "episodes": 6}, env={"num_envs": 2, "envs_per_shard": 2})
    start()
    reader = Reader(broker, experiment)
    reader.publish(1)
    read_until(reader, 2)
    assert all(pointer.kind == "train" for pointer in reader.read)
    broker.policies.set_eval(experiment, reader.epoch, 1)

    def given() -> bool:
        reader.ack(reader.pull(block_ms=50))
        return any(pointer.kind == "eval" and pointer.given == 1 for pointer in reader.read)

    eventually(given)
    played = [pointer for pointer in reader.read if pointer.kind == "eval"]
    assert [pointer.given for pointer in played] == [0] * (len(played) - 1) + [1]
    assert {pointer.version_max for pointer in played} == {1}
    assert sum(pointer.steps for pointer in played) == 6 * 5


def test_shards_are_shared_evenly_and_a_newcomer_gets_its_part(broker: Broker, start: Start) -> None:
    experiment = submit(broker, env={"num_envs": 8, "envs_per_shard": 2})
    first = start("w1")
    reader = Reader(broker, experiment)
    reader.publish(1)
    eventually(lambda: held(first) == 4)
    second = start("w2")

    def even() -> bool:
        reader.ack(reader.pull(block_ms=50))
        return (held(first), held(second)) == (2, 2)

    eventually(even, timeout_s=15, what="2 and 2")
    reader.check_continuity()


def test_a_removed_experiment_leaves_nothing_behind(broker: Broker, start: Start) -> None:
    experiment = submit(broker, limits={"max_entries": 3})
    worker = start()
    reader = Reader(broker, experiment)
    reader.publish(1)
    eventually(lambda: worker.worker.desk.counters.batches >= 5)
    broker.experiments.remove(experiment, force=True)
    eventually(lambda: held(worker) == 0)
    eventually(lambda: not list(broker.conn.main.scan_iter(f"heddle:*{experiment}*")), what="no key left")
    assert worker.thread.is_alive()


def test_a_worker_that_plays_a_numpy_policy_imports_no_torch() -> None:
    program = (
        "import sys; import heddle.producers.worker; print(sorted(m for m in ('torch', 'rich') if m in sys.modules))"
    )
    found = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
