"""What an environment is given for what a policy chose, and how it is kept for a failure's record."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces as gym
from hypothesis import given
from hypothesis import strategies as st

from heddle.layout import make_layout
from heddle.producers.action_rows import ActionRows
from heddle.producers.choices import batched, batches_for, choices_for
from heddle.producers.contract import some_actions
from heddle.producers.envs_spaces import describe_action
from heddle.spaces import ACTION, Box, DictSpace, Discrete, MultiBinary, MultiDiscrete, OneOf, Space, TupleSpace, leaves

ARM = DictSpace({"grip": Discrete(3, 5), "move": Box((2,), "float32", -1.0, 1.0)})


def test_a_multi_discrete_action_gets_its_start_and_the_dtype_of_its_space() -> None:
    action = MultiDiscrete((3, 4), (10, -2), dtype="int16")
    chosen = np.array([[0, 0], [2, 3]])
    given = choices_for(action)({"action": chosen})
    assert [value.tolist() for value in given] == [[10, -2], [12, 1]]
    assert given[0].dtype == np.int16
    given[0][:] = 0
    assert chosen.tolist() == [[0, 0], [2, 3]]


@pytest.mark.parametrize("action", [Discrete(20, 250), Discrete(20, -5), MultiDiscrete((20,), (250,))])
def test_a_start_is_added_to_small_integers_without_wrapping(action: Discrete | MultiDiscrete) -> None:
    shape = (2, *action.shape)
    chosen = {"action": np.array([10, 3], np.uint8).reshape(shape)}
    (start,) = np.ravel(action.start).tolist()
    for values in (choices_for(action)(chosen), batches_for(action)(chosen)):
        assert np.ravel(values).tolist() == [start + 10, start + 3]


def test_a_box_of_integers_is_clipped_to_its_bounds_to_the_last_digit() -> None:
    action = Box((2,), "int64", (-(2**62) - 1, 0), (2**62 + 1, 3))
    (given,) = choices_for(action)({"action": np.array([[2**63 - 1, -5]])})
    assert given.tolist() == [2**62 + 1, 0]
    assert given.dtype == np.int64


def test_a_box_of_one_number_without_a_dimension_is_still_an_array() -> None:
    for action in (Box((), "float32"), Box((), "float32", -1, 1)):
        given = choices_for(action)({"action": np.array([0.5, 0.25], np.float32)})
        assert [isinstance(value, np.ndarray) and value.shape == () for value in given] == [True, True]


def test_dict_and_tuple_actions_are_put_together_for_each_environment() -> None:
    action = TupleSpace((ARM, MultiBinary((2,))))
    chosen = {
        "action.0.grip": np.array([0, 2]),
        "action.0.move": np.array([[2, 0], [0, -2]], np.float32),
        "action.1": np.array([[1, 0], [0, 1]], np.int8),
    }
    first, second = choices_for(action)(chosen)
    assert first[0]["grip"] == 5
    assert second[0]["grip"] == 7
    assert first[0]["move"].tolist() == [1.0, 0.0]
    assert second[0]["move"].tolist() == [0.0, -1.0]
    assert second[1].tolist() == [0, 1]
    assert second[1].dtype == np.int8


def test_columns_of_a_composite_action_are_its_leaves_with_indices_as_int64() -> None:
    action = DictSpace({"a": MultiDiscrete((2, 2), dtype="int8"), "b": MultiBinary((3,)), "c": Box((), "uint16")})
    layout = make_layout(Discrete(2), action, steps=3, outputs={})
    assert [leaf.name for leaf in layout.action_leaves] == ["action.a", "action.b", "action.c"]
    found = [(column.dtype, column.shape) for column in layout.columns if column.name.startswith("action")]
    assert found == [("int64", (2,)), ("int8", (3,)), ("uint16", ())]


shapes = st.lists(st.integers(1, 3), min_size=1, max_size=2).map(tuple)


@st.composite
def multi_discretes(draw: st.DrawFn) -> gym.MultiDiscrete:
    shape = draw(shapes)
    size = int(np.prod(shape))
    nvec = draw(st.lists(st.integers(1, 200), min_size=size, max_size=size))
    start = draw(st.lists(st.integers(-9, 9), min_size=size, max_size=size))
    return gym.MultiDiscrete(np.reshape(nvec, shape), start=np.reshape(start, shape), dtype="int32")


gym_leaves = st.one_of(
    st.builds(lambda n, start: gym.Discrete(n, start=start), st.integers(1, 300), st.integers(-5, 5)),
    multi_discretes(),
    st.builds(lambda shape: gym.MultiBinary(shape), shapes),
    st.builds(lambda shape, kind: gym.Box(-2, 3, shape, kind), shapes, st.sampled_from([np.float32, np.int16])),
)
gym_actions = st.recursive(
    gym_leaves,
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=3).map(gym.Dict),
        st.lists(inner, min_size=1, max_size=3).map(gym.Tuple),
    ),
    max_leaves=5,
)


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    return [plain(part) for part in value] if isinstance(value, tuple) else np.asarray(value).tolist()


@given(gym_actions, st.integers(0, 99))
def test_what_an_environment_is_given_lies_in_its_action_space(space: gymnasium.Space[Any], seed: int) -> None:
    action = describe_action(space)
    for value in some_actions(action, 5, np.random.default_rng(seed)):
        assert space.contains(value), value


@given(gym_actions, st.integers(0, 99))
def test_actions_kept_for_a_record_come_back_as_they_were_chosen(space: gymnasium.Space[Any], seed: int) -> None:
    action, rng = describe_action(space), np.random.default_rng(seed)
    chosen = {leaf.name: _drawn(leaf.space, rng).astype(leaf.chosen_dtype) for leaf in leaves(action, ACTION)}
    rows = ActionRows(action)
    kept = rows.pack(chosen, (1, slice(1, 4)))
    assert kept.nbytes == 3 * rows.row_bytes
    found = rows.unpack(np.frombuffer(kept.tobytes(), kept.dtype).reshape(kept.shape))
    for name, values in chosen.items():
        np.testing.assert_array_equal(found[name], values[1, 1:4])
        assert found[name].dtype == values.dtype
    given = choices_for(action)(found)
    again = choices_for(action)({name: values[1, 1:4] for name, values in chosen.items()})
    assert [plain(value) for value in given] == [plain(value) for value in again]
    assert len(rows.shown(kept)) == 3


def _alike(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert list(one) == list(other)
        one, other = list(one.values()), list(other.values())
    if isinstance(one, tuple | list):
        for mine, theirs in zip(one, other, strict=True):
            _alike(mine, theirs)
        return
    assert (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())


@given(gym_actions, st.integers(0, 99), st.integers(0, 3))
def test_what_a_vector_environment_is_given_is_that_of_each_as_one_and_none_of_the_policys_arrays(
    space: gymnasium.Space[Any], seed: int, start: int
) -> None:
    action, rng = describe_action(space), np.random.default_rng(seed)
    if isinstance(action, Discrete):
        action = Discrete(action.n, start)
    chosen = {leaf.name: _drawn(leaf.space, rng)[1].astype(leaf.chosen_dtype) for leaf in leaves(action, ACTION)}
    given = batches_for(action)(chosen)
    _alike(given, batched(choices_for(action)(chosen)))
    for array in arrays_in(given):
        assert not any(np.shares_memory(array, values) for values in chosen.values())


def test_a_choice_among_spaces_is_given_to_a_vector_environment_as_its_number_and_the_choice() -> None:
    action = OneOf((Discrete(3, 1), Discrete(2, 7)))
    chosen = {"action.index": np.array([1, 0]), "action.0": np.array([0, 2]), "action.1": np.array([1, 1])}
    _alike(batches_for(action)(chosen), batched(choices_for(action)(chosen)))
    which, values = batches_for(action)(chosen)
    assert (which.tolist(), values.tolist()) == ([1, 0], [8, 3])


def arrays_in(given: Any) -> list[Any]:
    if isinstance(given, dict | tuple):
        within = given.values() if isinstance(given, dict) else given
        return [array for part in within for array in arrays_in(part)]
    return [given]


def _drawn(space: Any, rng: np.random.Generator) -> Any:
    shape = (2, 4, *space.shape)
    if isinstance(space, Box):
        return rng.integers(-2, 4, shape)
    most = space.n if isinstance(space, Discrete) else 2 if isinstance(space, MultiBinary) else space.counts()
    return rng.integers(0, most, shape)


@pytest.mark.parametrize(
    ("action", "shown"),
    [
        (Discrete(3, 5), (1, 2)),
        (MultiDiscrete((3, 3)), ([1, 1], [2, 2])),
        (TupleSpace((Discrete(3), Discrete(300))), ({"action.0": 1, "action.1": 1}, {"action.0": 2, "action.1": 2})),
    ],
)
def test_actions_are_shown_by_leaf_where_there_are_several(action: Space, shown: object) -> None:
    rows = ActionRows(action)
    chosen = {
        leaf.name: np.broadcast_to(np.array([1, 2]).reshape(2, *(1,) * len(leaf.space.shape)), (2, *leaf.space.shape))
        for leaf in leaves(action, ACTION)
    }
    assert rows.shown(rows.pack(chosen, (slice(None),))) == shown
