"""How many shards a worker holds."""

import pytest

from heddle.producers.quota import (
    Quota,
    beat_every_s,
    look_every_s,
    may_take_above,
    surplus,
    tickets_at_once,
    wants_more,
)
from heddle.states.workers import quiet_after_ms


@pytest.mark.parametrize(
    ("held", "floor", "ceil", "someone_below", "wants"),
    [
        (0, 0, 0, False, True),  # nobody has counted the shards yet: one may be taken
        (1, 0, 0, False, False),
        (0, 2, 3, False, True),
        (2, 2, 3, False, True),
        (3, 2, 3, False, False),
        (2, 2, 3, True, False),  # another has too few: leave the ticket to it
        (1, 2, 3, True, True),
        (0, 0, 1, True, True),
    ],
)
def test_a_worker_reads_tickets_up_to_its_quota_and_leaves_them_to_those_below(
    held: int, floor: int, ceil: int, someone_below: bool, wants: bool
) -> None:
    assert wants_more(held, Quota(floor, ceil, someone_below, live=4)) is wants


@pytest.mark.parametrize(
    ("age_ms", "urgent", "takes"), [(0, False, False), (5_000, False, False), (5_001, False, True), (0, True, True)]
)
def test_an_old_or_urgent_ticket_may_be_taken_above_quota(age_ms: int, urgent: bool, takes: bool) -> None:
    assert may_take_above(age_ms=age_ms, urgent=urgent, ttl_ms=10_000) is takes


@pytest.mark.parametrize(
    ("held", "quota", "chance", "gives"),
    [
        (5, Quota(2, 3, someone_below=False, live=4), 0.0, 0),  # nobody lacks any: moving costs episodes
        (5, Quota(2, 3, someone_below=True, live=4), 0.99, 1),
        (2, Quota(2, 3, someone_below=True, live=4), 0.0, 0),
        (3, Quota(2, 3, someone_below=True, live=4), 0.49, 1),
        (3, Quota(2, 3, someone_below=True, live=4), 0.51, 0),
        (3, Quota(2, 3, someone_below=True, live=2), 0.99, 1),
        (1, Quota(0, 1, someone_below=True, live=9), 0.0, 0),
    ],
)
def test_at_most_one_shard_is_given_up_at_a_batch_boundary(held: int, quota: Quota, chance: float, gives: int) -> None:
    assert surplus(held, quota, chance=chance) == gives


def test_all_workers_of_a_pool_together_look_at_tickets_a_bounded_number_of_times() -> None:
    assert look_every_s(0, Quota(1, 1), ttl_s=10.0) == pytest.approx(0.05)
    for live in (1, 100, 1_000):
        each = look_every_s(2, Quota(1, 2, live=live), ttl_s=10.0)
        assert 0.2 <= each <= 2.5
        assert live / each <= 500.0
    for live in (1, 50, 2_000):
        assert live / look_every_s(1, Quota(1, 2, live=live), ttl_s=10.0) <= 1_000.0


@pytest.mark.parametrize(
    ("live", "ttl_s", "every_s"),
    [(1, 10.0, 1.0), (500, 10.0, 1.0), (1_000, 10.0, 2.0), (2_000, 10.0, 2.5), (2_000, 2.0, 1.0), (9_999, 60.0, 2.5)],
)
def test_a_worker_beats_once_a_second_and_less_often_in_a_large_pool_but_never_so_rarely_that_it_seems_silent(
    live: int, ttl_s: float, every_s: float
) -> None:
    assert beat_every_s(Quota(1, 2, live=live), ttl_s=ttl_s) == pytest.approx(every_s)
    assert 2 * every_s * 1_000 <= quiet_after_ms(round(1_000 * ttl_s))


@pytest.mark.parametrize(
    ("held", "ceil", "live", "waiting", "count"),
    [
        (0, 10, 2_000, None, 8),
        (7, 10, 2_000, None, 3),  # up to its quota, and no further
        (9, 10, 2_000, None, 1),
        (10, 10, 2_000, 5_000, 8),  # the tickets of a fleet that died
        (10, 10, 2_000, 40, 2),  # few enough that others shall have some
        (10, 10, 2_000, 3, 1),
        (0, 10, 8, None, 1),  # of a small pool each takes one after the other
        (10, 10, 8, 5_000, 1),
    ],
)
def test_only_in_a_large_pool_several_tickets_are_read_at_once(
    held: int, ceil: int, live: int, waiting: int | None, count: int
) -> None:
    assert tickets_at_once(held, Quota(ceil, ceil, live=live), waiting=waiting) == count


def test_no_more_tickets_are_read_at_once_than_are_left_of_a_look() -> None:
    assert tickets_at_once(0, Quota(10, 10, live=2_000), most=3) == 3
