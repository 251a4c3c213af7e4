"""Notes and stories: what roles write down arrives in order, bounded, and `why` tells it of the right thing."""

from typing import Any

import pytest

from heddle.broker import Broker, keys
from heddle.broker.failure_types import Failure
from heddle.broker.notes import MOST, Notes
from heddle.broker.pools import WorkerBeat
from heddle.clock import ManualClock
from heddle.errors import BrokerUnreachable, Gone, NotFound
from heddle.states.story import story_of_experiment, story_of_shard, story_of_worker
from tests.broker_kit import append, claim_next
from tests.contract.specs import submitted
from tests.trainer_kit import run_well, submit


def whats(story: Any) -> list[str]:
    return [moment.what for moment in story.moments]


# ---- notes


def test_a_note_keeps_the_time_at_which_it_was_written_down(any_broker: Broker) -> None:
    clock = ManualClock()
    notes = Notes("worker", "w1", clock=clock)
    notes.add("exp-1a2b", "claimed shard=3")
    clock.advance(2.0)
    assert notes.send(any_broker.events)
    (event,) = any_broker.events.read("exp-1a2b")
    added_ms = int(event.entry_id.partition("-")[0])
    assert (event.role, event.worker, event.message) == ("worker", "w1", "claimed shard=3")
    assert added_ms - event.time_ms == 2_000


