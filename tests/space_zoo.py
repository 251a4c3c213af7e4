"""Every kind of space: a Hypothesis strategy, values and segments, and an environment that shows all at once."""

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces as gym
from hypothesis import strategies as st

from heddle.layout import Layout, Segments
from heddle.policies.base import Acted, Array, Arrays, Noise, OutputSpec, ScriptedPolicy
from heddle.spaces import (
    ACTION,
    Box,
    LeafSpace,
    Space,
    index_range,
    leaves,
)
from heddle.spaces.cells import to_cell

CHARSET = "abcåπ "
_SHAPES = st.lists(st.integers(1, 3), min_size=1, max_size=2).map(tuple)
_FLOATS = st.sampled_from(["float16", "float32", "float64"])
_WHOLE = st.sampled_from(["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"])


def _multi_discrete(shape: tuple[int, ...], start: int, kind: str) -> gym.MultiDiscrete:
    nvec = 2 + np.arange(np.prod(shape)).reshape(shape)
    return gym.MultiDiscrete(nvec, start=start + np.zeros_like(nvec), dtype=kind)


fixed_spaces: st.SearchStrategy[Any] = st.one_of(
    st.builds(lambda shape, kind: gym.Box(-2, 2, shape, np.dtype(kind)), _SHAPES, _FLOATS),
    st.builds(lambda shape, kind: gym.Box(0, 100, shape, np.dtype(kind)), _SHAPES, _WHOLE),
    st.builds(lambda shape, kind: gym.Box(0, 1, shape, np.dtype(kind)), _SHAPES, st.just("bool")),
    st.builds(lambda n, start: gym.Discrete(n, start=start), st.integers(1, 5), st.integers(-3, 3)),
    st.builds(_multi_discrete, _SHAPES, st.integers(-3, 3), st.sampled_from(["int8", "int32", "int64"])),
    st.builds(lambda shape: gym.MultiBinary(shape), _SHAPES),
)
texts = st.builds(
    lambda least, more: gym.Text(least + more, min_length=least, charset=CHARSET), st.integers(0, 4), st.integers(0, 4)
)


