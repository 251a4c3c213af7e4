"""Rows of actions for a failure's record: none, one and many, of one leaf and of several."""

from typing import Any

import numpy as np
import pytest

from heddle.producers.action_rows import ActionRows
from heddle.producers.track import Track
from heddle.spaces import Box, DictSpace, Discrete, MultiDiscrete, Space

SPACES: list[Space] = [
    Discrete(3),
    MultiDiscrete((3, 300)),
    Box((2,), "float32", -1, 1),
    DictSpace({"move": Discrete(3), "aim": Box((2,), "float32", -1, 1)}),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_no_row_is_shown_as_none_where_an_episode_has_only_been_reset(space: Space) -> None:
    rows = ActionRows(space)
    track = Track(1, rows)
    track.begin(0, 0, 7)
    spot = track.reset(0)
    assert spot is not None and spot.seed == 7
    assert rows.shown(spot.actions) == ()
    assert all(len(values) == 0 for values in rows.unpack(spot.actions).values())


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_no_step_of_a_segment_is_packed_as_no_row(space: Space) -> None:
    rows = ActionRows(space)
    blank: dict[str, Any] = {
        name: np.zeros((1, 4, *v.shape[1:]), v.dtype) for name, v in rows.unpack(rows.none()).items()
    }
    assert len(rows.pack(blank, (0, slice(0, 0)))) == 0
    assert len(rows.shown(rows.pack(blank, (0, slice(0, 2))))) == 2
