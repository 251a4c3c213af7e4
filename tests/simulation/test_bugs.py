"""Planted bugs are found: some here, all of them by `python -m tests.simulation --bugs`."""

import pytest

from tests.simulation.bugs import bugs, hunt
from tests.simulation.mutate import Bug, Edit, NotThere, planted

QUICK = (
    "renew revives a lease that was reaped",
    "an epoch is used again after a restart",
    "SET without NX",
    "ack before the checkpoint",
    "a seat that was lost is renewed",
    "marks hold what was only read",
)
ENOUGH = 60


def test_every_planted_bug_still_applies_to_the_shipped_code() -> None:
    assert len(bugs()) >= 25
    for bug in bugs():
        with planted(bug):
            pass


def test_a_bug_whose_text_is_gone_is_an_error() -> None:
    for edit in (Edit("broker/lua/ack.lua", "no such text", ""), Edit("coord/planner.py", "return", "pass")):
        with pytest.raises(NotThere), planted(Bug("gone", (edit,))):
            pass


@pytest.mark.parametrize("name", QUICK)
def test_a_planted_bug_is_found(name: str) -> None:
    found = hunt(name, ENOUGH)
    assert found.seed is not None, f"not found in {ENOUGH} seeds: {name}"