def test_notes_wait_for_a_broker_that_is_away_and_what_is_crowded_out_is_counted(
    any_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = Notes("worker", "w1")
    with monkeypatch.context() as away:

        def refuse(*_: object, **__: object) -> Any:
            raise BrokerUnreachable("cut")

        away.setattr("heddle.broker.calls.Pipe.execute", refuse)
        for number in range(MOST + 5):
            notes.add(None, f"line {number}")
            assert number % 100 or not notes.send(any_broker.events)
    assert notes.send(any_broker.events)
    found = any_broker.events.read(count=2 * MOST)
    assert found[0].message == "left out 5 lines"
    assert [event.message for event in found[1:]] == [f"line {number}" for number in range(5, MOST + 5)]
    assert notes.send(any_broker.events), "nothing is sent twice"
    assert len(any_broker.events.read(count=2 * MOST)) == MOST + 1


def test_the_log_is_searched_to_its_end(any_broker: Broker) -> None:
    any_broker.events.log(None, "worker", "w1", "info", "first")
    for number in range(1_200):
        any_broker.events.log_all([])
        any_broker.conn.main.xadd(keys.LOG, {"message": f"other {number}"})
    for prints in (True, False):
        found = any_broker.events.find(lambda event: event.worker == "w1", prints=prints)
        assert [event.message for event in found] == ["first"]


# ---- stories


@pytest.fixture
def played(broker: Broker) -> str:
    """An experiment of which w1 played shard 0, whose parent then saw it die."""
    experiment = submit(broker)
    broker.experience.ensure_group(experiment, 0)
    broker.pools.heartbeat(WorkerBeat("w1", pid=7, host="box", state="playing", shards=1))
    claim = claim_next(broker, "w1")
    assert claim.lease.shard == 0
    broker.events.log(experiment, "worker", "w1", "info", f"claimed shard=0 epoch={claim.lease.epoch} seq=0")
    broker.events.log(experiment, "worker", "w9", "info", "claimed shard=10 epoch=1 seq=0")
    append(broker, claim.lease, 1)
    broker.events.log(None, "supervisor", "w1", "warning", "worker w1 ended with signal SIGKILL")
    broker.shards.release_worker("w1")
    broker.pools.bury("w1", "it ended with signal SIGKILL")
    return experiment


def test_a_shards_story_tells_who_had_it_and_how_that_one_ended(broker: Broker, played: str) -> None:
    story = story_of_shard(broker, played, 0, count=30)
    assert story.judgement.state == "waiting"
    told = whats(story)
    assert told[0].startswith("claimed shard=0")
    assert "worker w1 ended with signal SIGKILL" in told
    assert not [line for line in told if "shard=10" in line], "shard 1 and 10 are not shard 0"
    assert not [line for line in told if "tells no more" in line]


def test_a_shards_story_survives_a_log_that_forgot(broker: Broker, played: str) -> None:
    broker.conn.main.delete(keys.LOG)
    claim_next(broker, "w2")
    claim_next(broker, "w2")
    told = whats(story_of_shard(broker, played, 0, count=30))
    assert len([line for line in told if "tells no more" in line]) == 1


def test_a_shards_story_tells_how_its_environment_failed(broker: Broker, played: str) -> None:
    failure = Failure(
        "exception", "ValueError: no arm at env.py:3", "step", env=5, seed=77, episode=2, step=9, worker="w1"
    )
    assert broker.shards.note_failure(played, 0, 0, failure)
    story = story_of_shard(broker, played, 0, count=30)
    (line,) = [line for line in whats(story) if "no arm" in line]
    assert "step of environment 5, episode 2 step 9, seed 77" in line
    assert story.as_json()["failures"][0]["what"] == failure.what


def test_a_workers_story_goes_on_after_its_end(broker: Broker, played: str) -> None:
    story = story_of_worker(broker, "w1", count=30)
    assert (story.judgement.state, story.judgement.why) == ("dead", "it ended with signal SIGKILL")
    assert len(story.moments) == 2
    broker.pools.bye("w1")
    assert story_of_worker(broker, "w1", count=30).judgement.state == "gone"
    with pytest.raises(NotFound, match="nobody"):
        story_of_worker(broker, "nobody", count=30)


def test_an_experiments_story_holds_what_its_workers_and_coordinators_did(broker: Broker, played: str) -> None:
    broker.events.log(None, "coordinator", "c1", "info", "leads epoch=5")
    broker.events.log("other-1a2b", "coordinator", "c1", "info", "admitted")
    broker.events.log(None, "worker", "stranger", "info", "started pool=other")
    told = whats(story_of_experiment(broker, played, count=30))
    assert "submitted" in told and "leads epoch=5" in told and "worker w1 ended with signal SIGKILL" in told
    assert "admitted" not in told and "started pool=other" not in told
    assert told == whats(story_of_experiment(broker, played, count=30))
    assert len(story_of_experiment(broker, played, count=2).moments) == 2


def test_no_story_is_told_of_what_is_not_there(broker: Broker) -> None:
    experiment = submitted(broker)
    with pytest.raises(NotFound, match="no shard 3"):
        story_of_shard(broker, experiment, 3, count=5)
    with pytest.raises(Gone):
        story_of_experiment(broker, "nobody-1a2b", count=5)


def test_of_a_run_that_waits_for_a_slow_environment_the_shard_its_player_and_what_to_do_are_told(
    broker: Broker, played: str
) -> None:
    # Given a run whose updates wait for one shard
    slow = claim_next(broker, "w-slow").lease.shard
    waits = {"rollout_seconds": 0.3, "append_seconds": 0.0, "queue_seconds": 0.7, "update_seconds": 0.1}
    waits |= {"wait_seconds": 0.9, "longest_shard": float(slow), "longest_rollout_seconds": 1.1}
    epoch = run_well(broker, played, "w-slow")
    for update in range(1, 6):
        broker.events.metrics_add(played, update, waits)
    # Then
    told = story_of_experiment(broker, played, count=5).time
    assert "the slowest workers are the bottleneck; the trainer learns 10% of its time and waits 90%" in told
    line = f"shard {slow} takes 1.10 s to play a batch, the mean is 0.30 s"
    assert f"{line}, played by w-slow" in told
    assert f"heddle why {played}/{slow}" in told and "rollout.max_seconds" in told
    # And of that shard it is told, too, and of no other
    assert story_of_shard(broker, played, slow, count=5).time.startswith(f"{line}: the others wait for it; look at")
    assert story_of_shard(broker, played, 1 - slow, count=5).time == ""
    # When its trainer is gone, then what batches took before does not matter
    assert broker.seats.release_seat(played, epoch)
    assert story_of_experiment(broker, played, count=5).time == ""
    assert story_of_shard(broker, played, slow, count=5).time == ""
