"""When a coordinator tells of a trouble that those concerned do not tell, and when once more."""

import pytest

from heddle.broker.seats import SEAT_TTL_MS
from heddle.coord.troubles import CALM_MS, FULL_MS, LULL_MS, Troubles

LONG_MS = 2 * SEAT_TTL_MS


def test_a_silent_trainer_is_missed_once_and_again_after_it_was_back() -> None:
    troubles = Troubles()
    looks = [(7, True), (7, False), (7, False), (8, False), (8, True), (8, False)]
    missed = [troubles.is_missed(epoch, is_held=held, contact_ms=LONG_MS) for epoch, held in looks]
    assert missed == [False, True, False, True, False, True]


@pytest.mark.parametrize(("epoch", "contact_ms"), [(0, LONG_MS), (7, LONG_MS - 1)], ids=["none yet", "could not renew"])
def test_nobody_is_missed_who_never_sat_or_could_not_renew(epoch: int, contact_ms: int) -> None:
    assert not Troubles().is_missed(epoch, is_held=False, contact_ms=contact_ms)


def test_who_could_not_renew_is_missed_once_contact_is_long_enough() -> None:
    troubles = Troubles()
    assert [troubles.is_missed(7, is_held=False, contact_ms=ms) for ms in (LONG_MS - 1, LONG_MS)] == [False, True]


def looked(*looks: tuple[int, bool]) -> list[int]:
    """Of looks (server ms, a shard waits for room) those at which a full stream is told."""
    troubles = Troubles()
    return [now_ms for now_ms, waits in looks if troubles.is_full(waits, now_ms)]


def test_a_full_stream_is_told_once_it_was_full_for_long_also_with_room_for_a_moment() -> None:
    assert looked((0, True), (FULL_MS - 1, True), (FULL_MS, True), (2 * FULL_MS, True)) == [FULL_MS]
    assert looked((0, True), (LULL_MS - 1, False), (FULL_MS, True)) == [FULL_MS]


def test_shards_that_wait_now_and_then_make_no_full_stream() -> None:
    assert looked((0, True), (LULL_MS, False), (FULL_MS, True), (2 * FULL_MS - 1, True)) == []


def test_a_stream_that_was_told_of_is_told_again_only_after_a_long_calm() -> None:
    full = [(0, True), (FULL_MS, True)]
    began = FULL_MS + CALM_MS
    assert looked(*full, (began - 1, False), (began, True), (began + FULL_MS, True)) == [FULL_MS]
    again = looked(*full, (began, False), (began + 1, True), (began + 1 + FULL_MS, True))
    assert again == [FULL_MS, began + 1 + FULL_MS]
