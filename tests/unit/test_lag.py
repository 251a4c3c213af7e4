"""How many versions a segment is behind, also across numbers that were left out."""

import pytest

from heddle.policies.lag import NO_GAP, Gap, is_stale, lag, summarise

GAP = Gap(first=11, size=100)
"""Version 10 is in the checkpoint, 111 was published next."""


@pytest.mark.parametrize(
    ("version", "latest", "behind"),
    [(10, 111, 1), (8, 111, 3), (10, 113, 3), (111, 113, 2), (113, 113, 0), (114, 113, 0)],
)
def test_numbers_that_were_left_out_do_not_count_as_lag(version: int, latest: int, behind: int) -> None:
    assert lag(version, latest, GAP) == behind
    assert is_stale(version, latest, 2, GAP) == (behind > 2)


@pytest.mark.parametrize("version", [11, 50, 110])
def test_weights_that_nobody_remembers_count_as_the_last_before_the_new_ones(version: int) -> None:
    assert lag(version, 111, GAP) == 1
    assert lag(version, 113, GAP) == 3


def test_without_a_gap_lag_is_a_difference() -> None:
    assert [lag(version, 9, NO_GAP) for version in (3, 9, 12)] == [6, 0, 0]
    assert not is_stale(0, 10**6, None)


def test_a_summary_counts_across_the_gap() -> None:
    found = summarise([10, 111, 111], 111, GAP)
    assert (found.max, found.histogram) == (1, (2, 1))
