"""How long calls into the user's code may last, and what is told of that."""

from typing import Any

import pytest

from heddle.clock import ManualClock
from heddle.lease import Action
from heddle.producers.desk import Desk
from heddle.producers.heartbeat import describe
from heddle.producers.limits import own_limit_of
from heddle.producers.user_code import UserCode
from tests.unit.fake_envs import spec_of
from tests.unit.test_holdings import claim

LIMITS = {"step_timeout": 40.0, "reset_timeout": 60.0}


@pytest.mark.parametrize(
    ("env", "what", "limit_s"),
    [
        ({"isolation": "process"}, "step", 40.0),
        ({"isolation": "process"}, "reset", 60.0),
        ({"isolation": "process"}, "restore", 60.0),
        ({"isolation": "process"}, "snapshot", 60.0),
        ({"stepping": "processes"}, "step", 40.0),
        ({"isolation": "process"}, "act", 0.0),
        ({}, "step", 0.0),
        ({}, "restore", 0.0),
    ],
)
def test_a_heartbeat_tells_after_how_long_a_call_is_given_up_by_a_worker_that_lives(
    env: dict[str, Any], what: str, limit_s: float
) -> None:
    desk = Desk("w1")
    held = desk.take(claim(3), 1_000)
    held.env = spec_of(env={**LIMITS, **env}).env
    action = Action(what, 0.0, 130.0, held.name)
    beat = describe(desk, worker="w1", pool="default", draining=False, action=action, now=1.0)
    assert (beat.doing, beat.limit_ms, beat.own_limit_ms) == (what, 130_000, round(1000 * limit_s))


def test_a_call_of_environments_that_are_stepped_beside_each_other_is_given_up_too() -> None:
    env = spec_of(env={**LIMITS, "stepping": "threads"}).env
    assert own_limit_of(env, "step", beside=True) == 40.0


def test_a_call_within_a_call_is_told_and_the_outer_one_begins_anew_after_it() -> None:
    clock = ManualClock()
    user_code = UserCode(clock)
    with user_code.calling("make", "exp/3", 60.0):
        clock.advance(50.0)
        with user_code.calling("restore", "exp/3", 60.0):
            clock.advance(20.0)
            within = user_code.doing()
            assert within is not None and (within.what, within.words) == ("restore", "restoring the snapshot")
        after = user_code.doing()
        assert after is not None and (after.what, after.since) == ("make", clock.monotonic())
    assert user_code.doing() is None
