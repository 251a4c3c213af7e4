"""When a run is over, and how much of it is used."""

import pytest

from heddle.consumers.budget import Spent, progress, reached
from heddle.spec.models import Budget

ALL = Budget(env_steps=1_000, wall=60.0, target_return=475.0)


@pytest.mark.parametrize(
    ("spent", "word"),
    [
        (Spent(999, 59.9, 474.9), ""),
        (Spent(1_000, 0.0), "env_steps"),
        (Spent(0, 60.0), "wall"),
        (Spent(0, 0.0, 475.0), "target_return"),
        (Spent(0, 0.0, None), ""),
    ],
)
def test_the_first_limit_reached_ends_the_run(spent: Spent, word: str) -> None:
    why = reached(ALL, spent)
    assert (word in why) if word else (why == "")


def test_a_limit_that_is_not_set_never_ends_a_run() -> None:
    assert reached(Budget(target_return=1.0), Spent(10**12, 10.0**9)) == ""


@pytest.mark.parametrize(
    ("spent", "share"),
    [(Spent(0, 0.0), 0.0), (Spent(500, 6.0), 0.5), (Spent(100, 54.0), 0.9), (Spent(5_000, 0.0), 1.0)],
)
def test_progress_follows_the_limit_nearest_to_its_end(spent: Spent, share: float) -> None:
    assert progress(ALL, spent) == pytest.approx(share)


def test_progress_stays_at_the_start_when_only_a_return_is_asked_for() -> None:
    assert progress(Budget(target_return=1.0), Spent(10**6, 100.0)) == 0.0
