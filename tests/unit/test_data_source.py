"""Batches of a recording: every step once a pass, in an order that follows from the seed, as the learner needs them."""

from pathlib import Path

import numpy as np
import pytest

from heddle.consumers.data.source import DataSource
from heddle.consumers.data.store import data_files, read_pieces
from heddle.errors import DataError
from heddle.layout import Segments
from heddle.policies import make_policy
from heddle.segment_checks import first_problem
from heddle.spaces import Box, Discrete, Space
from heddle.spec import PolicySpec
from tests.data_kit import ACTION, OBSERVATION, STEEPEST, record_cartpole

POLICY = make_policy(PolicySpec(hidden=(4,)), OBSERVATION, ACTION, seed=1)
T = 16


def source(folder: Path, *, seed: int = 1, window_bytes: int = 1 << 28, min_return: float | None = None) -> DataSource:
    return DataSource(
        folder,
        OBSERVATION,
        ACTION,
        POLICY,
        segment_steps=T,
        batch_steps=200,
        seed=seed,
        min_return=min_return,
        window_bytes=window_bytes,
    )


def steps_of(segments: Segments) -> list[bytes]:
    valid = segments.valid()
    return [row.tobytes() for row in segments.arrays["obs"][:, :-1][valid]]


@pytest.mark.parametrize("window_bytes", [1 << 28, 1])
def test_a_pass_gives_every_step_once_and_the_next_one_in_another_order(tmp_path: Path, window_bytes: int) -> None:
    manifest = record_cartpole(tmp_path, episodes=12, files=3)
    data = source(tmp_path, window_bytes=window_bytes)
    first, second = (
        [step for number in range(data.batches_per_pass) for step in steps_of(data.batch(number + start))]
        for start in (0, data.batches_per_pass)
    )
    pieces = [piece for path in data_files(tmp_path, manifest) for piece in read_pieces(path, manifest.columns)]
    recorded = sorted(row.tobytes() for piece in pieces for row in piece.arrays["obs"])
    assert sorted(first) == sorted(second) == recorded and first != second
    assert data.steps == manifest.steps == len(recorded)


def test_a_batch_follows_from_its_number_and_the_seed_alone(tmp_path: Path) -> None:
    record_cartpole(tmp_path, episodes=8)
    one, other = source(tmp_path), source(tmp_path)
    expected = [one.batch(number).arrays for number in range(7)]
    for number in (5, 2, 6, 0):
        found = other.batch(number).arrays
        assert all(found[name].tobytes() == expected[number][name].tobytes() for name in found)
    assert steps_of(source(tmp_path, seed=2).batch(0)) != steps_of(one.batch(0))
    assert one.fingerprint == other.fingerprint
    record_cartpole(tmp_path, episodes=1)
    assert source(tmp_path).fingerprint != one.fingerprint


def test_batches_are_what_a_learner_may_be_given_with_the_observations_that_followed(tmp_path: Path) -> None:
    manifest = record_cartpole(tmp_path, episodes=6)
    pieces = [piece for path in data_files(tmp_path, manifest) for piece in read_pieces(path, manifest.columns)]
    following = {}
    for piece in pieces:
        obs = piece.arrays["obs"]
        last = obs[-1] if piece.last is None else piece.last["obs"]
        for now, then in zip(obs, [*obs[1:], last], strict=True):
            following[now.tobytes()] = np.asarray(then).tobytes()
    data = source(tmp_path)
    for number in range(data.batches_per_pass):
        segments = data.batch(number)
        arrays = segments.arrays
        assert first_problem(segments) is None
        assert len(set(arrays["env"].tolist())) == segments.rows
        for row, length in enumerate(arrays["length"]):
            assert 1 <= length <= T
            for step in range(length):
                assert following[arrays["obs"][row, step].tobytes()] == arrays["obs"][row, step + 1].tobytes()
            assert not arrays["obs"][row, length + 1 :].any()
        over = arrays["truncated"] & ~arrays["terminated"]
        assert over.sum() == len(arrays["final_row"])
        for row, step, final in zip(arrays["final_row"], arrays["final_step"], arrays["final.obs"], strict=True):
            assert over[row, step] and final.tobytes() == following[arrays["obs"][row, step].tobytes()]


def test_only_episodes_with_a_return_that_is_asked_for_are_taken(tmp_path: Path) -> None:
    record_cartpole(tmp_path, episodes=3, good=False)
    bad = source(tmp_path).steps
    record_cartpole(tmp_path, episodes=3, seed=50)
    data = source(tmp_path, min_return=400)
    assert data.steps == source(tmp_path).steps - bad
    with pytest.raises(DataError, match="no steps of episodes with a return of at least 501"):
        source(tmp_path, min_return=501)


@pytest.mark.parametrize(
    ("observation", "action", "why"),
    [
        (OBSERVATION, Discrete(3), "has action as Discrete with n = 2, here it is Discrete with n = 3"),
        (OBSERVATION, Discrete(2, 1), "has action as Discrete with start = 0, here it is Discrete with start = 1"),
        (OBSERVATION, Box((), "int64", 0, 1), "has action as Discrete, here it is Box"),
        (
            Box((4,), "float32", OBSERVATION.low, (4.0, np.inf, STEEPEST, np.inf)),
            ACTION,
            r"has obs as Box with high\[0\] = 4\.8.*, here it is Box with high\[0\] = 4\.0",
        ),
    ],
)
def test_a_recording_whose_numbers_mean_something_else_is_refused(
    tmp_path: Path, observation: Space, action: Space, why: str
) -> None:
    record_cartpole(tmp_path, episodes=1, files=1)
    policy = make_policy(PolicySpec(hidden=(4,)), observation, action, seed=1)
    with pytest.raises(DataError, match=why):
        DataSource(tmp_path, observation, action, policy, segment_steps=4, batch_steps=8, seed=1)


def test_a_recording_of_other_spaces_is_refused_by_the_leaf(tmp_path: Path) -> None:
    record_cartpole(tmp_path, episodes=1, files=1)
    for observation, action, why in (
        (Box((3,), "float32"), ACTION, r"has obs as float32\[4\], here it is float32\[3\]"),
        (OBSERVATION, Box((1,), "float32"), r"has action as int64\[\], here it is float32\[1\]"),
        (Box((4,), "float64"), Discrete(2, 0), "has obs as float32"),
    ):
        policy = make_policy(PolicySpec(hidden=(4,)), observation, action, seed=1)
        with pytest.raises(DataError, match=why):
            DataSource(tmp_path, observation, action, policy, segment_steps=4, batch_steps=8, seed=1)
