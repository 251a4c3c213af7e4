"""The keeper and the watchdog."""

import threading

import numpy as np
import pytest

from heddle.errors import BrokerUnreachable, SeatLost
from heddle.lease import Action, Keeper, StuckTimer, Watchdog, retry_delay_s
from tests.helpers import eventually


class Lease:
    """Answers renewals from a script: True, False or an error to raise; the last one for ever."""

    def __init__(self, *answers: bool | Exception) -> None:
        self.answers = list(answers)
        self.asked = 0

    def renew(self) -> bool:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def keeper(lease: Lease, lost: list[str], ttl_s: float = 0.03) -> Keeper:
    return Keeper(lease.renew, ttl_s=ttl_s, on_lost=lost.append, rng=np.random.default_rng(0))


def test_a_lease_is_renewed_about_three_times_a_ttl_until_the_keeper_stops() -> None:
    lease, lost = Lease(True), list[str]()
    with keeper(lease, lost):
        eventually(lambda: lease.asked >= 5)
    asked = lease.asked
    assert not lost
    threading.Event().wait(0.05)
    assert lease.asked == asked


@pytest.mark.parametrize("answer", [False, SeatLost("trainer t2 holds the seat")])
def test_a_lost_lease_is_told_once_and_ends_the_keeper(answer: bool | Exception) -> None:
    lease, lost = Lease(True, answer), list[str]()
    with keeper(lease, lost) as kept:
        eventually(lambda: lost)
        assert kept.lost
        assert lease.asked == 2
    assert len(lost) == 1


def test_a_broker_that_does_not_answer_is_asked_again_and_nothing_is_lost() -> None:
    away = BrokerUnreachable("no answer")
    lease, lost = Lease(away, away, away, True), list[str]()
    with keeper(lease, lost) as kept:
        eventually(lambda: lease.asked >= 6)
        assert not kept.lost
    assert not lost


def test_a_keeper_that_fails_in_an_unforeseen_way_says_lost_instead_of_dying_silently() -> None:
    lease, lost = Lease(ZeroDivisionError("oops")), list[str]()
    with keeper(lease, lost):
        eventually(lambda: lost)
    assert "oops" in lost[0]


def test_retries_back_off_with_jitter_but_stay_within_a_second() -> None:
    assert [retry_delay_s(n, 0.999) for n in (1, 2, 3)] == pytest.approx([0.05, 0.1, 0.2], rel=0.01)
    assert retry_delay_s(1_000, 0.999) <= 1.0
    assert retry_delay_s(1, 0.0) > 0.0


def test_time_in_which_the_process_was_frozen_does_not_count_as_being_stuck() -> None:
    timer = StuckTimer(every_s=0.25)
    action = Action("step", since=0.0, limit_s=1.0)
    assert not timer.look(action, 0.0)
    assert not timer.look(action, 0.25)
    assert not timer.look(action, 3_600.0)  # stopped for an hour
    assert timer.lasted_s == pytest.approx(0.75)
    assert not timer.look(action, 3_600.25)
    assert timer.look(action, 3_600.5)


def test_a_new_action_starts_from_zero_and_waiting_never_counts() -> None:
    timer = StuckTimer(every_s=0.25)
    for now in range(100):
        assert not timer.look(Action("step", since=float(now), limit_s=0.1), now * 0.25)
        assert not timer.look(None, now * 0.25 + 0.1)


def test_the_watchdog_tells_the_action_that_lasts_too_long() -> None:
    told: list[str] = []
    stuck = Action("reset", since=1.0, limit_s=0.05, subject="cartpole/3")
    dog = Watchdog(lambda: stuck, lambda action, _lasted: told.append(action.subject), every_s=0.01).start()
    eventually(lambda: told == ["cartpole/3"])
    dog.stop()


def test_a_shorter_ttl_makes_renewals_more_frequent_at_once() -> None:
    lease = Lease(True)
    with keeper(lease, [], ttl_s=3_000.0) as kept:
        kept.shorten(0.03)
        eventually(lambda: lease.asked >= 4)
        kept.shorten(3_000.0)  # a longer one changes nothing: others still need the short one
        asked = lease.asked
        eventually(lambda: lease.asked >= asked + 3)
