"""What a worker holds, and what it plays next."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import create_autospec

import pytest

from heddle.broker import Broker
from heddle.broker.claiming import HEALTHY_BATCHES
from heddle.broker.types import Claim, Kind, Lease, Renewal
from heddle.clock import ManualClock
from heddle.errors import BrokerUnreachable
from heddle.producers.answers import Answers
from heddle.producers.appender import Appender
from heddle.producers.desk import Desk
from heddle.producers.holdings import (
    Facts,
    Holding,
    choose,
    first_to_leave,
    hold,
    reason_to_wait,
    stepping_changes,
    version_to_play,
)
from heddle.producers.lane_turns import LaneTurns
from heddle.producers.lanes import Lane
from heddle.producers.stage import episodes_of
from heddle.producers.turn import Turns
from heddle.shard import ShardPlan

E = "test-1a2b"


def claim(shard: int = 0, *, kind: Kind = "train", sync: bool = False, epoch: int = 1, **changes: Any) -> Claim:
    facts: dict[str, Any] = {"seq": 4, "given": 0, "command": "run", "policy": 0, "eval_policy": 0} | changes
    lease = Lease(E, 0, shard, "w1", epoch, "nonce")
    return Claim(lease=lease, min_policy=0, snapshot=None, kind=kind, attempts=1, sync=sync, **facts)


def holding(**changes: Any) -> Holding:
    return hold(claim(**changes), 1_000)


@pytest.mark.parametrize(
    ("held", "facts", "version"),
    [
        (holding(), Facts("run", policy=0), None),  # nothing is published yet
        (holding(), Facts("run", policy=3), 3),
        (holding(given=3), Facts("run", policy=3), 3),  # without a barrier the same version is played again
        (holding(), Facts("pause", policy=3), None),
        (holding(), Facts("stop", policy=3), None),
        (holding(sync=True, given=3), Facts("run", policy=3), None),
        (holding(sync=True, given=3), Facts("run", policy=4), 4),
        (holding(kind="eval"), Facts("run", policy=3), None),
        (holding(kind="eval"), Facts("run", policy=3, eval_policy=2), 2),
        (holding(kind="eval", given=2), Facts("run", policy=9, eval_policy=2), None),
        (holding(kind="eval"), Facts("run", policy=9, eval_policy=2, missing=2), None),
        (holding(kind="eval"), Facts("run", policy=9, eval_policy=4, missing=2), 4),
    ],
)
def test_a_shard_is_played_only_with_a_version_that_it_may_give(
    held: Holding, facts: Facts, version: int | None
) -> None:
    assert version_to_play(held, facts) == version
    assert bool(reason_to_wait([held], {E: facts})) == (version is None)


@pytest.mark.parametrize(
    ("held", "facts", "said"),
    [
        (holding(), Facts("run", policy=0), "waits for the first policy"),
        (
            holding(sync=True, given=3),
            Facts("run", policy=3),
            "policy newer than 3: with sync = true",
        ),
        (holding(kind="eval"), Facts("run", policy=3), "waits for the next evaluation"),
        (holding(kind="eval"), Facts("run", eval_policy=3, missing=3), "evaluation: pinned policy 3 cannot be read"),
        (holding(), Facts("pause", policy=3), "is paused"),
    ],
)
def test_a_worker_says_what_its_shard_waits_for(held: Holding, facts: Facts, said: str) -> None:
    assert said in reason_to_wait([held], {E: facts})


def test_of_a_shard_that_went_while_a_heartbeat_was_written_nothing_is_known_and_nothing_fails() -> None:
    desk, gone = Desk(), holding()
    facts = desk.facts_of([gone])
    assert facts == {E: Facts()}
    assert "first policy" in reason_to_wait([gone], facts)


def test_at_most_two_batches_of_a_shard_are_unanswered() -> None:
    one = holding()
    for outstanding, playable in ((0, True), (1, True), (2, False)):
        one.outstanding = outstanding
        assert (version_to_play(one, Facts("run", policy=1)) is not None) is playable


def test_a_shard_whose_batch_found_no_room_says_so_though_another_could_be_played() -> None:
    one = holding()
    one.outstanding, one.is_refused = 1, True
    assert reason_to_wait([one], {E: Facts("run", policy=1)}) == f"{one.name} waits for room"


def test_a_shard_in_the_middle_of_an_evaluation_is_given_up_last() -> None:
    first, second, evaluating = holding(shard=0), holding(shard=1), holding(shard=2, kind="eval")
    evaluating.evaluation = iter(())
    assert first_to_leave([first, second, evaluating]) is second
    assert first_to_leave([evaluating]) is evaluating
    evaluating.evaluation = None  # between two of them nothing is lost
    assert first_to_leave([first, second, evaluating]) is evaluating


def test_a_shard_that_was_taken_a_moment_ago_is_given_up_only_once_it_was_played() -> None:
    """It may be a dead worker's, taken above the quota so that nobody waits for it."""
    first, second, dead_ones = holding(shard=0), holding(shard=1), holding(shard=2)
    second.accepted += 1
    assert first_to_leave([first, second, dead_ones]) is second
    dead_ones.accepted += 1
    assert first_to_leave([first, second, dead_ones]) is dead_ones
    # Where none was played yet, as when a fleet begins, others shall have their part all the same
    assert first_to_leave([first, other := holding(shard=3)]) is other


