"""The trainer on a real server, with workers that only append: seat, order of writes, rules of updates, endings."""

import json
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heddle.broker import Broker, keys
from heddle.broker.policies import Policies
from heddle.broker.server import LocalServer
from heddle.checkpoint import BEST, load
from heddle.clock import SystemClock
from heddle.consumers.curve_file import ENDED
from heddle.consumers.loop import MOST_BURIED, Loop
from heddle.consumers.prefetch import Prefetch
from heddle.consumers.restoring import CheckpointMissing
from heddle.errors import Gone, SeatLost
from heddle.policies.weights import unpack
from tests.helpers import eventually
from tests.trainer_fixtures import in_home, training
from tests.trainer_kit import Fleet, InThread, saved, seen_in, submit

Start = Callable[..., InThread]

home = in_home
start = training


def played(fleet: Fleet, version: int) -> int:
    """Every train shard gives `version`; the next version, once it is there."""
    for shard, claim in fleet.claims.items():
        if claim.kind == "train":
            fleet.give(shard, version)
    return fleet.version(version + 1)


def pinned(broker: Broker, experiment: str, version: int) -> bool:
    return broker.experiments.ctl(experiment).eval_policy == version


def without_a_barrier(broker: Broker, folder: Path) -> tuple[Fleet, Path]:
    """A fleet whose updates wait for nobody, its shards claimed, and the folder of its learner's hooks."""
    hooks = folder / "hooks"
    hooks.mkdir()
    rollout, trainer = {"sync": False, "max_policy_lag": 100}, {"batch_steps": 16, "kwargs": {"hooks": str(hooks)}}
    return Fleet(broker, submit(broker, rollout=rollout, trainer=trainer)).claim_all(), hooks


def settled(fleet: Fleet, batches: int) -> None:
    eventually(lambda: fleet.flow().trained.batches >= batches, what=f"{batches} batches trained")


def test_it_publishes_fresh_seeded_weights_at_once(broker: Broker, start: Start) -> None:
    fleet = Fleet(broker, submit(broker))
    start(fleet.experiment)
    assert fleet.version() == 1
    weights, info = unpack(broker.policies.fetch(fleet.experiment)[1])
    expected = fleet.setting.policy.get_weights()
    assert (info.version, info.update, weights.keys()) == (1, 0, expected.keys())
    assert all((weights[name] == expected[name]).all() for name in expected)


def test_sync_updates_on_one_batch_of_every_shard_and_acks_what_the_checkpoint_covers(
    broker: Broker, start: Start, home: Path
) -> None:
    fleet = Fleet(broker, submit(broker)).claim_all()
    start(fleet.experiment)
    version = fleet.version()
    fleet.give(0, version)
    assert fleet.flow().trained.batches == 0
    fleet.give(1, version)
    version = fleet.version(version + 1)
    played(fleet, version)
    settled(fleet, 4)
    checkpoint = saved(home)
    assert checkpoint is not None
    assert checkpoint.learner_meta["seen"] == [[[0, 1], [1, 1]], [[0, 2], [1, 2]]]
    assert (checkpoint.update, checkpoint.env_steps, checkpoint.policy_version) == (2, 32, 3)
    assert checkpoint.marks.keys() == {"0/0", "0/1"}
    assert fleet.flow().entries == 0
    fleet.check_balance()


