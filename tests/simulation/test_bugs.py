"""Planted bugs are found: some here, all of them by `python -m tests.simulation --bugs`."""

from pathlib import Path

import pytest

from tests.simulation.bugs import MOST_SEEDS, bugs, hunt, order
from tests.simulation.mutate import Bug, Edit, NotThere, planted
from tests.simulation.plan import theme_of
from tests.simulation.shown import TREE, shows
from tests.simulation.shrink import kept
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
    assert sum(not bug.missed for bug in bugs()) >= 61
    assert len({bug.name for bug in bugs()}) == len(bugs())
    for bug in bugs():
        assert bug.seed is None or (bug.seed < MOST_SEEDS and bug.breaks and not bug.missed)
        assert bug.theme in {"", *THEMES}
        with planted(bug):
            pass


def test_each_planted_bug_has_a_seed_a_kept_schedule_or_a_test_that_shows_it() -> None:
    schedules = {bug for bug, _ in kept()}
    for bug in bugs():
        assert bug.seed is not None or bug.name in schedules or bug.shown, f"nothing shows it: {bug.name}"
        path, _, test = bug.shown.partition("::")
        assert not bug.shown or f"def {test}(" in (TREE / path).read_text(), f"{bug.name}: no test {bug.shown}"


def test_the_table_in_the_docs_names_every_planted_bug_and_what_shows_it() -> None:
    schedules = {bug for bug, _ in kept()}
    page = (TREE / "docs/reliability.md").read_text()
    table = page.partition("| planted bug |")[2].partition("\n\n")[0].splitlines()[2:]
    told = {}
    for name, theme, shown, _, breaks in ([cell.strip() for cell in row.strip("|").split("|")] for row in table):
        told[name] = (theme, shown, breaks)
    assert len(told) == len(table), "a bug stands in it twice"
    for bug in bugs():
        test = "a kept schedule" if bug.name in schedules else f"`{Path(bug.shown.partition('::')[0]).name}`"
        found = (test, "") if bug.seed is None else (str(bug.seed), bug.breaks)
        assert told.pop(bug.name, None) == (bug.theme or "all", *found), bug.name
    assert not told, "in the table, and not planted"


@pytest.mark.timeout(600)  # it starts a whole pytest
def test_a_test_that_passes_with_a_bug_planted_does_not_show_it(monkeypatch: pytest.MonkeyPatch) -> None:
    edit = Edit("broker/lua/reap.lua", "if ARGV[3] == '' and redis.call('EXISTS', KEYS[3]) == 1 then", "if false then")
    node = "tests/unit/test_ordering.py::test_stream_ids_sort_as_numbers"
    monkeypatch.setattr("tests.simulation.shown.named", lambda name: Bug(name, (edit,), shown=node))
    assert shows("any") == f"{node} passes"


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
