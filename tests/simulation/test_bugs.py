"""Planted bugs are found: some here, all of them by `python -m tests.simulation --bugs`."""

import pytest

from tests.simulation.bugs import MOST_SEEDS, bugs, hunt, order
from tests.simulation.mutate import Bug, Edit, NotThere, planted
from tests.simulation.plan import theme_of
from tests.simulation.themes import THEMES

QUICK = (
    "reap does not look at the lease",
    "ack without the seat",
    "dead without the seat",
    "append does not look at the epoch",
    "ack before the checkpoint",
    "marks compare seq without the epoch",
    "restored weights keep their number",
    "a consumer is deleted with what it holds",
)


def test_every_planted_bug_still_applies_to_the_shipped_code() -> None:
    assert sum(not bug.missed for bug in bugs()) >= 57
    assert len({bug.name for bug in bugs()}) == len(bugs())
    for bug in bugs():
        assert bug.seed is None or (bug.seed < MOST_SEEDS and bug.breaks and not bug.missed)
        assert bug.theme in {"", *THEMES}
        with planted(bug):
            pass


def test_a_bug_whose_text_is_gone_is_an_error() -> None:
    for edit in (Edit("broker/lua/ack.lua", "no such text", ""), Edit("coord/planner.py", "return", "pass")):
        with pytest.raises(NotThere), planted(Bug("gone", (edit,))):
            pass


@pytest.mark.parametrize("name", QUICK)
def test_a_planted_bug_is_found_within_five_hundred_seeds(name: str) -> None:
    assert hunt(name).seed is not None, f"not found any more: {name}"


def test_the_seed_that_found_a_bug_comes_first_then_those_of_its_theme() -> None:
    bug = Bug("any", (), theme="lone", seed=400)
    looked_at = order(bug, MOST_SEEDS)
    first = [theme_of(seed) for seed in looked_at[1:]]
    assert looked_at[0] == 400 and sorted(looked_at) == list(range(MOST_SEEDS))
    assert first == sorted(first, key=lambda theme: theme != "lone") and first.count("lone") >= 20
