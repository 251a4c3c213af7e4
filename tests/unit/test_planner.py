"""What the coordinator decides, as tables: facts in, actions out."""

from dataclasses import replace
from typing import Any

import pytest

from heddle.coord.planner import (
    STUCK_MS,
    Action,
    ExperimentFacts,
    QueuedFact,
    Quota,
    SetActive,
    SetStatus,
    ShardFact,
    Stop,
    is_stuck,
    may_reap,
    plan_experiment,
    quota,
    sleep_ms,
    tickets_to_issue,
)


def shards(*states: str, error: str = "env blew up") -> tuple[ShardFact, ...]:
    """Train shards in `states`, then one eval shard that is leased unless stop has released it."""
    train = [ShardFact(i, "train", state, error if state == "quarantined" else "") for i, state in enumerate(states)]
    return (*train, ShardFact(len(states), "eval", "stopped" if "stopped" in states else "leased"))


RUNNING = ExperimentFacts(
    state="running",
    reason="",
    command="run",
    outcome="",
    outcome_reason="",
    active=2,
    active_eval=1,
    on_quarantine="continue",
    shards=shards("leased", "leased"),
    seat_held=True,
    seat_epoch=5,
)
OVER = replace(RUNNING, state="stopping", command="stop", shards=shards("stopped", "stopped"), seat_held=False)
BOOM = (ShardFact(0, "train", "quarantined", "boom"),)
ALL_BOOM = "every train shard is quarantined; shard 0: boom"
FAILED = replace(OVER, active=0, active_eval=0, shards=BOOM)


@pytest.mark.parametrize(
    ("name", "base", "changes", "expected"),
    [
        ("nothing to do", RUNNING, {}, []),
        ("admitted", RUNNING, {"state": "queued", "active": 0, "active_eval": 0},
         [SetActive(2, 1), SetStatus("running")]),
        ("paused", RUNNING, {"command": "pause"}, [SetStatus("paused")]),
        ("resumed", RUNNING, {"state": "paused"}, [SetStatus("running")]),
        ("told to stop", RUNNING, {"command": "stop"}, [SetStatus("stopping")]),
        ("finished by its trainer", RUNNING, {"command": "stop", "outcome": "completed", "outcome_reason": "budget"},
         [SetStatus("stopping", "budget")]),
        ("ended already", RUNNING, {"state": "stopped", "command": "stop", "active": 9}, []),
        ("workers have not released", OVER, {"shards": shards("leased", "stopped"), "outcome": "completed"}, []),
        ("trainer still flushes", OVER, {"seat_held": True}, []),
        ("trainer still sits", OVER, {"seat_held": True, "outcome": "completed"}, []),
        ("completed", OVER, {"outcome": "completed", "outcome_reason": "budget"}, [SetStatus("completed", "budget")]),
        ("stopped", OVER, {"outcome": "stopped"}, [SetStatus("stopped")]),
        ("failed", OVER, {"outcome": "failed", "outcome_reason": "nan loss"}, [SetStatus("failed", "nan loss")]),
        ("completed, its broker forgot an ack, a trainer may come back", OVER,
         {"outcome": "completed", "in_flight": 1, "seat_free_ms": 14_999}, []),
        ("stopped, its broker forgot an ack, and no trainer came back", OVER,
         {"outcome": "stopped", "outcome_reason": "by command", "in_flight": 1, "seat_free_ms": 15_000},
         [SetStatus("stopped", "by command; 1 batches were left untrained")]),
        ("failed, what is left is nobody's to train", OVER,
         {"outcome": "failed", "outcome_reason": "nan loss", "in_flight": 1}, [SetStatus("failed", "nan loss")]),
        ("a queued shard holds nothing up", OVER, {"shards": shards("queued", "stopped"), "outcome": "stopped"},
         [SetStatus("stopped")]),
        ("trainer away, may come back", OVER, {"seat_free_ms": 14_999}, []),
        ("trainer away for good", OVER, {"seat_free_ms": 15_000, "in_flight": 3},
         [SetStatus("stopped", "no trainer was there to end it; 3 batches were left untrained")]),
        ("never had a trainer", OVER, {"seat_epoch": 0, "seat_free_ms": 2_000},
         [SetStatus("stopped", "no trainer was there to end it")]),
        ("never had a trainer, just stopped", OVER, {"seat_epoch": 0, "seat_free_ms": 1_999}, []),
        ("one quarantined, go on", RUNNING, {"shards": shards("quarantined", "leased")}, [SetActive(1, 1)]),
        ("one quarantined, fail", RUNNING,
         {"shards": shards("quarantined", "leased"), "on_quarantine": "fail", "active": 1},
         [SetStatus("stopping", "shard 0 is quarantined: env blew up"), Stop()]),
        ("all quarantined", RUNNING, {"shards": shards("quarantined", "quarantined"), "active": 0},
         [SetStatus("stopping", "every train shard is quarantined; shard 0: env blew up"), Stop()]),
        ("failing, not stopped yet", RUNNING,
         {"shards": shards("quarantined", "quarantined"), "active": 0, "state": "stopping", "reason": ALL_BOOM},
         [Stop()]),
        ("all quarantined, somebody stopped it before anybody looked", RUNNING,
         {"shards": shards("quarantined", "quarantined"), "active": 0, "command": "stop"}, [SetStatus("stopping")]),
        ("failing, the trainer says stopped", FAILED, {"reason": ALL_BOOM, "outcome": "stopped"},
         [SetStatus("failed", ALL_BOOM)]),
        ("failing, and no trainer is there", FAILED, {"reason": "shard 0 is quarantined: boom"},
         [SetStatus("failed", ALL_BOOM)]),
        ("stopped, then all quarantined", FAILED, {"outcome": "stopped", "outcome_reason": "by command"},
         [SetStatus("stopped", f"by command; {ALL_BOOM}")]),
        ("the same where the stop was seen when its trainer had left", FAILED,
         {"reason": "by command", "outcome": "stopped", "outcome_reason": "by command"},
         [SetStatus("stopped", f"by command; {ALL_BOOM}")]),
        ("stopped, then all quarantined, the trainer may come back", FAILED, {"seat_free_ms": 14_999}, []),
        ("stopped, then all quarantined, and no trainer came back", FAILED, {"seat_free_ms": 15_000, "in_flight": 2},
         [SetStatus("stopped", f"no trainer was there to end it; {ALL_BOOM}; 2 batches were left untrained")]),
        ("stopped, then all quarantined, and its learner raised", FAILED,
         {"outcome": "failed", "outcome_reason": "nan loss"}, [SetStatus("failed", "nan loss")]),
        ("all quarantined after the budget was reached", FAILED, {"outcome": "completed"}, [SetStatus("completed")]),
        ("quarantined without a word", RUNNING,
         {"shards": shards("quarantined", "quarantined", error=""), "active": 0},
         [SetStatus("stopping", "every train shard is quarantined; shard 0: its workers died without a word"), Stop()]),
    ],
)  # fmt: skip
def test_an_experiment_gets(name: str, base: ExperimentFacts, changes: dict[str, Any], expected: list[Action]) -> None:
    assert plan_experiment(replace(base, **changes)) == expected, name


