"""A process of trackers ends with what one of them ended with, whoever raised it."""

import os
from types import SimpleNamespace
from typing import Any

import pytest

from heddle.consumers.tracking.base import Backend
from heddle.consumers.tracking.crew import Crew
from heddle.consumers.tracking.wandb_runs import leave_service_of_others
from heddle.errors import Conflict, HeddleError, TrackerDown
from heddle.stop import StopFlag


def test_a_library_that_raises_what_nobody_expects_is_told_and_is_no_success() -> None:
    def make() -> Backend:
        raise KeyError("a key of theirs")

    with pytest.raises(TrackerDown, match="library of wandb failed.*KeyError.*a key of theirs"):
        _crew(make).run()


def test_what_a_tracker_ends_with_is_raised_as_it_is() -> None:
    def make() -> Backend:
        raise Conflict("another feeds it")

    with pytest.raises(HeddleError, match="another feeds it"):
        _crew(make).run()


def _crew(make: Any) -> Crew:
    broker: Any = SimpleNamespace(close=lambda: None)  # the backend fails before anybody asks it
    return Crew(lambda: broker, "exp-1", {"wandb": make}, StopFlag())


def test_a_tracker_does_not_write_through_what_another_process_started() -> None:
    theirs = {"WANDB_SERVICE": f"3-{os.getpid() + 1}-unix-/tmp/wandb-1/socket", "A": "b"}
    leave_service_of_others(theirs)
    assert theirs == {"A": "b"}
    own = {"WANDB_SERVICE": f"3-{os.getpid()}-unix-/tmp/wandb-1/socket"}
    leave_service_of_others(own)
    leave_service_of_others({})
    assert own
