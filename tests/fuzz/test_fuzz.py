"""A few thousand mutants of everything that is read from others: none crashes, hangs, or passes for what it is not.

More of them: python -m tests.fuzz TARGET --mutants 100000, or HEDDLE_SOAK=1.
"""

import os

import pytest

from tests.fuzz.__main__ import fuzz
from tests.fuzz.targets import TARGETS

MUTANTS = {"batch": 3_000, "weights": 500, "checkpoint": 400, "snapshot": 400, "spec": 400, "cli": 300}
SOAK = {"batch": 100_000, "weights": 20_000, "checkpoint": 10_000, "snapshot": 20_000, "spec": 10_000, "cli": 5_000}


def test_every_target_has_its_share_and_they_are_five_thousand() -> None:
    assert MUTANTS.keys() == SOAK.keys() == TARGETS.keys() - {"planted"}
    assert sum(MUTANTS.values()) == 5_000


@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("target", MUTANTS)
def test_no_mutant_ends_badly(target: str) -> None:
    soak = bool(os.environ.get("HEDDLE_SOAK"))
    count = (SOAK if soak else MUTANTS)[target]
    assert fuzz(target, mutants=count, seed=1, jobs=2 if soak else 1) == []


def test_the_fuzzer_finds_a_crash_a_hang_and_a_broken_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a target that dies of mutant 3, hangs at 5 and accepts what it should not at 8
    monkeypatch.setattr("tests.fuzz.__main__.SILENT_S", 5.0)
    found = {one.index: one.how for one in fuzz("planted", mutants=12, seed=1)}
    # Then each is found by its number, and the others were tried
    assert found.keys() == {3, 5, 8}
    assert "ended with -11" in found[3]
    assert "Segmentation fault" in found[3]
    assert "hung" in found[5]
    assert "accepted" in found[8]
    assert fuzz("planted", mutants=3, seed=1) == []
