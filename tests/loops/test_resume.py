"""Where a new trainer goes on: what it passes over, what it says, which numbers it gives."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heddle import checkpoint as files
from heddle.broker import Broker, keys
from heddle.broker.records import text
from heddle.broker.server import LocalServer
from heddle.consumers.building import SKIPPED
from heddle.consumers.restoring import CheckpointMissing
from tests.helpers import eventually
from tests.trainer_fixtures import in_home, training
from tests.trainer_kit import Fleet, InThread, saved, seen_in, start_process, submit

Start = Callable[..., InThread]

home = in_home
start = training


def train(fleet: Fleet, updates: int) -> int:
    """So many updates of every shard's batches; the version after them, once everything is settled."""
    version = fleet.version()
    for _ in range(updates):
        for shard in fleet.claims:
            fleet.give(shard, version)
        version = fleet.version(version + 1)
    eventually(lambda: fleet.flow().entries == 0, what="everything is settled")
    return version


def said(broker: Broker, experiment: str) -> list[str]:
    return [event.message for event in broker.events.read(experiment, count=50)]


def says(broker: Broker, experiment: str, *parts: str) -> str:
    """The line of the log that holds all `parts`, once it is there: a trainer publishes first and tells after."""

    def found() -> str:
        return next((line for line in said(broker, experiment) if all(part in line for part in parts)), "")

    return eventually(found, what=f"a line with {parts}")


def curve(broker: Broker, experiment: str) -> list[int]:
    """The updates of all metrics, in order."""
    return [metric.update for metric in broker.events.metrics_read(experiment)]


def test_a_torn_newest_checkpoint_is_passed_over_and_what_it_held_is_counted_as_rolled_back(
    broker: Broker, start: Start, home: Path
) -> None:
    # Given three updates with a checkpoint each, the last of which is torn
    fleet = Fleet(broker, submit(broker)).claim_all()
    first = start(fleet.experiment)
    train(fleet, 3)
    eventually(lambda: curve(broker, fleet.experiment) == [1, 2, 3])
    first.leave()
    before = broker.policies.latest(fleet.experiment)
    torn = files.listing(home / "checkpoints")[0]
    torn.write_bytes(torn.read_bytes()[:-9])
    # When the next trainer comes
    start(fleet.experiment)
    eventually(lambda: broker.policies.latest(fleet.experiment) > before)
    eventually(lambda: fleet.flow().rolled_back.batches == 2)
    # Then it says where it goes on and why, the curve ends there, and the books are right
    says(broker, fleet.experiment, "passed over a checkpoint", torn.name)
    says(broker, fleet.experiment, "resumed at update 2, 32 steps, from checkpoint-")
    assert curve(broker, fleet.experiment) == [1, 2]
    assert fleet.flow().trained.batches == 4
    fleet.check_balance()
    train(fleet, 1)
    eventually(lambda: curve(broker, fleet.experiment) == [1, 2, 3])
    assert seen_in(saved(home)) == [(0, 1), (1, 1), (0, 2), (1, 2), (0, 4), (1, 4)]
    fleet.check_balance()


def test_a_replay_file_that_is_torn_or_gone_costs_its_checkpoints_alone_and_never_the_experiment(
    broker: Broker, start: Start, home: Path
) -> None:
    # Given three checkpoints of a buffer in one file, of which the last one's end is torn off
    replay = {"capacity": "64KiB", "learning_starts": 16, "samples_per_step": 2.0}
    spec: dict[str, Any] = {"policy": {"id": "q", "hidden": [4]}, "trainer": {"learner": "dqn", "replay": replay}}
    fleet = Fleet(broker, submit(broker, rollout={"sync": False}, **spec)).claim_all()
    first = start(fleet.experiment)
    train(fleet, 3)
    eventually(lambda: curve(broker, fleet.experiment) == [1, 2, 3])
    first.leave()
    before = broker.policies.latest(fleet.experiment)
    (file,) = (home / "replay").iterdir()
    os.truncate(file, file.stat().st_size - 1)
    # When the next trainer comes, then it goes on from the one before, and says why
    second = start(fleet.experiment)
    eventually(lambda: broker.policies.latest(fleet.experiment) > before)
    says(broker, fleet.experiment, "passed over a checkpoint", f"{file.name} is torn")
    says(broker, fleet.experiment, "resumed at update 2, 32 steps, from checkpoint-")
    eventually(lambda: fleet.flow().rolled_back.batches == 2)
    train(fleet, 1)
    second.leave()
    fleet.check_balance()
    # And when all is gone, it does not begin anew, and the experiment is not over
    for path in (home / "replay").iterdir():
        path.unlink()
    with pytest.raises(CheckpointMissing, match=r"none of the . checkpoints in .* can be used, e.g. .*cannot read"):
        start(fleet.experiment).join()
    assert not broker.experiments.status(fleet.experiment).outcome