def test_deciding_again_on_what_was_done_decides_nothing() -> None:
    facts = replace(RUNNING, shards=shards("quarantined", "quarantined"), on_quarantine="fail")
    (_, stopping, _) = plan_experiment(facts)
    assert isinstance(stopping, SetStatus)
    done = replace(facts, state="stopping", reason=stopping.reason, command="stop", active=0, active_eval=1)
    assert plan_experiment(done) == []


@pytest.mark.parametrize(
    ("fact", "is_issued"),
    [
        (QueuedFact(3, in_stream=True, waits_ms=60_000), False),
        (QueuedFact(3, in_stream=False, waits_ms=299), False),
        (QueuedFact(3, in_stream=False, waits_ms=300), True),
        (QueuedFact(3, in_stream=True, waits_ms=60_000, read_ms_ago=1_999), False),
        (QueuedFact(3, in_stream=True, waits_ms=60_000, read_ms_ago=2_000), True),
    ],
)
def test_a_queued_shard_gets_a_new_ticket_only_when_its_own_came_to_nothing(fact: QueuedFact, is_issued: bool) -> None:
    assert tickets_to_issue("run", [fact]) == ([3] if is_issued else [])
    assert tickets_to_issue("pause", [fact]) == ([3] if is_issued else [])
    assert tickets_to_issue("stop", [fact]) == []


@pytest.mark.parametrize(
    ("active", "held", "expected"),
    [
        (8, [], Quota(0, 0, 0, 0)),
        (8, [8], Quota(8, 8, 0, 1)),
        (8, [8, 0], Quota(4, 4, 1, 2)),
        (8, [3, 3, 2], Quota(2, 3, 0, 3)),
        (8, [4, 4, 0], Quota(2, 3, 1, 3)),
        (1, [1, 0, 0], Quota(0, 1, 0, 3)),
        (0, [0], Quota(0, 0, 0, 1)),
    ],
)
def test_a_quota_shares_the_shards_between_floor_and_ceiling(active: int, held: list[int], expected: Quota) -> None:
    assert quota(active, held) == expected


@pytest.mark.parametrize(("due", "expected"), [(None, 500), (1_000, 1), (1_001, 1), (1_300, 300), (9_000, 500), (0, 1)])
def test_the_leader_sleeps_until_the_earliest_lease_is_due_but_never_long(due: int | None, expected: int) -> None:
    assert sleep_ms(1_000, due) == expected


def test_who_has_just_come_back_does_not_take_shards_away() -> None:
    assert not may_reap(9_999, 10_000, 10_000)
    assert may_reap(10_000, 10_000, 10_000)


@pytest.mark.parametrize(
    ("known_ms", "ttl_ms", "may"), [(4_332, 10_000, False), (4_333, 10_000, True), (999, 1_000, False)]
)
def test_a_new_coordinator_holds_off_until_owners_could_have_renewed(known_ms: int, ttl_ms: int, may: bool) -> None:
    assert may_reap(60_000, known_ms, ttl_ms) is may


def test_only_a_shard_that_waits_long_for_room_has_its_experience_counted_anew() -> None:
    assert is_stuck(True, STUCK_MS)
    assert not is_stuck(True, STUCK_MS - 1), "a trainer that saves takes as long"
    assert not is_stuck(False, 100 * STUCK_MS), "a slow environment gives nothing, and needs no room"