def test_the_next_update_is_made_while_large_weights_are_under_way(
    broker: Broker, start: Start, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a trainer whose weights count as large, and a broker that is slow to take them
    monkeypatch.setattr("heddle.consumers.publisher.LARGE_BYTES", 0)
    gate, publish, in_order = threading.Event(), Policies.publish, list[int]()

    def slowly(self: Policies, experiment: str, seat_epoch: int, version: int, data: Any, *, update: int) -> int:
        assert version == 1 or gate.wait(60)
        in_order.append(version)
        return publish(self, experiment, seat_epoch, version, data, update=update)

    monkeypatch.setattr(Policies, "publish", slowly)
    fleet, hooks = without_a_barrier(broker, tmp_path)
    one = start(fleet.experiment)
    played_with = fleet.version()
    for shard in (0, 1):
        fleet.give(shard, played_with)
    settled(fleet, 2)
    # When more comes meanwhile
    (hooks / "hang-update").touch()
    for shard in (0, 1):
        fleet.give(shard, played_with)
    # Then it is trained on, and workers go on with what they have until the weights are there
    eventually(lambda: (hooks / "in-update").exists())
    assert broker.experiments.ctl(fleet.experiment).policy == 1
    gate.set()
    assert fleet.version(2) == 2
    (hooks / "hang-update").unlink()
    assert fleet.version(3) == 3
    one.end()
    assert in_order == [1, 2, 3]
    checkpoint = saved(home)
    assert checkpoint is not None
    assert (checkpoint.update, checkpoint.policy_version) == (2, 3)


def test_what_was_fetched_ahead_is_trained_once_and_in_order_and_a_resume_goes_on_behind_it(
    broker: Broker, start: Start, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a trainer that fetches ahead, and is at its first update
    monkeypatch.setattr("heddle.consumers.prefetch.LARGE_BYTES", 0)
    used, ahead = list[str](), list[Prefetch]()
    take, begin = Prefetch.take, Prefetch._begin

    def noted(self: Prefetch, pointer: Any) -> Any:
        data = take(self, pointer)
        used.extend([pointer.entry_id] if data is not None else [])
        return data

    def begun(self: Prefetch, after: str) -> None:
        ahead.append(self)
        begin(self, after)

    monkeypatch.setattr(Prefetch, "take", noted)
    monkeypatch.setattr(Prefetch, "_begin", begun)
    fleet, hooks = without_a_barrier(broker, tmp_path)
    one = start(fleet.experiment)
    version = fleet.version()
    (hooks / "hang-update").touch()
    fleet.give(0, version)
    fleet.give(1, version)
    eventually(lambda: (hooks / "in-update").exists())
    # When more comes meanwhile
    for _ in range(6):
        fleet.give(0, version)
        fleet.give(1, version)
    eventually(lambda: ahead and len(ahead[0]._kept) == 12, what="all of it is here")
    (hooks / "hang-update").unlink()
    settled(fleet, 14)
    # Then it was used, and everything was trained once
    assert len(used) == len(set(used)) > 0
    one.end()
    fleet.give(0, version)
    fleet.give(1, version)
    start(fleet.experiment)
    settled(fleet, 16)
    seen = seen_in(saved(home))
    for shard in (0, 1):
        assert [seq for where, seq in seen if where == shard] == list(range(1, 9))
    fleet.check_balance()


def test_a_batch_of_an_older_version_is_stale_and_excuses_nobody_from_the_next(broker: Broker, start: Start) -> None:
    fleet = Fleet(broker, submit(broker)).claim_all()
    start(fleet.experiment)
    version = played(fleet, fleet.version())
    fleet.give(0, version - 1, given=version)  # says it gives the new version, was played by the old one
    fleet.give(1, version)
    fleet.version(version + 1)
    eventually(lambda: fleet.flow().stale.batches == 1)
    fleet.check_balance()


def test_a_shard_whose_batch_is_dead_is_not_waited_for(broker: Broker, start: Start, home: Path) -> None:
    fleet = Fleet(broker, submit(broker)).claim_all()
    start(fleet.experiment)
    version = fleet.version()
    fleet.give(0, version, data=b"not a batch at all", steps=8)
    fleet.give(1, version)
    fleet.version(version + 1)
    settled(fleet, 1)
    assert fleet.flow().dead.batches == 1
    assert seen_in(saved(home)) == [(1, 1)]


def test_when_every_batch_is_dead_the_same_weights_go_on_as_the_next_version(broker: Broker, start: Start) -> None:
    fleet = Fleet(broker, submit(broker)).claim_all()
    start(fleet.experiment)
    version = fleet.version()
    before = unpack(broker.policies.fetch(fleet.experiment)[1])[0]
    for shard in fleet.claims:
        fleet.give(shard, version, data=b"not a batch at all", steps=8)
    fleet.version(version + 1)
    after = unpack(broker.policies.fetch(fleet.experiment)[1])[0]
    assert all((before[name] == after[name]).all() for name in before)


def test_sync_trains_on_what_is_there_after_the_time_out(broker: Broker, start: Start) -> None:
    fleet = Fleet(broker, submit(broker, trainer={"sync_timeout": 0.3})).claim_all()
    start(fleet.experiment)
    version = fleet.version()
    fleet.give(0, version)
    fleet.version(version + 1)
    settled(fleet, 1)


def test_without_sync_it_updates_on_enough_steps_and_sets_old_versions_aside(
    broker: Broker, start: Start, home: Path
) -> None:
    spec: dict[str, Any] = {"rollout": {"sync": False, "max_policy_lag": 1}, "trainer": {"batch_steps": 16}}
    fleet = Fleet(broker, submit(broker, **spec)).claim_all()
    start(fleet.experiment)
    fleet.version()
    for version in (1, 2, 3):
        fleet.give(0, version)
        fleet.give(0, version)
        fleet.version(version + 1)
    fleet.give(0, 2)
    fleet.give(0, 4)
    eventually(lambda: fleet.flow().stale.batches == 1)
    fleet.give(0, 3)
    fleet.version(5)
    settled(fleet, 8)
    assert seen_in(saved(home)) == [(0, 1), (0, 2), (0, 3), (0, 4), (0, 5), (0, 6), (0, 8), (0, 9)]


def test_high_water_forces_an_update_and_a_checkpoint(broker: Broker, start: Start) -> None:
    spec: dict[str, Any] = {
        "rollout": {"sync": False},
        "trainer": {"batch_steps": 64, "checkpoint_every": 1000},
    }
    fleet = Fleet(broker, submit(broker, **spec)).claim_all()
    raw: Any = broker.conn.main
    raw.hset(keys.ctl(fleet.experiment), "max_entries", 4)
    start(fleet.experiment)
    fleet.version()
    for _ in range(3):
        for _ in range(4):
            eventually(lambda: fleet.offer(0, 1).status == "OK", what="room")
    settled(fleet, 8)


def test_a_trainer_that_ends_leaves_the_experiment_to_the_next_one(broker: Broker, start: Start, home: Path) -> None:
    fleet = Fleet(broker, submit(broker)).claim_all()
    first = start(fleet.experiment)
    version = played(fleet, fleet.version())
    fleet.give(0, version)
    assert first.leave() == 0
    assert broker.seats.holder(fleet.experiment) is None
    assert broker.experiments.status(fleet.experiment).outcome == ""
    start(fleet.experiment)
    # The restored weights get a new number, and what was played by their old one counts as current.
    resumed = fleet.version(version + 1)
    assert resumed == version + 1
    for shard in fleet.claims:
        fleet.give(shard, resumed)
    fleet.version(resumed + 1)
    settled(fleet, 5)
    assert seen_in(saved(home)) == [(0, 1), (1, 1), (0, 2), (0, 3), (1, 2)]
    assert fleet.flow().stale.batches == 0
    fleet.check_balance()


def test_the_newest_checkpoint_is_that_of_the_highest_seat_epoch(broker: Broker, start: Start, home: Path) -> None:
    fleet = Fleet(broker, submit(broker)).claim_all()
    first = start(fleet.experiment)
    version = fleet.version()
    for _ in range(3):
        version = played(fleet, version)
    settled(fleet, 6)
    first.leave()
    second = start(fleet.experiment)
    version = played(fleet, fleet.version(version + 1))
    settled(fleet, 8)
    second.leave()
    checkpoint = saved(home)
    assert checkpoint is not None
    assert checkpoint.update == 4
    assert len(seen_in(checkpoint)) == len(set(seen_in(checkpoint))) == 8


def test_it_publishes_again_what_the_broker_lost(broker: Broker, start: Start) -> None:
    fleet = Fleet(broker, submit(broker)).claim_all()
    start(fleet.experiment)
    version = played(fleet, fleet.version())
    raw: Any = broker.conn.main
    raw.hset(keys.ctl(fleet.experiment), "policy", version - 1)
    assert fleet.version(version) == version


def test_a_trainer_that_lost_its_seat_stops_without_another_write(broker: Broker, start: Start, home: Path) -> None:
    fleet = Fleet(broker, submit(broker)).claim_all()
    first = start(fleet.experiment)
    version = fleet.version()
    raw: Any = broker.conn.main
    raw.delete(keys.seat(fleet.experiment))
    raw.hset(keys.ctl(fleet.experiment), "seat_epoch", 2**50)
    fleet.give(0, version)
    fleet.give(1, version)
    with pytest.raises(SeatLost):
        first.join()
    assert (fleet.flow().trained.batches, broker.policies.latest(fleet.experiment)) == (0, version)


def test_a_second_trainer_waits_for_the_seat_and_takes_it(broker: Broker, start: Start) -> None:
    fleet = Fleet(broker, submit(broker)).claim_all()
    first = start(fleet.experiment)
    version = fleet.version()
    second = start(fleet.experiment)
    first.leave()
    assert played(fleet, fleet.version(version + 1)) == version + 2
    assert second.leave() == 0


def test_the_budget_ends_the_run_with_nothing_in_flight(broker: Broker, start: Start, home: Path) -> None:
    fleet = Fleet(broker, submit(broker, budget={"env_steps": 32})).claim_all()
    trainer = start(fleet.experiment)
    version = played(fleet, fleet.version())
    played(fleet, version)
    fleet.give(0, version + 1)  # more than the budget asked for
    eventually(lambda: broker.experiments.ctl(fleet.experiment).command == "stop")
    fleet.release_all()
    assert trainer.join() == 0
    ctl = broker.experiments.ctl(fleet.experiment)
    assert (ctl.command, ctl.outcome) == ("stop", "completed")
    result = broker.experiments.status(fleet.experiment).result
    assert (result["env_steps"], result["updates"]) == (32, 2)
    assert load(Path(result["checkpoint"])).env_steps == 32
    assert result["accounting"]["trained"] == {"batches": 4, "steps": 32}
    assert result["accounting"]["stale"] == {"batches": 1, "steps": 8}
    assert result["accounting"]["in_flight"] == {"batches": 0, "steps": 0}
    assert broker.seats.holder(fleet.experiment) is None
    fleet.check_balance()


def test_stop_trains_a_remainder_that_is_worth_it(broker: Broker, start: Start, home: Path) -> None:
    fleet = Fleet(broker, submit(broker)).claim_all()
    trainer = start(fleet.experiment)
    version = played(fleet, fleet.version())
    fleet.give(0, version)
    broker.experiments.set_command(fleet.experiment, "stop")
    fleet.release_all()
    assert trainer.join() == 0
    assert broker.experiments.ctl(fleet.experiment).outcome == "stopped"
    assert seen_in(saved(home)) == [(0, 1), (1, 1), (0, 2)]
    assert fleet.flow().entries == 0


@pytest.mark.parametrize("why", ["shard 1 is quarantined: boom", ""])
def test_a_stop_for_a_reason_of_the_coordinators_is_told_as_that_failure(
    broker: Broker, start: Start, home: Path, why: str
) -> None:
    fleet = Fleet(broker, submit(broker)).claim_all()
    trainer = start(fleet.experiment)
    version = played(fleet, fleet.version())
    fleet.give(0, version)
    # When the coordinator says why, then stop, as it does of one that cannot go on
    broker.experiments.set_status(fleet.experiment, "stopping", leader_epoch=1, reason=why)
    broker.experiments.set_command(fleet.experiment, "stop", leader_epoch=1)
    fleet.release_all()
    # Then its trainer tells that to whoever asks the broker, the log or the run's folder, and saves what it trained
    expected = ("failed", why) if why else ("stopped", "stopped by command")
    assert trainer.join() == (1 if why else 0)
    ctl = broker.experiments.ctl(fleet.experiment)
    assert (ctl.outcome, ctl.reason) == expected
    (told,) = home.rglob("ended.json")
    ended = json.loads(told.read_text())
    assert (ended["state"], ended["reason"]) == expected
    assert seen_in(saved(home)) == [(0, 1), (1, 1), (0, 2)] and fleet.flow().entries == 0


def test_a_paused_trainer_reads_and_does_not_train(broker: Broker, start: Start) -> None:
    fleet = Fleet(broker, submit(broker, trainer={"sync_timeout": 0.2})).claim_all()
    start(fleet.experiment)
    version = played(fleet, fleet.version())
    broker.experiments.set_command(fleet.experiment, "pause")
    settled(fleet, 2)
    fleet.give(0, version)
    group: Any = broker.conn.main
    stream = keys.experience(fleet.experiment, 0)
    eventually(lambda: group.xpending(stream, keys.TRAINER_GROUP)["pending"] == 1)
    assert broker.policies.latest(fleet.experiment) == version
    broker.experiments.set_command(fleet.experiment, "run")
    fleet.version(version + 1)


@pytest.mark.parametrize(
    ("hook", "said"),
    [
        ("fail-update", ("update 2 on shards 0, 1", "ValueError: the learner fell over")),
        ("fail-state", ("update 2: learner tests.trainer_kit:Recorder raised in state: ",)),
        ("nan-loss", ("update 2 on shards 0, 1: the learner tells of policy_loss = nan; lower trainer.lr",)),
    ],
)
def test_a_learner_that_raises_fails_the_run_and_the_last_checkpoint_stays(
    broker: Broker, start: Start, home: Path, tmp_path: Path, hook: str, said: tuple[str, ...]
) -> None:
    fleet = Fleet(broker, submit(broker, trainer={"kwargs": {"hooks": str(tmp_path)}})).claim_all()
    trainer = start(fleet.experiment)
    version = played(fleet, fleet.version())
    settled(fleet, 2)
    (tmp_path / hook).touch()
    for shard in fleet.claims:
        fleet.give(shard, version)
    eventually(lambda: broker.experiments.ctl(fleet.experiment).outcome == "failed")
    fleet.release_all()
    assert trainer.join() == 1
    reason = broker.experiments.ctl(fleet.experiment).reason
    assert all(words in reason for words in said)
    assert seen_in(saved(home)) == [(0, 1), (1, 1)]
    dead = 0 if hook == "fail-state" else 2  # what it raised over is set aside
    assert (fleet.flow().dead.batches, fleet.flow().entries) == (dead, 0)
    fleet.check_balance()


def noted_end(folder: Path) -> tuple[str, str]:
    """Outcome and reason, as the trainer wrote them down beside its checkpoints."""
    told = json.loads((folder / ENDED).read_text(encoding="utf-8"))
    return told["state"], told["reason"]


def test_what_a_learner_raises_behind_a_run_that_was_completed_fails_nothing(
    broker: Broker, start: Start, home: Path, tmp_path: Path
) -> None:
    # Given a trainer that told that the run completed and was killed before it had settled a batch
    fleet = Fleet(broker, submit(broker, trainer={"kwargs": {"hooks": str(tmp_path)}})).claim_all()
    epoch = broker.seats.claim_seat(fleet.experiment, "killed-1-0", ttl_ms=60_000)
    assert epoch is not None
    fleet.give(0, 1)
    broker.experiments.finish(fleet.experiment, epoch, "completed", "used env_steps 32", {})
    broker.seats.release_seat(fleet.experiment, epoch)
    fleet.release_all()
    # When the learner raises under the next one, which settles it
    (tmp_path / "fail-state").touch()
    trainer = start(fleet.experiment)
    # Then that is no failure, neither for who asks the broker nor for who waits for the process
    assert trainer.join() == 0
    ctl = broker.experiments.ctl(fleet.experiment)
    assert (ctl.outcome, ctl.reason) == ("completed", "used env_steps 32")
    assert noted_end(home) == ("completed", "used env_steps 32")
    assert any("the learner fell over" in line.message for line in broker.events.read(fleet.experiment, count=50))


def test_a_trainer_whose_experiment_is_removed_says_so_though_its_keeper_noticed_first(
    broker: Broker, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = submit(broker)

    def begin(loop: Loop) -> None:
        # When the experiment is removed, and the thread that keeps the seat is the first to know
        broker.experiments.remove(experiment, force=True)
        eventually(lambda: loop.parts.seat.is_lost)
        loop.parts.seat.check()

    monkeypatch.setattr(Loop, "begin", begin)
    # Then it ends because there is nothing to train, not because another trainer came
    with pytest.raises(Gone, match="removed while it was trained"):
        start(experiment, ttl_ms=300).join()


def test_a_gradient_that_exploded_is_told_although_the_run_goes_on(
    broker: Broker, start: Start, tmp_path: Path
) -> None:
    (tmp_path / "exploded-gradient").touch()
    fleet = Fleet(broker, submit(broker, trainer={"kwargs": {"hooks": str(tmp_path)}})).claim_all()
    start(fleet.experiment)
    played(fleet, fleet.version())
    told = "the gradient exploded, grad_norm = "
    eventually(lambda: any(told in line.message for line in broker.events.read(fleet.experiment, count=50)))
    fleet.check_balance()


def test_a_bad_step_pauses_the_run_with_the_weights_as_they_were_and_a_resumed_one_goes_on(
    broker: Broker, start: Start
) -> None:
    bad = {"learner": "ppo", "grad_limit": 1e-12, "on_bad_step": "pause", "passes": 1}
    fleet = Fleet(broker, submit(broker, trainer=bad)).claim_all()
    start(fleet.experiment)
    first = fleet.version()
    for again in range(2):
        version = played(fleet, first + again)
        eventually(lambda: broker.experiments.ctl(fleet.experiment).command == "pause")
        one, other = (unpack(broker.policies.fetch(fleet.experiment, number)[1])[0] for number in (first, version))
        assert all(np.array_equal(one[name], other[name]) for name in one)
        told = [line.message for line in broker.events.read(fleet.experiment, count=50)]
        wanted = f"paused: update {again + 1} on shards 0, 1: update {again + 1} gave a gradient of norm"
        assert len([message for message in told if message.startswith(wanted)]) == 1, told
        broker.experiments.set_command(fleet.experiment, "run")
    fleet.check_balance()


def test_a_loss_that_is_no_number_pauses_the_run_of_a_learner_of_ones_own_and_a_resumed_one_goes_on(
    broker: Broker, start: Start, tmp_path: Path
) -> None:
    odd = {"kwargs": {"hooks": str(tmp_path)}, "on_bad_step": "pause"}
    (tmp_path / "nan-loss").touch()
    fleet = Fleet(broker, submit(broker, trainer=odd)).claim_all()
    start(fleet.experiment)
    version = played(fleet, fleet.version())
    eventually(lambda: broker.experiments.ctl(fleet.experiment).command == "pause")
    told = [line.message for line in broker.events.read(fleet.experiment, count=50)]
    assert any(line.startswith("paused: update 1 on shards 0, 1: the learner tells of policy_loss") for line in told)
    (tmp_path / "nan-loss").unlink()
    broker.experiments.set_command(fleet.experiment, "run")
    assert played(fleet, version) > version
    fleet.check_balance()


def test_weights_that_are_not_finite_are_never_published_and_fail_the_run(
    broker: Broker, start: Start, tmp_path: Path
) -> None:
    fleet = Fleet(broker, submit(broker, trainer={"kwargs": {"hooks": str(tmp_path)}})).claim_all()
    trainer = start(fleet.experiment)
    version = played(fleet, fleet.version())
    (tmp_path / "nan-weights").touch()
    for shard in fleet.claims:
        fleet.give(shard, version)
    eventually(lambda: broker.experiments.ctl(fleet.experiment).outcome == "failed")
    fleet.release_all()
    assert trainer.join() == 1
    assert "infinite or NaN" in broker.experiments.ctl(fleet.experiment).reason
    assert broker.policies.latest(fleet.experiment) == version
    fleet.check_balance()


def test_a_learner_that_cannot_be_made_fails_the_run_at_once(broker: Broker, start: Start) -> None:
    experiment = submit(broker, trainer={"learner": "tests.trainer_kit:Nobody"})
    assert start(experiment).join() == 1
    ctl = broker.experiments.ctl(experiment)
    assert ctl.outcome == "failed"
    assert "Nobody" in ctl.reason


def test_a_trainer_whose_checkpoints_are_elsewhere_refuses_to_begin_anew(
    broker: Broker, start: Start, home: Path
) -> None:
    fleet = Fleet(broker, submit(broker)).claim_all()
    first = start(fleet.experiment)
    played(fleet, fleet.version())
    settled(fleet, 2)
    first.leave()
    home.rename(home.with_name("elsewhere"))
    with pytest.raises(CheckpointMissing, match="start the trainer where its files are"):
        start(fleet.experiment).join()
    assert broker.experiments.ctl(fleet.experiment).outcome == ""


def test_with_ack_update_what_no_checkpoint_holds_is_counted_as_rolled_back(
    broker: Broker, start: Start, home: Path
) -> None:
    spec: dict[str, Any] = {"trainer": {"ack": "update", "checkpoint_every": 1000}}
    fleet = Fleet(broker, submit(broker, **spec)).claim_all()
    first = start(fleet.experiment)
    version = played(fleet, fleet.version())
    played(fleet, version)
    eventually(lambda: fleet.flow().trained.batches == 4)
    first.end()  # at once: it saves nothing
    start(fleet.experiment)
    eventually(lambda: fleet.flow().rolled_back.batches == 4)
    assert (fleet.flow().trained.batches, seen_in(saved(home))) == (0, [])
    fleet.check_balance()


def test_evaluations_are_collected_measured_and_choose_the_best_checkpoint(
    broker: Broker, start: Start, home: Path
) -> None:
    spec: dict[str, Any] = {"eval": {"num_envs": 2, "episodes": 2, "every_updates": 1}, "budget": {"target_return": 7}}
    fleet = Fleet(broker, submit(broker, **spec)).claim_all()
    trainer = start(fleet.experiment)
    (evaluator,) = [shard for shard, claim in fleet.claims.items() if claim.kind == "eval"]
    for expected, returns in ((2, [3.0, 5.0]), (3, [8.0, 8.0])):
        played(fleet, fleet.version(expected - 1))
        eventually(partial(pinned, broker, fleet.experiment, expected))
        fleet.give(evaluator, expected, given=0, returns=returns[:1])
        fleet.give(evaluator, expected, returns=returns[1:])
        if expected == 2:
            eventually(lambda: "eval_return" in broker.events.metrics_last(fleet.experiment))
            assert broker.events.metrics_last(fleet.experiment)["eval_return"] == 4.0
            assert load(home / "checkpoints" / BEST).policy_version == 2
    eventually(lambda: broker.experiments.ctl(fleet.experiment).command == "stop")
    fleet.release_all()
    assert trainer.join() == 0
    result = broker.experiments.status(fleet.experiment).result
    assert (result["eval_return"], result["best_return"]) == (8.0, 8.0)
    assert load(Path(result["best"])).policy_version == 3
    assert fleet.flow().evaluated.batches == 4
    fleet.check_balance()


def test_an_evaluation_goes_on_under_the_next_trainer(broker: Broker, start: Start) -> None:
    spec: dict[str, Any] = {"eval": {"num_envs": 2, "episodes": 2, "every_updates": 1}}
    fleet = Fleet(broker, submit(broker, **spec)).claim_all()
    first = start(fleet.experiment)
    (evaluator,) = [shard for shard, claim in fleet.claims.items() if claim.kind == "eval"]
    played(fleet, fleet.version())
    eventually(lambda: broker.experiments.ctl(fleet.experiment).eval_policy == 2)
    fleet.give(evaluator, 2, given=0, returns=[3.0])
    eventually(lambda: fleet.flow().evaluated.batches == 1)  # idle, so that the checkpoint holds it
    first.leave()
    start(fleet.experiment)
    fleet.version(3)
    fleet.give(evaluator, 2, returns=[9.0])
    eventually(lambda: broker.events.metrics_last(fleet.experiment).get("eval_return") == 6.0)


def test_metrics_tell_of_steps_lag_and_waits(broker: Broker, start: Start) -> None:
    fleet = Fleet(broker, submit(broker)).claim_all()
    start(fleet.experiment)
    version = fleet.version()
    fleet.give(0, version, returns=[2.0, 4.0], waited_ms=1500)
    fleet.give(1, version, waited_ms=250)
    eventually(lambda: broker.events.metrics_last(fleet.experiment).get("env_steps") == 16)
    assert broker.events.metrics_last(fleet.experiment)["worker_wait_seconds"] == 1.75
    played(fleet, fleet.version(version + 1))
    eventually(lambda: broker.events.metrics_last(fleet.experiment).get("env_steps") == 32)
    last = broker.events.metrics_last(fleet.experiment)
    assert (last["return"], last["length"], last["episodes"], last["lag_mean"], last["lag_max"]) == (3, 1, 2, 0, 0)
    names = {
        "steps_per_second",
        "wait_seconds",
        "worker_wait_seconds",
        "update_seconds",
        "checkpoint_seconds",
        "progress",
    }
    assert names <= last.keys()


def test_metrics_tell_where_the_batches_of_an_update_spent_their_time(broker: Broker, start: Start) -> None:
    fleet = Fleet(broker, submit(broker)).claim_all()
    start(fleet.experiment)
    version = played(fleet, fleet.version())
    eventually(lambda: broker.events.metrics_last(fleet.experiment).get("env_steps") == 16, what="the first update")
    fleet.give(0, version, played_ms=300, held_ms=20)
    SystemClock().sleep(0.3)  # in which the other shard's batch is waited for
    fleet.give(1, version, played_ms=100, held_ms=40)
    eventually(lambda: broker.events.metrics_last(fleet.experiment).get("env_steps") == 32, what="the second update")
    last = broker.events.metrics_last(fleet.experiment)
    assert (last["rollout_seconds"], last["append_seconds"]) == (0.2, 0.03)
    assert (last["slowest_shard"], last["slowest_seq"], last["slowest_rollout_seconds"]) == (0, 2, 0.3)
    assert last["slowest_epoch"] == fleet.claims[0].lease.epoch
    assert last["slowest_queue_seconds"] > 0.25 > last["slowest_stream_seconds"] >= 0
    assert last["slowest_queue_seconds"] > last["queue_seconds"] >= last["slowest_queue_seconds"] / 2
    assert 0 <= last["first_use_seconds"] < 10
    assert last["publish_seconds"] >= 0


def test_training_goes_on_when_the_memory_is_full(broker: Broker, start: Start) -> None:
    fleet = Fleet(broker, submit(broker, trainer={"checkpoint_every": 1000})).claim_all()
    start(fleet.experiment)
    version = played(fleet, fleet.version())
    raw: Any = broker.conn.main
    for shard in fleet.claims:
        if shard:
            raw.config_set("maxmemory", 1)
            eventually(lambda: fleet.flow().trained.batches == 2, what="room is made while nothing can be published")
            raw.config_set("maxmemory", 512 << 20)
        fleet.give(shard, version)
    fleet.version(version + 1)


def test_memory_that_is_full_forces_an_update_on_what_is_there(broker: Broker, start: Start) -> None:
    spec: dict[str, Any] = {"rollout": {"sync": False}, "trainer": {"batch_steps": 64}}
    fleet = Fleet(broker, submit(broker, **spec)).claim_all()
    start(fleet.experiment)
    fleet.give(0, fleet.version())
    raw: Any = broker.conn.main
    raw.config_set("maxmemory", 1)
    settled(fleet, 1)


def test_a_run_that_continues_another_goes_on_with_its_counters(
    broker: Broker, redis_server: LocalServer, tmp_path: Path
) -> None:
    fleet = Fleet(broker, submit(broker)).claim_all()
    first = InThread(redis_server.url, fleet.experiment, tmp_path / fleet.experiment)
    played(fleet, fleet.version())
    settled(fleet, 2)
    broker.experiments.set_command(fleet.experiment, "stop")
    fleet.release_all()
    assert first.join() == 0
    heir = Fleet(broker, submit(broker, resume_from=fleet.experiment)).claim_all()
    second = InThread(redis_server.url, heir.experiment, tmp_path / heir.experiment)
    version = heir.version()
    assert version == 3  # above what the first one had
    played(heir, version)
    settled(heir, 2)
    assert second.leave() == 0
    checkpoint = saved(tmp_path / heir.experiment)
    assert checkpoint is not None
    assert (checkpoint.update, checkpoint.env_steps) == (2, 32)
    assert len(checkpoint.learner_meta["seen"]) == 2
    assert heir.flow().rolled_back.batches == 0


def test_a_run_that_continues_one_without_checkpoints_fails_with_the_reason(broker: Broker, start: Start) -> None:
    experiment = submit(broker, resume_from="nothing-1234")
    assert start(experiment).join() == 1
    assert "cannot continue nothing-1234" in broker.experiments.ctl(experiment).reason


def test_an_end_makes_room_for_batches_that_found_the_stream_full(broker: Broker, start: Start) -> None:
    # Given a paused run whose stream is full, and a worker that keeps one more batch
    fleet = Fleet(broker, submit(broker, rollout={"sync": False}, limits={"max_entries": 4})).claim_all()
    trainer = start(fleet.experiment)
    version = fleet.version()
    broker.experiments.set_command(fleet.experiment, "pause")
    for _ in range(4):
        fleet.give(0, version)
    assert fleet.offer(0, version).status == "FULL"
    # When it is stopped
    broker.experiments.set_command(fleet.experiment, "stop")
    # Then the worker gets rid of its batch before its lease is over, and nothing stays behind
    eventually(lambda: fleet.offer(0, version).status == "OK", timeout_s=5, what="room")
    fleet.release_all()
    assert trainer.join() == 0
    assert (fleet.flow().entries, fleet.flow().appended.batches) == (0, 5)
    fleet.check_balance()


def test_an_evaluation_that_lost_a_batch_makes_way_for_the_next(broker: Broker, start: Start) -> None:
    spec: dict[str, Any] = {"eval": {"num_envs": 2, "episodes": 2, "every_updates": 1}}
    fleet = Fleet(broker, submit(broker, **spec)).claim_all()
    start(fleet.experiment)
    (evaluator,) = [shard for shard, claim in fleet.claims.items() if claim.kind == "eval"]
    version = played(fleet, fleet.version())
    eventually(lambda: broker.experiments.ctl(fleet.experiment).eval_policy == version)
    fleet.give(evaluator, version, data=b"not a batch")
    eventually(lambda: fleet.flow().dead.batches == 1)
    version = played(fleet, version)
    eventually(lambda: broker.experiments.ctl(fleet.experiment).eval_policy == version, what="the next evaluation")


def test_an_evaluation_of_which_a_killed_trainer_acked_a_part_makes_way_for_the_next(
    broker: Broker, start: Start
) -> None:
    spec: dict[str, Any] = {
        "trainer": {"ack": "update"},
        "eval": {"num_envs": 4, "episodes": 4, "every_updates": 1},
    }
    fleet = Fleet(broker, submit(broker, **spec)).claim_all()
    first = start(fleet.experiment)
    evaluator = min(shard for shard, claim in fleet.claims.items() if claim.kind == "eval")
    version = played(fleet, fleet.version())
    eventually(lambda: pinned(broker, fleet.experiment, version))
    latest = played(fleet, version)  # its checkpoint says that an evaluation is under way
    fleet.give(evaluator, version, returns=[1.0, 1.0])
    eventually(lambda: fleet.flow().evaluated.batches == 1)
    first.end()  # at once: it saves nothing
    start(fleet.experiment)
    latest = played(fleet, fleet.version(latest + 1))
    eventually(lambda: pinned(broker, fleet.experiment, latest), what="the next evaluation")


def test_an_evaluation_whose_pin_the_broker_forgot_makes_way_for_the_next(broker: Broker, start: Start) -> None:
    spec: dict[str, Any] = {"eval": {"num_envs": 2, "episodes": 2, "every_updates": 1}}
    fleet = Fleet(broker, submit(broker, **spec)).claim_all()
    start(fleet.experiment)
    version = played(fleet, fleet.version())
    eventually(lambda: broker.experiments.ctl(fleet.experiment).eval_policy == version)
    raw: Any = broker.conn.main
    raw.hset(keys.ctl(fleet.experiment), "eval_policy", 0)

    def evaluated_again() -> bool:
        """An update may fall into the turn that has seen the old pin still; the one after it does not."""
        nonlocal version
        if not broker.experiments.ctl(fleet.experiment).eval_policy:
            version = played(fleet, version)
        return broker.experiments.ctl(fleet.experiment).eval_policy > 0

    eventually(evaluated_again, every_s=0.2, what="the next evaluation")


def test_a_version_that_only_workers_remember_is_passed_by(broker: Broker, start: Start) -> None:
    fleet = Fleet(broker, submit(broker)).claim_all()
    start(fleet.experiment)
    version = fleet.version()
    for shard in fleet.claims:
        fleet.give(shard, version + 9)
    assert fleet.version(version + 10) == version + 10
    played(fleet, version + 10)
    fleet.version(version + 11)


def test_a_run_none_of_whose_batches_can_be_used_fails_with_the_reason(broker: Broker, start: Start) -> None:
    fleet = Fleet(broker, submit(broker, rollout={"sync": False}, limits={"max_entries": 1000})).claim_all()
    trainer = start(fleet.experiment)
    version = fleet.version()
    for _ in range(MOST_BURIED):
        for shard in fleet.claims:
            fleet.give(shard, version, data=b"not a batch")
    eventually(lambda: broker.experiments.status(fleet.experiment).outcome == "failed", what="the run fails")
    assert "batches could not be used" in broker.experiments.status(fleet.experiment).reason
    fleet.release_all()
    assert trainer.join() == 1
    fleet.check_balance()