def test_with_no_checkpoint_that_can_be_read_it_does_not_begin_anew(broker: Broker, start: Start, home: Path) -> None:
    fleet = Fleet(broker, submit(broker)).claim_all()
    first = start(fleet.experiment)
    train(fleet, 1)
    first.leave()
    for path in files.listing(home / "checkpoints"):
        path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(CheckpointMissing, match="none of the . checkpoints in .* can be used, e.g. .*not a whole"):
        start(fleet.experiment).join()
    assert fleet.flow().trained.batches == 2


def test_the_update_that_nobody_was_told_of_is_told_by_the_next_trainer(broker: Broker, start: Start) -> None:
    # Given a trainer that died after its checkpoint, before its metrics
    fleet = Fleet(broker, submit(broker)).claim_all()
    first = start(fleet.experiment)
    train(fleet, 2)
    eventually(lambda: curve(broker, fleet.experiment) == [1, 2])
    first.leave()
    newest = broker.events.metrics_newest(fleet.experiment)
    assert newest is not None
    broker.conn.main.xdel(keys.metrics(fleet.experiment), newest.entry_id)
    # When the next one comes, then the curve has no gap
    start(fleet.experiment)
    eventually(lambda: curve(broker, fleet.experiment) == [1, 2])
    told = broker.events.metrics_read(fleet.experiment)[-1].values
    assert told["env_steps"] == 32 and "policy_loss" in told
    train(fleet, 1)
    eventually(lambda: curve(broker, fleet.experiment) == [1, 2, 3])


def test_a_run_whose_budget_was_used_up_when_all_was_killed_ends_without_one_update_more(
    broker: Broker, redis_server: LocalServer, start: Start, home: Path
) -> None:
    # Given a trainer that used its budget of two updates and was killed, by a broker that does not know that it ends
    spec: dict[str, Any] = {"rollout": {"sync": False, "max_policy_lag": 9}, "trainer": {"batch_steps": 16}}
    fleet = Fleet(broker, submit(broker, budget={"env_steps": 32}, **spec)).claim_all()
    first = start_process(redis_server.url, fleet.experiment, home)
    try:
        version = eventually(lambda: broker.policies.latest(fleet.experiment), timeout_s=120, what="its first policy")
        for _ in range(4):
            fleet.give(0, version)
        eventually(lambda: broker.experiments.ctl(fleet.experiment).command == "stop", timeout_s=60)
    finally:
        first.kill()
        first.communicate()
    assert first.returncode == -signal.SIGKILL
    broker.conn.main.hset(keys.ctl(fleet.experiment), "command", "run")
    # and enough in the stream for an update more
    for _ in range(2):
        fleet.give(0, version)
    # When the next trainer comes
    second = start(fleet.experiment)
    eventually(lambda: broker.experiments.ctl(fleet.experiment).command == "stop", timeout_s=60)
    fleet.release_all()
    # Then it ends where it would have ended without the kill
    assert second.join() == 0
    status = broker.experiments.status(fleet.experiment)
    assert (status.outcome, status.result["updates"], status.result["env_steps"]) == ("completed", 2, 32)
    assert seen_in(saved(home)) == [(0, 1), (0, 2), (0, 3), (0, 4)]
    assert (fleet.flow().trained.batches, fleet.flow().entries) == (4, 0)
    fleet.check_balance()


