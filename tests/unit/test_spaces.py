"""Spaces: what they refuse, how values are judged, and that JSON brings the same space back."""

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle.spaces import (
    DTYPES,
    Box,
    DictSpace,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    Space,
    TupleSpace,
    bound,
    flatten,
    from_json,
    leaves,
    to_json,
    validate_value,
)

CAMERA = Box((2, 2, 3), "uint8", 0, 255)
ARM = DictSpace({"joints": Box((2,), "float32", (-1.0, -2.0), (1.0, 2.0)), "gripper": Discrete(3, -1)})
ROBOT = DictSpace({"camera": CAMERA, "arm": ARM})
PAIR = TupleSpace((MultiBinary((2,)), Discrete(3)))


def test_leaves_of_a_nested_dict_are_named_with_dots_and_sorted_level_by_level() -> None:
    assert [leaf.name for leaf in leaves(ROBOT)] == ["obs.arm.gripper", "obs.arm.joints", "obs.camera"]
    assert [leaf.name for leaf in leaves(Discrete(2), "action")] == ["action"]


def test_flatten_follows_the_leaves() -> None:
    value = {"camera": 1, "arm": {"joints": 2, "gripper": 3}}
    assert flatten(ROBOT, value) == {"obs.arm.gripper": 3, "obs.arm.joints": 2, "obs.camera": 1}


def test_a_dict_space_is_equal_and_hashes_equal_whatever_the_order_of_its_keys() -> None:
    other = DictSpace({"arm": ARM, "camera": CAMERA})
    assert other == ROBOT
    assert hash(other) == hash(ROBOT)