def test_shards_take_turns() -> None:
    first, second, third = holding(shard=0), holding(shard=1), holding(shard=2)
    first.turn, second.turn, third.turn = 3, 1, 2
    facts = {E: Facts("run", policy=1)}
    assert choose([first, second, third], facts) is second
    second.outstanding = 2
    assert choose([first, second, third], facts) is third
    assert choose([second], facts) is None


def test_facts_only_move_forward_and_stop_is_for_good() -> None:
    facts = Facts()
    assert facts.hear(command="pause", policy=3)
    assert not facts.hear(command="pause", policy=2)
    assert facts.policy == 3
    facts.hear(command="stop")
    assert not facts.hear(command="run")
    assert facts.command == "stop"


def test_only_the_shard_being_stepped_can_be_blamed_and_only_before_its_first_batch() -> None:
    fresh, stepped, proven = holding(shard=0), holding(shard=1), holding(shard=2)
    stepped.stepping = True
    proven.note_accepted(5, 16)
    changes = stepping_changes([fresh, stepped, proven], fresh)
    assert [(one.lease.shard, wanted) for one, _, wanted in changes] == [(0, True), (1, False)]
    assert stepping_changes([fresh, stepped, proven], proven) == [(stepped, 4, False)]


def test_a_suspect_is_marked_before_each_turn_until_it_has_given_batches_for_a_while() -> None:
    suspect, other = holding(shard=0, suspect=True), holding(shard=1)
    for one in (suspect, other):
        one.note_accepted(5, 10)
    assert stepping_changes([suspect, other], suspect) == [(suspect, 5, True)]
    suspect.stepping = True
    assert stepping_changes([suspect, other], suspect) == []
    assert stepping_changes([suspect, other], other) == [(suspect, 5, False)]
    suspect.note_accepted(4 + HEALTHY_BATCHES, 10)
    assert stepping_changes([suspect, other], other) == []


def test_a_shard_of_another_experiment_is_cleared_of_blame_before_the_next_one_is_stepped() -> None:
    here, elsewhere = holding(shard=0), holding(shard=1)
    elsewhere.claim = replace(elsewhere.claim, lease=replace(elsewhere.claim.lease, experiment="zzz"))
    elsewhere.stepping = True
    changes = stepping_changes([here, elsewhere], here)
    assert [(one.lease.experiment, wanted) for one, _, wanted in changes] == [("zzz", False), (E, True)]


def test_what_a_broker_forgot_is_counted_in_batches_and_steps() -> None:
    one = holding()
    for seq, steps in ((5, 10), (6, 20), (7, 30)):
        one.note_accepted(seq, steps)
    one.note_forgotten(5)
    assert one.forgotten == (2, 50)
    assert one.leaving


def test_a_renewal_that_knows_fewer_batches_has_the_shard_claimed_anew() -> None:
    # With a synchronous update its worker waits for the next version, and no append of its own would tell it.
    desk = Desk()
    one = desk.take(claim(sync=True), 1_000)
    one.note_accepted(one.accepted + 1, 10)
    answers = Answers(create_autospec(Broker, instance=True), desk)
    answers.appender = create_autospec(Appender, instance=True)
    answers.appender.forget.return_value = []  # type: ignore[attr-defined]
    for seq, leaves in ((one.accepted, False), (one.accepted - 1, True)):
        renewal = Renewal(one.lease.shard, "OK", seq, "run", 1, 0)
        answers.renewed(one, one.accepted, renewal)
        assert (one.leaving, one.forgotten) == (leaves, (1, 10) if leaves else (0, 0))


def test_a_shard_that_is_claimed_anew_is_another_holding() -> None:
    desk = Desk()
    old = desk.take(claim(epoch=1), 1_000)
    new = desk.take(claim(epoch=2), 1_000)
    assert desk.find(old.lease) is None
    assert desk.find(new.lease) is new
    assert desk.lose(old.lease) is None
    assert desk.holdings() == [new]
    assert desk.take_dropped() == [old]
    assert desk.take_dropped() == []