def test_what_was_trained_and_the_broker_forgot_is_said(broker: Broker, start: Start, home: Path) -> None:
    fleet = Fleet(broker, submit(broker)).claim_all()
    first = start(fleet.experiment)
    train(fleet, 3)
    first.leave()
    broker.conn.main.hset(keys.shard(fleet.experiment, 0, 1), "seq", "1")
    start(fleet.experiment)
    says(broker, fleet.experiment, "forgot 2 batches or more")
    assert len(seen_in(saved(home))) == 6


def forget(broker: Broker, experiment: str, version: int) -> None:
    """As a broker that was killed and lost its last second: `version` was never published, by nobody it remembers."""
    raw = broker.conn.main
    kept = text(raw.hget(keys.ctl(experiment), "versions")).split()
    raw.hset(
        keys.ctl(experiment),
        mapping={"policy": version - 1, "versions": " ".join(one for one in kept if int(one.split(":")[0]) < version)},
    )
    raw.delete(keys.policy(experiment, version))


def test_a_number_that_broker_and_checkpoint_both_forgot_is_not_given_to_other_weights(
    broker: Broker, start: Start, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a trainer that published a version, wrote no checkpoint of it, and died; a worker plays that version
    fleet = Fleet(broker, submit(broker)).claim_all()
    first = start(fleet.experiment)
    version = train(fleet, 2)
    first.leave()
    played = version + 1
    # and a broker that was killed too, lost it, and is another run of the server now
    forget(broker, fleet.experiment, version)
    monkeypatch.setattr("heddle.broker.connection.Connection.run_id", lambda self: "another run")
    # When the next trainer comes
    start(fleet.experiment)
    eventually(lambda: broker.policies.latest(fleet.experiment) > version)
    # Then its weights have a number that no worker can have played
    assert broker.policies.latest(fleet.experiment) == version + SKIPPED + 1 > played
    # and it goes on as ever
    train(fleet, 1)
    assert saved(home) is not None
    fleet.check_balance()


def test_on_the_same_run_of_the_broker_versions_go_on_by_one(broker: Broker, start: Start) -> None:
    fleet = Fleet(broker, submit(broker)).claim_all()
    first = start(fleet.experiment)
    version = train(fleet, 2)
    first.leave()
    start(fleet.experiment)
    assert fleet.version(version + 1) == version + 1


def test_batches_from_before_the_gap_are_not_stale_for_it(
    broker: Broker, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given batches of the last three versions, read by nobody, when trainer and broker are killed
    fleet = Fleet(
        broker,
        submit(
            broker,
            rollout={"sync": False, "max_policy_lag": 2},
            trainer={"batch_steps": 16},
            limits={"max_entries": 64},
        ),
    ).claim_all()
    first = start(fleet.experiment)
    version = train(fleet, 3)
    first.leave()
    for behind in (1, 0):
        fleet.give(0, version - behind)
    fleet.give(1, version - 3)
    fleet.give(1, version)
    # When the next trainer leaves out numbers
    monkeypatch.setattr("heddle.broker.connection.Connection.run_id", lambda self: "another run")
    start(fleet.experiment)
    eventually(lambda: broker.policies.latest(fleet.experiment) > version + SKIPPED)
    # Then only the one that is too old is stale
    fleet.give(1, broker.policies.latest(fleet.experiment))
    eventually(lambda: fleet.flow().entries == 0)
    assert (fleet.flow().stale.batches, fleet.flow().trained.batches) == (1, 10)


def test_a_server_whose_clock_was_set_back_still_gives_a_higher_seat_epoch(
    broker: Broker, start: Start, home: Path
) -> None:
    # Given checkpoints of a seat that the broker forgot, from a time that is yet to come
    fleet = Fleet(broker, submit(broker)).claim_all()
    first = start(fleet.experiment)
    before = train(fleet, 1)
    first.leave()
    last = saved(home)
    assert last is not None
    last.seat_epoch, last.update = broker.conn.now_ms() + 3_600_000, 1
    files.save(home / "checkpoints", last)
    # When the next trainer takes the seat, then its own checkpoints are the newest
    start(fleet.experiment)
    fleet.version(before + 1)
    train(fleet, 1)
    newest = saved(home)
    assert newest is not None
    assert newest.seat_epoch == last.seat_epoch + 1 and newest.update == 2
