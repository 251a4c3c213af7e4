"""How a worker ended: what counts against the shard that it was stepping."""

import signal
from types import SimpleNamespace
from typing import Any

import pytest

from heddle.launch.epitaph import has_crashed


def ended(code: int, *, asked: bool = False) -> Any:
    return SimpleNamespace(code=code, ending=asked)


@pytest.mark.parametrize("code", [-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGFPE, 1, 9, 255])
def test_a_crash_and_an_exit_from_within_are_the_environments_doing(code: int) -> None:
    assert has_crashed(ended(code))
    assert not has_crashed(ended(code, asked=True)), "who was asked to end may stumble on the way"
    assert not has_crashed(ended(code), lost="no sign of life"), "we killed it"


@pytest.mark.parametrize("code", [0, 5, 6, 70, 130, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT])
def test_who_was_killed_hung_was_told_to_end_or_has_no_broker_proves_nothing_about_an_environment(code: int) -> None:
    assert not has_crashed(ended(code))