def test_the_episodes_of_an_evaluation_are_shared_by_environments() -> None:
    plans = (ShardPlan(0, "train", 0, 8), ShardPlan(1, "eval", 8, 3), ShardPlan(2, "eval", 11, 1))
    assert [episodes_of(plan, plans, 20) for plan in plans[1:]] == [15, 5]
    assert [episodes_of(plan, plans, 1) for plan in plans[1:]] == [1, 1]


def test_a_shard_whose_batch_found_no_room_is_not_played_on() -> None:
    facts = Facts(command="run", policy=3)
    held = holding()
    held.outstanding = 1
    assert version_to_play(held, facts) == 3
    held.is_refused = True
    assert version_to_play(held, facts) is None


def test_nobody_begins_while_environments_of_a_parked_shard_go_on_here_and_a_crash_is_to_be_told_from_theirs() -> None:
    # Given a shard whose environments are stepped by threads of this process, and waits for them
    waiting, free = holding(shard=0), holding(shard=1)
    waiting.lane = create_autospec(Lane, instance=True, is_parked=True, is_ready=False)
    waiting.player = SimpleNamespace(spec=SimpleNamespace(env=SimpleNamespace(in_children=False)))  # type: ignore[assignment]
    facts = {E: Facts("run", policy=3)}
    assert choose([waiting, free], facts) is free
    # When one of them is a suspect, then a crash must be of the one that is marked
    free.claim = replace(free.claim, suspect=True)
    assert choose([waiting, free], facts) is None
    waiting.player.spec.env.in_children = True  # type: ignore[union-attr, misc]
    assert choose([waiting, free], facts) is free, "children crash by themselves"


def test_what_goes_on_after_others_had_their_turn_is_marked_anew() -> None:
    desk, told = Desk("w1"), []
    first, second = (desk.take(claim(shard), 1_000) for shard in (0, 1))
    turns = create_autospec(Turns, instance=True)
    turns.mark_stepping.side_effect = lambda one: told.append(one.lease.shard)
    stage: Any = SimpleNamespace(spec=SimpleNamespace(env=SimpleNamespace(isolation="process")), stepping="inline")
    lanes = LaneTurns(turns, desk)
    first.lane = create_autospec(Lane, instance=True, is_parked=True)
    second.lane = create_autospec(Lane, instance=True, is_parked=False)
    lanes.play(first, stage, Facts())
    lanes.play(second, stage, Facts())
    assert told == [0], "whose turn begins is marked where it is played"


class Late:
    """A broker whose keeper's renewals are answered after what `meanwhile` does."""

    def __init__(self) -> None:
        self.meanwhile: list[Any] = []
        self.said: list[tuple[int, dict[int, bool]]] = []
        self.fails = False

    def renew(self, _: str, __: int, asked: list[tuple[Lease, bool]], *, ttl_ms: int, mark: int) -> list[Renewal]:
        assert ttl_ms > 0
        while self.meanwhile:
            self.meanwhile.pop()()
        self.said.append((mark, {lease.shard: stepping for lease, stepping in asked}))
        if self.fails:
            raise BrokerUnreachable("away")
        return [Renewal(lease.shard, "OK", 4, "run", 1, 0) for lease, _ in asked]


def late() -> tuple[Late, Desk, Answers, Callable[[Holding | None], None]]:
    """A worker's threads on that broker; the last one begins a turn, or ends it with None."""
    shards, desk = Late(), Desk("w1")
    broker: Any = SimpleNamespace(shards=shards)
    answers = Answers(broker, desk)
    turns = Turns(broker, desk, clock=ManualClock(), renewed=answers.renewed)

    def play(one: Holding | None) -> None:
        with desk.changed:
            desk.stepping = None if one is None else one.key
            if one is not None:
                one.begun = True
        if one is not None:
            turns.mark_stepping(one)

    return shards, desk, answers, play


def test_what_the_keeper_saw_before_another_shards_turn_is_told_as_older_than_that() -> None:
    # Given a renewal that is on its way when the next shard's turn begins
    shards, desk, answers, play = late()
    first, second = (desk.take(claim(shard), 1_000) for shard in (0, 1))
    play(first)
    shards.meanwhile = [lambda: play(second)]
    answers.renew_all()
    # Then it arrives with a lower number than the mark, and the worker goes by the mark
    marks = [mark for mark, said in shards.said if said == {0: False, 1: True}]
    kept = [mark for mark, said in shards.said if said == {0: True, 1: False}]
    assert len(marks) == len(kept) == 1 and kept < marks
    assert (first.stepping, second.stepping) == (False, True)
    answers.renew_all()
    assert shards.said[-1] == (marks[0], {0: False, 1: True}), "what is so now is no older than the mark"


