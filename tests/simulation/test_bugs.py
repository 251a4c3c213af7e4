"""Planted bugs are found at their recorded seeds: some here, all of them by `python -m tests.simulation --bugs`."""

import pytest

from tests.simulation.bugs import MOST_SEEDS, bugs, hunt
from tests.simulation.mutate import Bug, Edit, NotThere, planted

QUICK = (
    "reap does not look at the lease",
    "ack without the seat",
    "dead without the seat",
    "a trainer acks although a later one has written",
    "ack before the checkpoint",
    "marks compare seq without the epoch",
    "restored weights keep their number",
    "what another leader admitted last is never seen",
)


def test_every_planted_bug_still_applies_to_the_shipped_code() -> None:
    assert sum(bug.seed is not None for bug in bugs()) >= 45
    assert len({bug.name for bug in bugs()}) == len(bugs())
    for bug in bugs():
        assert bug.seed is None or (bug.seed < MOST_SEEDS and bug.breaks)
        with planted(bug):
            pass


def test_a_bug_whose_text_is_gone_is_an_error() -> None:
    for edit in (Edit("broker/lua/ack.lua", "no such text", ""), Edit("coord/planner.py", "return", "pass")):
        with pytest.raises(NotThere), planted(Bug("gone", (edit,))):
            pass


@pytest.mark.parametrize("name", QUICK)
def test_a_planted_bug_is_found_at_its_seed(name: str) -> None:
    assert hunt(name).seed is not None, f"not found any more: {name}; look again: --bugs --most {MOST_SEEDS}"
