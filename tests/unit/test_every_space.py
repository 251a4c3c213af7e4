"""Every kind of space, nested at random: described, told as JSON, its values recorded, encoded and read by others."""

import json
from typing import Any, Literal

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from gymnasium import spaces as gym
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from heddle.batch import checksum, decode, encode
from heddle.errors import BatchError, EnvError
from heddle.layout import Layout, Segments, make_layout
from heddle.policies.features import Features
from heddle.policies.normalise import Normaliser
from heddle.producers.envs_spaces import describe, describe_action
from heddle.segment_checks import first_problem
from heddle.spaces import DictSpace, Discrete, from_json, leaves, to_json, unflatten, validate_value
from heddle.spaces.cells import boxed, padded, put_together, taken_apart
from tests.space_zoo import acting, assert_same, every_space, everything, leaf_values, same, shown

CAP = 1 << 26
SLOW = settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])


def layout_of(space: Any, steps: int = 3) -> Layout:
    return make_layout(describe(space), Discrete(2), steps=steps, outputs={})


@SLOW
@given(every_space)
def test_a_description_survives_json(space: Any) -> None:
    ours = describe(space)
    assert from_json(json.dumps(to_json(ours), allow_nan=False)) == ours
    assert hash(from_json(to_json(ours))) == hash(ours)


@SLOW
@given(every_space, st.integers(0, 99))
def test_a_value_lies_in_its_space_and_comes_back_from_its_leaves(space: Any, seed: int) -> None:
    ours = describe(space)
    space.seed(seed)
    value = space.sample()
    assert validate_value(ours, value) is None
    found = leaf_values(ours, value)
    again = leaf_values(ours, unflatten(ours, found.__getitem__))
    assert all(same(found[name], again[name]) for name in found)


@SLOW
@given(every_space, st.integers(0, 3), st.integers(0, 99), st.sampled_from([None, "lz4"]))
def test_observations_of_every_space_travel(
    space: Any, rows: int, seed: int, compression: Literal["lz4"] | None
) -> None:
    layout = layout_of(space)
    segments = shown(layout, space, rows, seed)
    data = encode(layout, segments, compression=compression)
    if not rows:
        return
    found = decode(layout, bytes(data), crc32=checksum(data), size_cap=CAP)
    assert not any(array.flags.writeable for array in found.arrays.values())
    assert_same(segments, found)


@SLOW
@given(every_space, st.integers(1, 3), st.integers(0, 99))
def test_pandas_and_duckdb_read_a_batch_as_it_is(space: Any, rows: int, seed: int) -> None:
    layout = layout_of(space)
    segments = shown(layout, space, rows, seed)
    batch = pa.ipc.open_stream(encode(layout, segments)).read_all()
    frame = batch.to_pandas()
    selected = duckdb.sql("select * from batch")
    assert selected is not None
    records = dict(zip(batch.column_names, zip(*selected.fetchall(), strict=True), strict=True))
    for leaf in layout.observation_leaves:
        for row in range(rows):
            expected = list(segments.arrays[leaf.name][row])
            if not leaf.ragged:
                expected = np.ravel(expected).tolist()
            for found in (frame[leaf.name][row], records[leaf.name][row]):
                assert plain(found) == plain(expected), leaf.name


def plain(value: Any) -> Any:
    """Lists of lists, and within them the flat numbers of one element, as readers without tensors show them."""
    if isinstance(value, str | int | float | np.generic):
        return value.item() if isinstance(value, np.generic) else value
    if isinstance(value, np.ndarray) and value.dtype != object:
        return [plain(part) if np.ndim(part) < 2 else np.ravel(part).tolist() for part in value]
    return [plain(part) for part in value]


@SLOW
@given(every_space, st.integers(0, 99))
def test_cells_come_back_from_flat_arrays_and_are_padded_with_their_lengths(space: Any, seed: int) -> None:
    ours = describe(space)
    space.seed(seed)
    values = [leaf_values(ours, space.sample()) for _ in range(3)]
    for leaf in leaves(ours):
        if not leaf.ragged:
            continue
        cells = [value[leaf.name] for value in values]
        assert all(map(same, put_together(leaf, *taken_apart(leaf, cells)), cells))
        arrays = padded(leaf, boxed(cells))
        lengths = arrays[f"{leaf.name}:length"]
        assert lengths.tolist() == [len(cell) for cell in cells]
        for place, cell in enumerate(cells):
            shown = arrays[leaf.name][place, : lengths[place]]
            if isinstance(cell, str):
                assert "".join(map(chr, shown)) == cell
            elif isinstance(cell, np.ndarray):
                np.testing.assert_array_equal(shown, cell)