def _holding(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(inner, min_size=1, max_size=3)
    return st.one_of(
        st.dictionaries(st.sampled_from(["a", "b", "ä"]), inner, min_size=1, max_size=3).map(gym.Dict),
        several.map(gym.Tuple),
        several.map(gym.OneOf),
        st.builds(lambda space, stack: gym.Sequence(space, stack=stack), inner, st.booleans()),
        st.builds(lambda node, edge: gym.Graph(node, edge), inner, st.one_of(st.none(), inner)),
    )


every_space: st.SearchStrategy[Any] = st.recursive(st.one_of(fixed_spaces, texts), _holding, max_leaves=5)


def everything() -> gym.Dict:
    """One of each kind, some within others."""
    return gym.Dict(
        {
            "half": gym.Box(-1, 1, (2,), np.float16),
            "wide": gym.Box(-(2**62), 2**62, (2, 2), np.int64),
            "unsigned": gym.Box(0, 2**16 - 1, (3,), np.uint16),
            "flags": gym.Box(0, 1, (2,), np.dtype(bool)),
            "mode": gym.Discrete(3, start=4),
            "dials": gym.MultiDiscrete(np.array([[2, 3]]), start=np.array([[1, -1]]), dtype="int32"),
            "lamps": gym.MultiBinary((2, 2)),
            "pair": gym.Tuple((gym.Discrete(2), gym.Dict({"deep": gym.Box(-1, 1, (1,), np.float32)}))),
            "words": gym.Text(6, min_length=0, charset=CHARSET),
            "items": gym.Sequence(gym.Dict({"name": gym.Text(3, charset="xy"), "where": gym.Box(-1, 1, (2,))})),
            "stack": gym.Sequence(gym.Box(0, 9, (2,), np.int8), stack=True),
            "deeper": gym.Sequence(gym.Sequence(gym.Discrete(4, start=1))),
            "graph": gym.Graph(gym.Box(-1, 1, (2,), np.float32), gym.Discrete(3)),
            "either": gym.OneOf((gym.Box(-1, 1, (2,), np.float64), gym.Text(2, charset="z"), gym.Discrete(2))),
        }
    )


def acting() -> gym.Dict:
    """An action of every kind that a policy can choose."""
    return gym.Dict(
        {
            "turn": gym.Discrete(3, start=-1),
            "dials": gym.MultiDiscrete(np.array([[2, 3]]), start=np.array([[5, 0]]), dtype="int32"),
            "lamps": gym.MultiBinary(3),
            "push": gym.Tuple((gym.Box(-0.5, 0.5, (2,), np.float32), gym.Box(-3, 3, (), np.int16))),
            "either": gym.OneOf((gym.Discrete(4, start=2), gym.Box(0, 1, (2,), np.float64))),
        }
    )


class Everything(gymnasium.Env[Any, Any]):
    """Shows random values of every kind; the reward is a number worked out from the action, whatever part changes.

    Episodes last 3 to 7 steps, and every other one is truncated. It never reuses an array, and refuses an action that
    is not in its space.

    Args:
        fails_at: step of an episode that raises, and tells the action's number; 0: none.
    """

    def __init__(self, env_index: int = 0, *, fails_at: int = 0) -> None:
        self._fails_at, self._step = fails_at, 0
        self.observation_space, self.action_space = everything(), acting()
        self._index, self._left, self._truncates = env_index, 0, False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        self._left, self._step = int(self.np_random.integers(3, 8)), 0
        self._truncates = bool(self.np_random.integers(2))
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        self._left, self._step = self._left - 1, self._step + 1
        if self._step == self._fails_at:
            raise RuntimeError(f"worth {worth(action)}")
        over = self._left == 0
        ends = over and not self._truncates, over and self._truncates
        return self.observation_space.sample(), worth(action), *ends, {}


def worth(action: Any) -> float:
    """A number that another action would hardly have."""
    if isinstance(action, Mapping):
        return sum((place + 1) * worth(action[key]) for place, key in enumerate(sorted(action)))
    if isinstance(action, tuple):
        return sum((place + 2) * worth(part) for place, part in enumerate(action))
    flat = np.ravel(action).astype(np.float64)
    return float(np.float32(flat @ np.arange(1, len(flat) + 1)))


class Chooses(ScriptedPolicy):
    """A user's policy for any action space: draws every leaf from its noise, Boxes a little beyond their bounds.

    It tells how long the texts and sequences were that it saw.
    """

    outputs: Mapping[str, OutputSpec] = {"seen": OutputSpec("float32")}

    def __init__(self, observation: Space, action: Space) -> None:
        self._leaves = leaves(action, ACTION)
        self._ragged = [leaf.name for leaf in leaves(observation) if leaf.ragged]
        self.noise = Noise("uniform", sum(leaf.space.size for leaf in self._leaves))

    def act(
        self, observations: Mapping[str, Array], state: Arrays, noise: Array, *, deterministic: bool = False
    ) -> Acted:
        actions, at = Arrays(), 0
        for leaf in self._leaves:
            part = noise[:, at : at + leaf.space.size].reshape(len(noise), *leaf.space.shape)
            actions[leaf.name] = chosen(leaf.space, part).astype(leaf.chosen_dtype)
            at += leaf.space.size
        seen = [sum(len(observations[name][row]) for name in self._ragged) for row in range(len(noise))]
        return Acted(actions, {"seen": np.array(seen, np.float32)})


def chosen(space: LeafSpace, uniform: Array) -> Array:
    """An action of one leaf from numbers on [0, 1)."""
    limits = index_range(space, chosen=True)
    if limits is not None:
        return np.floor(uniform * (limits[1] + 1)).astype(np.int64)
    assert isinstance(space, Box)
    low, high = space.bounds()
    return np.asarray(low + (high - low) * (1.2 * uniform - 0.1))


def leaf_values(space: Space, value: Any) -> dict[str, Any]:
    """A whole value by leaf, as it is recorded."""
    return {leaf.name: to_cell(leaf, leaf.pick(value)) for leaf in leaves(space)}


def same(one: Any, other: Any) -> bool:
    """Two recorded values, cells or not, type for type."""
    if isinstance(one, tuple):
        return isinstance(other, tuple) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, str):
        return isinstance(other, str) and one == other
    return np.asarray(one).dtype == np.asarray(other).dtype and np.array_equal(one, other)


def assert_same(one: Segments, other: Segments) -> None:
    """The same arrays, bit for bit: -0 is not 0 here; cells are compared one by one, type for type."""
    assert one.arrays.keys() == other.arrays.keys()
    for name, array in one.arrays.items():
        theirs = other.arrays[name]
        assert (array.dtype, array.shape) == (theirs.dtype, theirs.shape), name
        if array.dtype == object:
            assert all(map(same, array.ravel(), theirs.ravel())), name
        else:
            assert array.tobytes() == theirs.tobytes(), name


def shown(layout: Layout, space: Any, rows: int, seed: int) -> Segments:
    """Segments whose observations are samples of a Gymnasium space; some of them are final."""
    space.seed(seed)
    rng, steps = np.random.default_rng(seed), layout.steps
    segments = Segments.empty(layout, rows)
    arrays = segments.arrays
    arrays["length"][:] = rng.integers(0, steps + 1, rows)
    arrays["env"][:] = np.arange(rows)
    for row, length in enumerate(arrays["length"]):
        for step in range(length + 1):
            for name, value in leaf_values(layout.observation, space.sample()).items():
                arrays[name][row, step] = value
    arrays["truncated"][...] = segments.valid() & (rng.random((rows, steps)) < 0.4)
    arrays["episode_length"][arrays["truncated"]] = 3
    arrays["episode_return"][arrays["truncated"]] = 1.5
    ends = np.argwhere(arrays["truncated"]).tolist()
    segments.set_finals([(row, step, leaf_values(layout.observation, space.sample())) for row, step in ends])
    return segments
