"""A process of trackers ends with what one of them ended with, whoever raised it."""

from types import SimpleNamespace
from typing import Any

import pytest

from heddle.consumers.tracking.base import Backend
from heddle.consumers.tracking.crew import Crew
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