def test_a_padded_sequence_of_texts_says_how_many_there_are_and_how_long_each_is() -> None:
    (leaf,) = leaves(describe(gym.Sequence(gym.Text(3, charset="ab"))))
    arrays = padded(leaf, boxed([("a", "bab"), (), ("b",)]))
    assert arrays["obs"].tolist() == [[[97, 0, 0], [98, 97, 98]], [[0] * 3] * 2, [[98, 0, 0], [0] * 3]]
    assert arrays["obs:length"].tolist() == [2, 0, 1]
    assert arrays["obs:length.1"].tolist() == [[1, 3], [0, 0], [1, 0]]


class Missions(gym.Space[str]):
    """A package's own space of texts."""

    def __init__(self) -> None:
        super().__init__(dtype=str)


def test_a_space_of_texts_of_a_package_s_own_may_hold_any_text() -> None:
    ours = describe(Missions())
    assert from_json(json.dumps(to_json(ours))) == ours
    assert validate_value(ours, "grab the ключ") is None
    assert "has the character" in str(validate_value(ours, "\ud800"))
    assert "at most 4096" in str(validate_value(ours, "a" * 5000))


GRAPH = gym.Graph(gym.Box(-1, 1, (2,)), gym.Discrete(3))
LINKED = gym.GraphInstance(np.zeros((2, 2), np.float32), np.array([0]), np.array([[0, 1]], np.int32))


@pytest.mark.parametrize(
    ("space", "value", "reason"),
    [
        (gym.Text(3, charset="ab"), "abba", "obs has 4 characters, its space at most 3"),
        (gym.Text(3, charset="ab"), "abc", "obs has the character 'c'"),
        (gym.Text(3, charset="ab"), "", "obs = '' is shorter than 1"),
        (gym.Text(3, charset="ab"), 5, "obs is a int, its space holds text"),
        (gym.Sequence(gym.Discrete(3)), 5, "obs cannot be found in a int: TypeError"),
        (gym.Sequence(gym.Text(3)), "abc", "obs cannot be found in a str"),
        (gym.Sequence(gym.Discrete(3)), (0, 3), r"obs = 3 at \(1,\) is outside 0..2"),
        (gym.Sequence(gym.Box(-1, 1, (2,))), (np.zeros(2), np.zeros(3)), "elements of different shapes"),
        (gym.Sequence(gym.Box(-1, 1, (2,))), (np.array([0, np.nan]),), "obs is not finite"),
        (gym.Sequence(gym.Box(0, 9, (1,), np.int8)), (np.array([300]),), "a number that its dtype int8 cannot"),
        (
            gym.Sequence(gym.Dict({"a": gym.Discrete(2), "b": gym.Discrete(2)}), stack=True),
            {"a": np.zeros(2, int), "b": np.zeros(1, int)},
            "obs.a and obs.b have different numbers of elements",
        ),
        (gym.OneOf((gym.Discrete(2), gym.Discrete(3))), (2, 0), "obs.index = 2 is outside 0..1"),
        (gym.OneOf((gym.Discrete(2), gym.Discrete(3))), (0, 2), "obs.0 = 2 is outside 0..1"),
        (gym.OneOf((gym.Discrete(2), gym.Discrete(3))), (1, 2), None),
        (GRAPH, LINKED, None),
        (GRAPH, LINKED._replace(edge_links=np.array([[0, 2]])), "obs.edge_links names a node that there is not"),
        (GRAPH, LINKED._replace(edges=np.array([0, 1])), "different numbers of elements"),
        (GRAPH, np.zeros(3), "obs.nodes cannot be found in a ndarray"),
    ],
)
def test_a_value_of_varying_length_is_judged_leaf_by_leaf(space: Any, value: Any, reason: str | None) -> None:
    found = validate_value(describe(space), value)
    if reason is None:
        assert found is None
    else:
        import re

        assert found is not None
        assert re.search(reason, found), found


