"""When a coordinator looks, and when it may take shards away."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from heddle.broker.shards import FIRST_DUE
from heddle.broker.types import Ctl
from heddle.coord.leader import Leader
from heddle.coord.watch import BUSY_MS, LOOK_EVERY_MS, Step, Watched, contact_since, step_between

CTL = Ctl(
    command="run",
    policy=3,
    min_policy=0,
    eval_policy=0,
    seat_epoch=7,
    leader_epoch=9,
    active=4,
    active_eval=0,
    rev=1,
    sync=True,
    max_entries=10,
    max_bytes=1_000,
    outcome="",
    reason="",
    protocol=1,
)


def watched(shards: int = 4) -> Watched:
    """An experiment that was looked at, at time 0, while CTL held."""
    made = Watched("e", "default", 10_000, 5, "continue", (), contact_since_ms=0, last_ms=0)
    made.looked(0, CTL, shards=shards, is_seat_held=True)
    return made


@pytest.mark.parametrize(
    ("gap_ms", "ttl_ms", "begins_anew"),
    [(500, 10_000, False), (3_333, 10_000, False), (3_334, 10_000, True), (1_000, 1_500, False), (1_001, 1_500, True),
     (666, 1_000, False), (667, 1_000, True), (200, 300, False), (201, 300, True),
     (-3_333, 10_000, False), (-3_334, 10_000, True)],
)  # fmt: skip
def test_contact_begins_anew_after_a_silence_in_which_others_could_not_renew(
    gap_ms: int, ttl_ms: int, begins_anew: bool
) -> None:
    assert contact_since(1_000, 50_000, 50_000 + gap_ms, ttl_ms) == (50_000 + gap_ms if begins_anew else 1_000)


def test_contact_never_begins_later_than_now() -> None:
    assert contact_since(50_000, 50_000, 49_900, 10_000) == 49_900


@pytest.mark.parametrize(
    ("change", "now_ms", "looks"),
    [
        ({}, 999, False),
        ({}, 1_000, True),
        ({"policy": 4}, 1, False),
        ({"command": "pause"}, 1, True),
        ({"outcome": "completed"}, 1, True),
        ({"active": 3}, 1, True),
        ({"rev": 2}, 1, True),
    ],
)
def test_a_change_is_looked_at_when_it_is_seen_and_the_rest_once_a_second(
    change: dict[str, object], now_ms: int, looks: bool
) -> None:
    assert watched().must_look(now_ms, replace(CTL, **change)) == looks  # type: ignore[arg-type]


def test_a_thousand_shards_are_looked_at_more_rarely() -> None:
    assert not watched(shards=1_000).must_look(19_999, CTL)
    assert watched(shards=1_000).must_look(20_000, CTL)
    assert watched(shards=100_000).must_look(30_000, CTL)


def test_the_seat_counts_as_free_from_when_it_was_seen_free_after_the_stop() -> None:
    one = watched()
    stop = replace(CTL, command="stop")
    one.looked(1_000, stop, shards=4, is_seat_held=True)
    assert one.seat_free_ms(2_000) == 0
    one.looked(3_000, stop, shards=4, is_seat_held=False)
    one.looked(4_000, stop, shards=4, is_seat_held=False)
    assert one.seat_free_ms(5_000) == 2_000
    one.looked(6_000, stop, shards=4, is_seat_held=True)  # a new trainer came
    assert one.seat_free_ms(7_000) == 0


@pytest.mark.parametrize(
    ("shards", "states", "looks"),
    [
        (4, ["queued"], True),
        (4, [], False),
        (20_000, ["queued"] * 500, False),
        (20_000, ["queued", "quarantined"], True),
        (20_000, ["stopped"], True),
    ],
)
def test_of_many_shards_a_death_calls_for_a_look_only_if_the_shard_will_not_be_played_again(
    shards: int, states: list[str], looks: bool
) -> None:
    seen = watched(shards=shards)
    seen.reaped(states, 1)
    assert seen.must_look(1, CTL) == looks


@pytest.mark.parametrize(
    ("least_ms", "most_ms", "its_ms", "by_ms"),
    [
        (500, 510, 500, None),
        (860, 870, 80, -785),
        (500, 510, -700, -1205),
        (10_000, 10_010, 9_000, None),
        (5_000, 5_010, 4_100, None),
        (0, 0, 0, None),
        (80, 90, 620, 535),
        (80, 900, 620, None),  # the answer was long on its way
        (10_000, 10_010, 12_000, None),
    ],
)
def test_a_clock_that_was_set_is_told_from_one_that_runs_a_fifth_slower_or_faster(
    least_ms: float, most_ms: float, its_ms: float, by_ms: float | None
) -> None:
    step = step_between(least_ms, most_ms, its_ms)
    assert (None if step is None else step.by_ms) == by_ms
    assert step is None or step.most_ms >= abs(step.by_ms)


ON, BACK = step_between(480, 500, 1_000), step_between(480, 500, 0)
assert ON is not None and BACK is not None


@pytest.mark.parametrize(
    ("step", "ttl_ms", "waits_ms"),
    [(ON, 60_000, 616), (BACK, 60_000, 625), (ON, 1_000, 616), (BACK, 1_000, 625), (ON, 600, 600), (BACK, 600, 600)],
)
def test_a_clock_that_was_set_puts_reaping_off_by_as_much_and_only_where_that_is_a_gap_by_a_ttl(
    step: Step, ttl_ms: int, waits_ms: int
) -> None:
    seen = Watched("e-1", "default", ttl_ms, 5, "continue", (), contact_since_ms=0, last_ms=100_000)
    seen.clock_was_set(step, 100_000)
    reaps_ms = max(seen.reaps_from_ms, seen.contact_since_ms + ttl_ms)
    assert reaps_ms == 100_000 + waits_ms


def test_steps_soon_after_each_other_add_up_to_a_gap_and_those_that_are_far_apart_do_not() -> None:
    soon, apart = (
        Watched("e-1", "default", 10_000, 5, "continue", (), contact_since_ms=0, last_ms=0) for _ in range(2)
    )
    for number in range(1, 31):
        soon.clock_was_set(Step(200.0, 200.0), 100_000 + 50 * number)
        apart.clock_was_set(Step(200.0, 200.0), 100_000 + 1_000 * number)
    assert soon.contact_since_ms > 100_000, "together more than a third of the leases' time"
    assert (apart.contact_since_ms, apart.reaps_from_ms) == (0, 130_200)


def test_a_clock_that_is_set_on_and_back_again_does_not_put_reaping_off_for_as_long() -> None:
    seen = Watched("e-1", "default", 10_000, 5, "continue", (), contact_since_ms=0, last_ms=0)
    seen.clock_was_set(Step(3_600_000.0, 3_600_000.0), 3_700_000)
    seen.clock_was_set(Step(-3_600_000.0, 3_600_000.0), 100_000)
    assert max(seen.reaps_from_ms, seen.contact_since_ms) == 100_000


def test_a_silence_that_a_clock_which_was_set_back_hides_is_one_for_short_leases_alone() -> None:
    step = step_between(1_500, 1_510, 1_000)
    assert step is not None
    for ttl_ms, since_ms in ((2_000, 50_000), (60_000, 0)):
        seen = Watched("e-1", "default", ttl_ms, 5, "continue", (), contact_since_ms=0, last_ms=0)
        seen.clock_was_set(step, 50_000)
        assert seen.contact_since_ms == since_ms


def test_a_long_look_at_one_experiment_is_no_silence_for_the_next() -> None:
    # Given two experiments, and that looking after the first takes so long that later times are heard on the way
    one, other = (
        Watched(name, "default", 10_000, 5, "continue", (), contact_since_ms=0, last_ms=99_500) for name in "ab"
    )
    leader: Any = Leader.__new__(Leader)
    leader._watched, leader._ended, leader._tidy_ms = {"a": one, "b": other}, {}, 100_000
    leader._tell, leader._pools = SimpleNamespace(next_round=list), SimpleNamespace(share=lambda *_: None)
    looked_at: list[tuple[str, int]] = []

    def look(watched: Watched, now_ms: int) -> bool:
        looked_at.append((watched.experiment, now_ms))
        if watched is one:
            leader._heard(now_ms + 700)
        return True

    leader._guarded = look
    # When a round goes over both
    leader.tick(100_000)
    # Then contact with the second is as old as it was, and it is judged at the time that was heard last
    assert other.contact_since_ms == 0
    assert looked_at == [("a", 100_000), ("b", 100_700)]


def test_a_trainer_that_comes_again_and_again_and_settles_nothing_does_not_keep_an_end_away() -> None:
    seen = watched(1)
    over = replace(CTL, command="stop", outcome="completed")
    for at in range(1_000, 60_000, 200):
        seen.looked(at, over, shards=1, is_seat_held=at % 5_000 >= 4_000)
    assert seen.seat_free_ms(60_000) == 59_000
    seen.looked(60_000, replace(over, outcome=""), shards=1, is_seat_held=True)
    assert seen.seat_free_ms(60_000) == 0, "before it told the end it is waited for"


def test_an_earliest_deadline_that_fell_tells_of_a_clock_that_was_behind_meanwhile() -> None:
    seen = Watched("e-1", "default", 1_000, 5, "continue", (), contact_since_ms=0, last_ms=0)
    for now_ms, due_ms in ((4_500, 5_400), (4_600, 5_400), (4_700, 5_650), (4_800, None), (4_900, 5_800)):
        seen.saw_due({} if due_ms is None else {"0": due_ms}, now_ms=now_ms)
    assert (seen.contact_since_ms, seen.next_due_ms) == (0, 5_800)
    seen.saw_due({"0": 5_100}, now_ms=5_150)  # renewed while the clock was behind, and over now that it is not
    assert seen.contact_since_ms == 5_150


def test_a_deadline_that_rose_by_too_little_tells_so_where_its_owner_renewed_late() -> None:
    # Given a lease whose owner is late: it renews when most of the TTL is over, and the clock is behind just then
    seen = Watched("e-1", "default", 1_000, 5, "continue", (), contact_since_ms=0, last_ms=0)
    seen.saw_due({"0": 5_000}, now_ms=4_600)
    # When it comes to lie a little later than before, which no renewal since that look can have meant
    seen.saw_due({"0": 5_010}, now_ms=4_700)
    # Then owners get a TTL in which to renew
    assert seen.contact_since_ms == 4_700


def test_a_deadline_that_lacks_little_against_the_lease_tells_of_nothing() -> None:
    for lacks_ms, since_ms in ((1_666, 0), (1_667, 4_800)):
        seen = Watched("e-1", "default", 10_000, 5, "continue", (), contact_since_ms=0, last_ms=0)
        seen.saw_due({"0": 11_000}, now_ms=4_700)
        seen.saw_due({"0": 14_700 - lacks_ms}, now_ms=4_800)
        assert seen.contact_since_ms == since_ms


def test_a_deadline_that_fell_tells_so_also_behind_that_of_a_dead_worker() -> None:
    seen = Watched("e-1", "default", 1_000, 5, "continue", (), contact_since_ms=0, last_ms=0)
    seen.saw_due({"0": 5_000, "1": 5_700}, now_ms=4_900)
    seen.saw_due({"0": 5_000, "2": 5_910, "1": 5_920}, now_ms=4_950)
    assert seen.contact_since_ms == 0
    seen.saw_due({"0": 5_000, "1": 5_040}, now_ms=5_060)  # renewed while the clock was behind
    assert (seen.contact_since_ms, seen.next_due_ms) == (5_060, 5_000)


def test_a_lease_that_is_granted_while_the_clock_is_behind_tells_so() -> None:
    seen = Watched("e-1", "default", 1_000, 5, "continue", (), contact_since_ms=0, last_ms=0)
    seen.saw_due({}, now_ms=4_900)
    seen.saw_due({"0": 5_950}, now_ms=5_000)
    assert seen.contact_since_ms == 0
    seen.saw_due({"0": 5_950, "1": 5_100}, now_ms=5_050)  # as at 4,100, though it was seen to be 5,000
    assert seen.contact_since_ms == 5_050


def test_a_lease_that_comes_into_sight_behind_others_was_not_granted_just_now() -> None:
    seen = Watched("e-1", "default", 10_000, 5, "continue", (), contact_since_ms=0, last_ms=0)
    first = {str(shard): 11_000 + shard for shard in range(FIRST_DUE)}
    seen.saw_due(dict(first), now_ms=10_000)
    del first["0"]
    seen.saw_due({**first, "99": 11_000 + FIRST_DUE}, now_ms=10_100)
    assert seen.contact_since_ms == 0
    seen.saw_due({**first, "98": 11_000}, now_ms=10_200)
    assert seen.contact_since_ms == 10_200, "it would have been in sight"


def test_a_shard_whose_lease_is_over_strays_unless_a_deadline_gives_it_up_within_a_ttl() -> None:
    # Given shards that are held, some by nobody who lives, and one that waits
    seen = Watched("e-1", "default", 1_000, 5, "continue", (), contact_since_ms=0, last_ms=0)
    seen.saw_due({"0": 4_990, "1": 6_000, "2": 6_001, "3": 9_000}, now_ms=5_000)
    lease_ms = {0: 0, 1: 0, 2: 0, 3: 900, 4: 0, 5: 900}
    shards: list[Any] = [SimpleNamespace(shard=shard, state="leased", lease_ms=ms) for shard, ms in lease_ms.items()]
    shards.append(SimpleNamespace(shard=6, state="queued", lease_ms=0))
    # Then those stray that are over, and have no deadline or one that no renewal has set; and one that is there though
    # its deadline is over: its lease may have no end
    assert seen.strays(shards, 5_000) == [0, 2, 4]


def test_whoever_stands_behind_many_of_other_dead_workers_is_no_stray() -> None:
    # Given more leases that are over than are seen at a time
    seen = Watched("e-1", "default", 1_000, 5, "continue", (), contact_since_ms=0, last_ms=0)
    seen.saw_due({str(shard): 4_000 for shard in range(FIRST_DUE)}, now_ms=5_000)
    shards: list[Any] = [SimpleNamespace(shard=shard, state="leased", lease_ms=0) for shard in range(10_000)]
    # Then only those are asked for one by one
    assert seen.strays(shards, 5_000) == list(range(FIRST_DUE))
    # But where those that are over are all in sight, the others stray
    seen.saw_due({str(shard): 4_000 for shard in range(FIRST_DUE - 1)}, now_ms=5_000)
    assert len(seen.strays(shards, 5_000)) == 10_000


def test_while_a_large_fleet_is_reaped_all_its_shards_are_looked_at_half_as_often() -> None:
    # Given many shards, and a look that would be due
    seen = watched(shards=20_000)
    assert seen.must_look(LOOK_EVERY_MS[1], CTL)
    # When some were reaped just now, then it waits, but not for ever
    seen.reaped(["queued"] * 500, LOOK_EVERY_MS[1])
    assert not seen.must_look(LOOK_EVERY_MS[1], CTL)
    assert seen.must_look(LOOK_EVERY_MS[1] + BUSY_MS, CTL), "nothing more came"
    seen.reaped(["queued"] * 500, 2 * LOOK_EVERY_MS[1])
    assert seen.must_look(2 * LOOK_EVERY_MS[1], CTL)
