"""Replay files: no trainer takes away what another's checkpoint names, and a disk that fails costs no checkpoint."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heddle.consumers.learners.replay import Replay
from heddle.consumers.learners.replay_chunk import make_chunk, row_bytes
from heddle.errors import CheckpointError
from heddle.spec.learning import ReplayOptions
from tests.unit.replay_kit import GAMMA, World

State = tuple[Any, dict[str, Any]]


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heddle.consumers.learners.replay.LEAST_ROLL_BYTES", 2000)


def make_replay(directory: Path, *, seat_epoch: int = 7, rows: int = 60) -> Replay:
    """A buffer of so many rows, with files."""
    capacity = rows * row_bytes(make_chunk(World().play()).leaves)
    options = ReplayOptions.model_construct(**(ReplayOptions().model_dump() | {"capacity": capacity, "n_step": 3}))
    replay = Replay(options, gamma=GAMMA, seed=0)
    replay.open(directory, seat_epoch)
    return replay


def play(replay: Replay, world: World, updates: int = 1) -> None:
    for _ in range(updates):
        replay.insert(make_chunk(world.play()))


def loaded(directory: Path, state: State, **given: Any) -> Replay:
    replay = make_replay(directory, **given)
    replay.load(*state)
    return replay


def on_disk(directory: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in directory.iterdir()}


def same(one: Replay, two: Replay) -> None:
    """Both hold the same, and draw the same."""
    assert (one.num_steps, one.inserted, one.filled) == (two.num_steps, two.inserted, two.filled)
    left, right = one.sample(64), two.sample(64)
    for name in ("rows", "returns", "discount"):
        np.testing.assert_array_equal(getattr(left, name), getattr(right, name))
    np.testing.assert_array_equal(left.leaves["obs"], right.leaves["obs"])


def test_a_trainer_that_lost_its_seat_deletes_no_file_of_the_new_holder(tmp_path: Path) -> None:
    # Given a trainer, and another one that took its seat and has written
    world, first = World(), make_replay(tmp_path, seat_epoch=7)
    play(first, world, 3)
    second = loaded(tmp_path, first.state(), seat_epoch=8)
    play(second, world, 3)
    state = second.state()
    # When the first one comes to itself, saves, and knows of its own checkpoint alone
    play(first, world)
    first.keep([first.state()[1]])
    # Then what the second one's checkpoint names can be loaded, and the second cleans up behind the first
    same(loaded(tmp_path, state), second)
    second.keep([second.state()[1]])
    assert on_disk(tmp_path).keys() == {name for name, *_ in second.state()[1]["files"]}


def test_files_that_went_away_under_a_trainer_are_written_anew_and_named_no_more(tmp_path: Path) -> None:
    world, replay = World(), make_replay(tmp_path)
    play(replay, world, 20)
    names = {name for name, *_ in replay.state()[1]["files"]}
    assert len(names) > 1
    (tmp_path / min(names)).unlink()
    play(replay, world)
    state = replay.state()
    assert names.isdisjoint(name for name, *_ in state[1]["files"])
    again = loaded(tmp_path, state)
    same(replay, again)
    play(replay, world)
    same(replay, loaded(tmp_path, replay.state()))


def test_states_that_no_checkpoint_came_of_take_no_file_from_the_last_that_is_durable(tmp_path: Path) -> None:
    world, replay = World(), make_replay(tmp_path)
    play(replay, world, 5)
    durable, held = replay.state(), replay.num_steps
    for _ in range(12):
        play(replay, world, 3)
        replay.state()
    assert loaded(tmp_path, durable).num_steps == held


def test_resuming_the_newest_checkpoint_leaves_the_older_ones_their_files(tmp_path: Path) -> None:
    world, replay = World(), make_replay(tmp_path)
    play(replay, world, 5)
    older, held = replay.state(), replay.num_steps
    play(replay, world, 30)
    newest = replay.state()
    second = loaded(tmp_path, newest, seat_epoch=8)
    second.keep([older[1], newest[1]])
    assert loaded(tmp_path, older).num_steps == held
    second.keep([newest[1]])
    with pytest.raises(CheckpointError, match="cannot read"):
        loaded(tmp_path, older)


@pytest.mark.parametrize("saved_before", [False, True])
def test_a_write_that_failed_leaves_nothing_on_the_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saved_before: bool
) -> None:
    # Given a file that is appended to, or none yet, and records for several
    world, replay = World(), make_replay(tmp_path)
    if saved_before:
        play(replay, world)
        replay.state()
    before = on_disk(tmp_path)
    play(replay, world, 20)
    left = [2]

    def full(handle: int) -> None:
        left[0] -= 1
        if not left[0]:
            raise OSError(28, "No space left on device")

    # When the disk is full at the second of them
    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", full)
        with pytest.raises(CheckpointError, match="No space left on device"):
            replay.state()
    # Then nothing of it is there, and the next one has all
    assert on_disk(tmp_path) == before
    same(replay, loaded(tmp_path, replay.state()))


def test_what_waits_for_a_checkpoint_is_never_much_more_than_the_buffer_holds(tmp_path: Path) -> None:
    world, replay = World(), make_replay(tmp_path)
    play(replay, world, 3)
    replay.state()
    most = 0
    for _ in range(300):
        play(replay, world)
        assert replay._files is not None
        most = max(most, len(replay._files._pending))
    assert most < 30
    same(replay, loaded(tmp_path, replay.state()))


def test_a_new_folder_survives_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: set[Path] = set()
    plain = os.fsync

    def noted(handle: int) -> None:
        synced.add(Path(f"/proc/self/fd/{handle}").readlink())
        plain(handle)

    monkeypatch.setattr("os.fsync", noted)
    replay = make_replay(tmp_path / "home" / "replay")
    play(replay, World())
    replay.state()
    assert {tmp_path / "home", tmp_path / "home" / "replay"} < synced