def test_equal_bounds_are_kept_as_one_number() -> None:
    assert Box((2,), "float32", bound(np.array([-1.0, -1.0])), 1.0).low == -1.0
    assert Box((2,), "float32", bound(np.array([-1.0, -2.0])), 1.0).low == (-1.0, -2.0)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Box((2,), "complex64"), "dtype 'complex64' is not supported"),
        (lambda: Box((2, 0), "float32"), "has no elements"),
        (lambda: Box((2,), "float32", (1.0, 2.0, 3.0)), "a bound of 3 elements does not fit 2"),
        (lambda: Discrete(0), "n = 0"),
        (lambda: DictSpace({}), "at least one entry"),
        (lambda: DictSpace({"a.b": Discrete(2)}), "without a dot"),
        (lambda: TupleSpace(()), "at least one entry"),
        (lambda: MultiDiscrete((2, 0)), "nvec holds 0"),
        (lambda: MultiDiscrete((2, 3), (0,)), "nvec of 2 and start of 1 numbers do not fit"),
        (lambda: MultiDiscrete((2, 3), shape=(3,)), r"do not fit the shape \(3,\)"),
        (lambda: MultiDiscrete((2,), dtype="float32"), "no kind of integer"),
        (lambda: Discrete(2, 2**63 - 1), "do not fit 64 bits"),
        (lambda: MultiBinary((0,)), "has no elements"),
        (lambda: from_json({"type": "tuple"}), "not a space"),
        (lambda: from_json("[]"), "not a space"),
        (lambda: from_json({"type": "box", "shape": [1]}), "not a space"),
    ],
)
def test_what_is_no_space_is_refused_with_a_reason(make: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        make()


@pytest.mark.parametrize(
    ("space", "value", "reason"),
    [
        (Discrete(3), 2, None),
        (Discrete(3), np.int64(3), "obs = 3 is outside 0..2"),
        (Discrete(3, 5), 4, "outside 5..7"),
        (Discrete(3), 1.5, "dtype float64"),
        (Discrete(3), np.array([1]), r"shape \(1,\)"),
        (Box((2,), "float32"), np.zeros(2, np.float64), None),
        (Box((2,), "float32"), np.zeros(3), r"shape \(3,\), its space \(2,\)"),
        (Box((2,), "float32"), np.array([0.0, np.nan]), "not finite"),
        (Box((2,), "float32", -1, 1), np.array([0.0, 2.0]), r"obs = 2.0 at \(1,\) is outside -1.0..1.0"),
        (Box((), "float32", 0, np.float32(math.pi).item()), np.float64(math.pi), None),
        (Box((2,), "uint8", 0, 255), np.zeros(2, np.float32), "dtype float32"),
        (Box((2,), "bool", 0, 1), np.zeros(2, np.bool_), None),
        (Box((2,), "float32"), [[1], [2, 3]], "not an array"),
        (ROBOT, {"camera": np.zeros((2, 2, 3), np.uint8)}, "obs lacks arm"),
        (ROBOT, {"camera": 0, "arm": 0, "leg": 0}, "obs has leg"),
        (Box((1,), "int64", 0, 2**62 + 1), np.array([2**62 + 2]), "is outside 0..4611686018427387905"),
        (Box((1,), "uint8", 0, 255), np.array([300]), "obs = 300 at"),
        (MultiDiscrete((2, 3), (0, 5)), np.array([1, 7], np.int32), None),
        (MultiDiscrete((2, 3), (0, 5)), np.array([1, 8]), r"obs = 8 at \(1,\) is outside 5..7"),
        (MultiBinary((2,)), np.array([True, False]), None),
        (MultiBinary((2,)), np.array([0, 2]), r"obs = 2 at \(1,\) is outside 0..1"),
        (PAIR, (np.array([1, 1]), 2), None),
        (PAIR, (np.array([1, 1]), 5), "obs.1 = 5 is outside 0..2"),
        (PAIR, (np.array([1, 1]),), "obs is a tuple of 1, its space of 2"),
        (PAIR, {"0": 1}, "obs should be a tuple of 2, not dict"),
        (ROBOT, 3, "should be a dict with arm, camera, not int"),
        (ARM, {"joints": np.array([0.0, -3.0]), "gripper": 0}, r"obs.joints = -3.0 at \(1,\)"),
    ],
)
def test_a_value_is_judged_by_shape_kind_bounds_and_keys(space: Space, value: object, reason: str | None) -> None:
    found = validate_value(space, value)
    if reason is None:
        assert found is None
    else:
        assert found is not None
        import re

        assert re.search(reason, found), found


numbers = st.floats(width=32, allow_nan=False)


@st.composite
def boxes(draw: st.DrawFn) -> Box:
    shape = tuple(draw(st.lists(st.integers(1, 3), max_size=3)))
    size = math.prod(shape)
    low = draw(st.one_of(numbers, st.lists(numbers, min_size=size, max_size=size).map(tuple)))
    return Box(shape, draw(st.sampled_from(sorted(DTYPES))), low)


discretes = st.builds(Discrete, st.integers(1, 2**40), st.integers(-(2**40), 2**40))
counts = st.lists(st.tuples(st.integers(1, 2**40), st.integers(-(2**40), 2**40)), min_size=1, max_size=4)
multi_discretes = counts.map(
    lambda pairs: MultiDiscrete(tuple(n for n, _ in pairs), tuple(start for _, start in pairs), (1, len(pairs), 1))
)
multi_binaries = st.builds(MultiBinary, st.lists(st.integers(1, 3), min_size=1, max_size=3).map(tuple))
names = st.text(min_size=1, max_size=5).filter(lambda name: "." not in name)
spaces = st.recursive(
    st.one_of(boxes(), discretes, multi_discretes, multi_binaries),
    lambda inner: st.one_of(
        st.dictionaries(names, inner, min_size=1, max_size=3).map(DictSpace),
        st.lists(inner, min_size=1, max_size=3).map(lambda within: TupleSpace(tuple(within))),
    ),
)


@given(spaces)
def test_json_brings_back_an_equal_space(space: Space) -> None:
    text = json.dumps(to_json(space), allow_nan=False)
    assert from_json(text) == space
    assert from_json(json.loads(text)) == space
