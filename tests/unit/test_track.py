"""The track: which actions a failure is told with, over the borders of segments, and how much is kept."""

from typing import Any

import numpy as np

from heddle.producers import track as module
from heddle.producers.action_rows import ActionRows
from heddle.producers.track import Track
from heddle.spaces import Box, Discrete


def actions(*rows: list[int]) -> Any:
    return {"action": np.array(rows, np.int64)}


def test_the_actions_of_an_episode_are_found_over_the_borders_of_segments() -> None:
    track = Track(2, ActionRows(Discrete(5)))
    track.begin(0, 0, 11)
    track.begin(1, 0, 12)
    track.begin(0, 2, 21)  # ended with step 1
    track.keep(actions([1, 2, 3, 4], [1, 1, 1, 1]), 4)
    track.keep(actions([0, 1, 2, 3], [2, 2, 2, 2]), 3)  # cut after three
    spot = track.spot(0, 1, actions([4, 3, 0, 0], [3, 3, 0, 0]))
    assert spot is not None
    assert (spot.seed, spot.count, spot.step, spot.start) == (21, 2, 7, "reset")
    assert spot.actions.tolist() == [3, 4, 0, 1, 2, 4, 3]
    other = track.spot(1, 0, actions([4, 3], [3, 3]))
    assert other is not None
    assert (other.seed, other.count, other.step) == (12, 1, 8)
    assert other.actions.tolist() == [1, 1, 1, 1, 2, 2, 2, 3]


def test_a_reset_is_told_by_the_row_where_its_episode_begins() -> None:
    track = Track(1, ActionRows(Discrete(5)))
    track.begin(0, 0, 11)
    track.begin(0, 3, 21)
    first, last = track.reset(0, 0), track.reset(0)
    assert first is not None
    assert last is not None
    assert (first.seed, first.step, last.seed, last.count) == (11, 0, 21, 2)
    assert track.reset(0, 2) is None
    before = track.spot(0, 2, actions([1, 2, 3, 4]))
    assert before is not None
    assert (before.seed, before.actions.tolist()) == (11, [1, 2, 3])


def test_after_a_snapshot_the_actions_follow_it_until_the_next_reset() -> None:
    track = Track(1, ActionRows(Discrete(5)))
    track.resume(b"state", [11], [-6])
    track.keep(actions([1, 2]), 2)
    spot = track.spot(0, 0, actions([3]))
    assert spot is not None
    assert (spot.seed, spot.count, spot.step, spot.start, spot.snapshot) == (11, 1, 9, "snapshot", b"state")
    assert spot.actions.tolist() == [1, 2, 3]
    track.begin(0, 1, 21)
    spot = track.spot(0, 1, actions([3, 4]))
    assert spot is not None
    assert (spot.seed, spot.count, spot.step, spot.start, spot.snapshot) == (21, 2, 1, "reset", b"")


def test_an_episode_too_long_to_keep_is_said_to_be_so_and_memory_stays_bounded() -> None:
    track = Track(4, ActionRows(Box((64,), "float32")))
    for env in range(4):
        track.begin(env, 0, 11)
    segment = {"action": np.ones((4, 512, 64), np.float32)}
    for _ in range(40):
        track.keep(segment, 512)
    assert sum(kept.nbytes for kept in track._kept) <= module.MOST_BYTES
    spot = track.spot(2, 7, segment)
    assert spot is not None
    assert (spot.seed, spot.step, spot.start) == (11, 40 * 512 + 8, "unknown")
    track.begin(2, 8, 21)
    spot = track.spot(2, 9, segment)
    assert spot is not None
    assert (spot.seed, spot.start, len(spot.actions)) == (21, "reset", 2)


def test_what_no_running_episode_reaches_back_to_is_thrown_away() -> None:
    track = Track(1, ActionRows(Discrete(5)))
    for _ in range(100):
        track.begin(0, 0, 11)
        track.keep(actions([1, 2, 3, 4]), 4)
    assert len(track._kept) <= 2