def _set(name: str, row: int, step: int, value: Any) -> Any:
    def spoil(segments: Segments) -> None:
        segments.arrays[name][row, step] = value

    return spoil


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (_set("obs.words", 0, 0, "abcabcabc"), "obs.words has 9 characters, its space at most 6"),
        (_set("obs.words", 0, 1, "q"), "obs.words has the character 'q'"),
        (_set("obs.stack", 0, 0, np.zeros((1, 2), np.int8)), None),
        (_set("obs.items.where", 0, 0, np.full((1, 2), np.inf, np.float32)), "obs.items.where is not a finite number"),
        (_set("obs.items.where", 0, 0, np.zeros((9, 2), np.float32)), "have different numbers of elements"),
        (_set("obs.deeper", 0, 0, (np.array([9]),)), "obs.deeper is outside its space"),
        (_set("obs.graph.edge_links", 0, 0, np.array([[0, 999]])), "different numbers|names a node"),
        (_set("obs.either.index", 0, 0, 3), "obs.either.index 3 is outside 0..2"),
    ],
)
def test_cells_that_nobody_can_learn_from_are_refused_when_read(spoil: Any, reason: str | None) -> None:
    space = everything()
    layout = layout_of(space)
    segments = shown(layout, space, 2, 5)
    segments.arrays["length"][0] = 1
    assert first_problem(segments) is None
    spoil(segments)
    data = encode(layout, segments)
    if reason is None:
        decode(layout, data, crc32=None, size_cap=CAP)
        return
    with pytest.raises(BatchError, match=reason):
        decode(layout, data, crc32=None, size_cap=CAP)


def test_what_lies_beyond_a_segment_is_not_judged_but_blank_when_it_was_made() -> None:
    space = everything()
    layout = layout_of(space)
    segments = shown(layout, space, 2, 5)
    segments.set_finals([])
    segments.arrays["length"][:] = 1
    segments.arrays["truncated"][...] = False
    segments.arrays["episode_length"][...] = 0
    segments.arrays["episode_return"][...] = np.nan
    segments.arrays["obs.words"][0, 2] = "q"
    assert first_problem(segments) is None
    assert Segments.empty(layout, 1).arrays["obs.words"].tolist() == [[""] * 4]
    assert Segments.empty(layout, 1).arrays["obs.items.where"][0, 3].shape == (0, 2)


def test_selected_rows_take_their_cells_along() -> None:
    space = everything()
    layout = layout_of(space)
    segments = shown(layout, space, 3, 1)
    picked = segments.select(np.array([0, 2]))
    assert picked.arrays["obs.words"].tolist() == segments.arrays["obs.words"][[0, 2]].tolist()
    assert first_problem(picked) is None


def test_a_built_in_policy_refuses_what_has_no_fixed_size_and_says_what_to_do() -> None:
    with pytest.raises(EnvError) as refused:
        Features(describe(gym.Dict({"say": gym.Text(3), "see": gym.Discrete(2)})), Discrete(2))
    (problem,) = refused.value.problems
    assert problem.key == "policy.id"
    assert "obs.say is text, of no fixed size" in problem.reason
    assert "policy of your own" in problem.hint


def test_multi_discrete_features_are_one_hot_and_multi_binary_ones_zero_and_one() -> None:
    space = gym.Dict(
        {"dials": gym.MultiDiscrete(np.array([2, 3]), start=np.array([1, -1])), "lamps": gym.MultiBinary(2)}
    )
    features = Features(describe(space), Discrete(2))
    assert features.width == 7
    seen = {"obs.dials": np.array([[2, -1], [1, 1]]), "obs.lamps": np.array([[1, 0], [0, 1]], np.int8)}
    assert features.encode(seen).tolist() == [[0, 1, 1, 0, 0, 1, 0], [1, 0, 0, 0, 1, 0, 1]]


def test_one_of_is_read_by_the_built_in_policy_when_its_alternatives_have_fixed_shapes() -> None:
    space = describe(gym.OneOf((gym.Box(-1, 1, (2,)), gym.Discrete(2))))
    assert Features(space, Discrete(2)).width == 2 + 2 + 2


def test_statistics_are_kept_of_fixed_floats_only() -> None:
    assert set(Normaliser(describe(everything())).moments) == {"obs.half", "obs.pair.1.deep", "obs.either.0"}


@pytest.mark.parametrize(
    "space",
    [gym.Text(3), gym.Sequence(gym.Discrete(2)), GRAPH, gym.Tuple((gym.Discrete(2), gym.OneOf((gym.Text(2),))))],
)
def test_actions_of_varying_length_are_refused_with_what_to_do(space: Any) -> None:
    with pytest.raises(EnvError) as refused:
        describe_action(space, value="some-env")
    (problem,) = refused.value.problems
    assert "of varying length, which no policy can choose" in problem.reason
    assert problem.value == "some-env"
    assert "can be observed only" in problem.hint


def test_every_kind_that_can_be_chosen_is_described() -> None:
    found = describe_action(acting())
    assert isinstance(found, DictSpace)
    names = [leaf.name for leaf in leaves(found, "action")]
    assert names == [
        "action.dials", "action.either.index", "action.either.0", "action.either.1",
        "action.lamps", "action.push.0", "action.push.1", "action.turn",
    ]  # fmt: skip