def test_a_turn_that_begins_while_the_keeper_says_that_none_does_is_marked_again() -> None:
    shards, desk, answers, play = late()
    one = desk.take(claim(0), 1_000)
    play(one)
    play(None)
    shards.meanwhile = [lambda: play(one)]
    answers.renew_all()
    assert [said[0] for _, said in shards.said] == [True, True, False]
    assert shards.said[1][0] > shards.said[2][0]
    assert one.stepping is True


def test_a_mark_that_is_not_answered_is_older_than_all_that_is_said_after_it() -> None:
    shards, desk, answers, play = late()
    first, second = (desk.take(claim(shard), 1_000) for shard in (0, 1))
    shards.fails = True
    play(first)
    shards.fails = False
    play(second)
    lost, kept = shards.said
    assert lost[1] == {0: True} and kept[1] == {0: False, 1: True} and kept[0] > lost[0] + 1
    answers.renew_all()
    assert shards.said[-1] == (kept[0], {0: False, 1: True})


def test_a_renewal_of_the_keeper_that_is_not_answered_is_older_than_the_next_one() -> None:
    # Given a keeper that saw a shard being stepped, and whose renewal got no answer
    shards, desk, answers, play = late()
    one = desk.take(claim(0), 1_000)
    play(one)
    shards.fails = True
    with pytest.raises(BrokerUnreachable):
        answers.renew_all()
    # When the turn is over, no other one begins, and it renews again
    shards.fails = False
    play(None)
    answers.renew_all()
    # Then the one that may arrive after it has the lower number
    lost, kept = shards.said[-2:]
    assert lost[1] == {0: True} and kept[1] == {0: False} and kept[0] > lost[0]


def test_a_shard_in_children_is_said_to_be_stepped_only_while_no_other_one_lives_in_its_worker() -> None:
    # Given a worker that holds two such shards, and has begun the first one
    shards, desk, answers, play = late()
    first, second = (desk.take(claim(shard), 1_000, apart=True) for shard in (0, 1))
    play(first)
    assert shards.said[-1][1] == {0: True}
    # When the first waits for its child, and the second begins beside it
    first.lane = create_autospec(Lane, instance=True, is_parked=True, is_ready=False)
    play(None)
    answers.renew_all()
    assert shards.said[-1][1] == {0: True, 1: False}, "its child may end the worker at any moment of its turn"
    play(second)
    # Then neither is to blame any more, and the first one was cleared before anything of the second was made
    assert shards.said[-1][1] == {0: False}
    answers.renew_all()
    assert shards.said[-1][1] == {0: False, 1: False}
    # And whoever is left is to blame again only once nothing of the other one lives
    desk.lose(first.lease)
    assert not desk.is_to_blame(second)
    (gone,) = desk.take_dropped()
    assert not desk.is_to_blame(second)
    gone.begun = False
    assert desk.is_to_blame(second)


def test_an_inline_shard_that_begins_clears_the_one_in_children_beside_it() -> None:
    shards, desk, _, play = late()
    apart, inline = desk.take(claim(0), 1_000, apart=True), desk.take(claim(1), 1_000)
    play(apart)
    play(inline)
    assert [said for _, said in shards.said] == [{0: True}, {0: False, 1: True}]
    play(apart)
    assert shards.said[-1][1] == {1: False}


def apart(shard: int, company: int, **changes: Any) -> Holding:
    return hold(claim(shard, company=company, **changes), 1_000, apart=True)


def test_whose_owners_died_in_company_again_and_again_plays_alone_until_its_first_batch() -> None:
    facts = {E: Facts("run", policy=3)}
    fresh, doubtful, likely = held = apart(0, 1), apart(1, 2), apart(2, 3)
    # Given a worker that has begun nothing, then the one in whose company most owners died comes first
    assert choose(held, facts) is likely
    likely.begun, likely.turn = True, 1
    likely.lane = create_autospec(Lane, instance=True, is_parked=True, is_ready=False)
    assert choose(held, facts) is None, "nothing begins beside it while it waits for its child"
    likely.lane.is_ready = True
    assert choose(held, facts) is likely
    likely.lane.is_parked = False
    assert choose(held, facts) is likely
    # When its first batch is accepted, then the others begin, one of which nothing can be told any more
    likely.note_accepted(5, 16)
    assert choose(held, facts) is fresh
    fresh.begun, fresh.turn = True, 2
    assert choose(held, facts) is doubtful


def test_who_is_tried_and_cannot_play_keeps_nobody_waiting() -> None:
    facts = {E: Facts("run", policy=3), "paused": Facts("pause", policy=3)}
    tried, other = apart(0, 3), apart(1, 0)
    tried.claim = replace(tried.claim, lease=replace(tried.lease, experiment="paused"))
    assert choose([tried, other], facts) is other
    tried.begun = True
    assert choose([tried, other], facts) is other
