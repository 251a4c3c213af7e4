"""Schedules that once broke a promise, shrunk: they still do with the bug planted, and do not without it."""

import pytest

from tests.simulation.plan import Plan
from tests.simulation.shrink import kept, run


@pytest.mark.parametrize(("bug", "plan"), kept(), ids=[bug for bug, _ in kept()])
def test_a_schedule_that_broke_a_promise_breaks_none_any_more(bug: str, plan: Plan) -> None:
    assert run(plan, bug).problem, f"does not show any more: {bug}"
    assert not run(plan).problem
