"""A reel: one batch of segments while it is being played.

It never steps or acts; the player does, and writes here.
"""

import math
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from heddle.layout import Layout, Segments, has_blanks
from heddle.plane import Slot
from heddle.policies.base import Acted
from heddle.producers.contract import BadAnswer
from heddle.producers.kinds import INTEGERS, array_kind, demand_integer
from heddle.producers.pieces import Piece
from heddle.spaces import Discrete, Leaf, index_range
from heddle.spaces.cells import blank_cell, fill, to_cell

Part = tuple[tuple[Any, ...] | Leaf, NDArray[Any], tuple[int, ...] | None]
"""Keys within an observation, the array [T + 1, ...] it goes to, and the shape it must have (None: any number).

In place of the keys a leaf whose value is not found by keys alone.
"""


class Reel:
    """Arrays of one batch with quick ways into them. Made once and played many times.

    Attributes:
        rewards: [n, T] float64, as given; float32 in the segments. reward_rows, flat_rewards: the same, one view an
            environment, and one of all.
        leaves: of the observation space, walked once.
        parts: for each environment where the parts of its observations go.
        plain_shape: of an observation that is one Box array, which the player stores itself; None for all others.
        finals: (env, step, final observation by leaf) of truncated episodes.
        ended: (env, step) of episodes that are counted by the player, rising in step.
        lengths: steps played, per environment.
        slot: the memory, shared or sent from, in which the arrays lie while this batch is played; None for our own.

    Args:
        shared: arrays that lie elsewhere, by name.
    """

    def __init__(
        self, layout: Layout, n: int, agents: int = 1, *, shared: Mapping[str, NDArray[Any]] | None = None
    ) -> None:
        self.layout, self.arrays = layout, Segments.empty(layout, n).arrays | dict(shared or {})
        self.slot: Slot | Piece | None = None
        self._agents = agents
        self.rewards = np.zeros((n, layout.steps), np.float64)
        self.flat_rewards = self.rewards.reshape(-1)
        self.reward_rows: list[Any] = [row.data for row in self.rewards]  # quicker than numpy to write one number to
        self.leaves = layout.observation_leaves
        self.observations = [(leaf.name, self.arrays[leaf.name]) for leaf in self.leaves]
        self.flat_observations = [(name, _in_line(array)) for name, array in self.observations]
        self.outputs = _prefixed(layout, self.arrays, "out.")
        self.states = _prefixed(layout, self.arrays, "state.")
        self.infos = _prefixed(layout, self.arrays, "info.")
        self.actions = [(leaf.name, self.arrays[leaf.name]) for leaf in layout.action_leaves]
        self._recorded = [_Recorded("actions", self.actions), _Recorded("outputs", self.outputs)]
        self.parts: list[list[Part]] = [
            [part_of(leaf, self.arrays[leaf.name][env]) for leaf in layout.observation_leaves] for env in range(n)
        ]
        self._marks = [
            (self.arrays[name], np.nan if name == "episode_return" else 0)
            for name in ("terminated", "truncated", "episode_return", "episode_length")
        ]
        self.lengths = [0] * n
        self._limits = {leaf.name: index_range(leaf.space, chosen=False) for leaf in self.leaves if not leaf.ragged}
        self._name_rows()
        self.plain_shape = plain_shape(layout.observation_leaves)
        self.finals: list[tuple[int, int, dict[str, NDArray[Any]]]] = []
        self.ended: list[tuple[int, int]] = []

    def rewind(self) -> None:
        """Make ready for the next batch: only what is not written at every step needs clearing."""
        if self.slot is not None:  # another shard's batch may have lain there
            self._name_rows()
        for array, blank in self._marks:
            array.fill(blank)
        for _, array in self.infos:
            array.fill(np.nan)
        self.finals.clear()
        self.ended.clear()

    def _name_rows(self) -> None:
        self.arrays["env"][:], self.arrays["agent"][:] = np.divmod(np.arange(len(self.lengths)), self._agents)

    def store(self, env: int, row: int, observation: Any) -> None:
        """Copy `observation` to row `row` of environment `env`.

        Raises:
            BadAnswer: a leaf is missing or has another shape.
        """
        put(self.parts[env], row, observation)

    def record(self, where: tuple[Any, Any] | NDArray[np.intp], acted: Acted, rows: int | None = None) -> None:
        """Copy what the policy answered to `where`, indexes of environments and steps.

        Args:
            where: or, which is quicker for many, one number for each: that of the environment times T, and the step.
            rows: of how many environments it is; all of them when not given.

        Raises:
            BadAnswer: an action or output is missing, or has another shape or kind than was declared.
        """
        count = len(self.lengths) if rows is None else rows
        for recorded in self._recorded:
            recorded.write(acted, where, count)

    def hold(self, env: int, row: int) -> None:
        """Repeat row `row` to the end: what a policy is shown of an environment that no longer plays."""
        for _, array in self.observations:
            if array.dtype == object:
                fill(array[env, row + 1 :], array[env, row])
            else:
                array[env, row + 1 :] = array[env, row]

    def keep_final(self, env: int, step: int, final: dict[str, NDArray[Any]] | None = None) -> None:
        """Set aside the true last observation of a truncated episode.

        Args:
            final: by leaf, shaped as the leaf; None: the observation that stands behind `step`.

        Raises:
            BadAnswer: it holds NaN or infinity, or an integer outside its space.
        """
        if final is None:
            final = {name: copy(array[env, step + 1]) for name, array in self.observations}
        for name, value in final.items():
            if isinstance(value, np.ndarray | np.generic) and value.dtype.kind == "f" and not np.isfinite(value).all():
                raise BadAnswer(f"the last observation of a truncated episode, {name}, is not a finite number")
            if (limits := self._limits.get(name)) and ((value < limits[0]) | (value > limits[1])).any():
                raise BadAnswer(f"the last observation of a truncated episode, {name} = {value}, is outside its space")
        self.finals.append((env, step, final))

    def finish(self, version: int) -> Segments:
        """The segments as they are encoded: `lengths` must be set; whatever lies beyond is blanked."""
        arrays, steps = self.arrays, self.layout.steps
        arrays["reward"][...] = self.rewards
        arrays["length"][:] = self.lengths
        arrays["version"][:] = version
        for env, length in enumerate(self.lengths):
            if length < steps:
                self._blank(env, length)
        segments = Segments(self.layout, len(self.lengths), dict(self.arrays), owner=self)  # no cycle: freed at once
        if self.finals:
            segments.set_finals(self.finals)
        return segments

    def _blank(self, env: int, length: int) -> None:
        for column in self.layout.columns:
            if column.per != "segment":
                begin = length if column.per == "step" else length + 1
                if column.leaf is not None:
                    fill(self.arrays[column.name][env, begin:], blank_cell(column.leaf))
                else:
                    self.arrays[column.name][env, begin:] = np.nan if has_blanks(column) else 0


def moved_only(segments: Segments) -> Segments:
    """`segments` without the rows of no steps; where there are none, themselves. They own what those owned."""
    lengths = segments.arrays["length"]
    if lengths.all():
        return segments
    moved = segments.select(np.flatnonzero(lengths))
    moved.owner, segments.owner = segments.owner, None
    return moved


def check_array(name: str, given: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    """numpy would silently stretch a wrong shape over the right one, and cut fractions off. Raises BadAnswer."""
    casting: Literal["safe", "same_kind"] = "safe" if dtype.kind in "biu" else "same_kind"  # integers would wrap
    if isinstance(given, np.ndarray) and given.shape == shape and np.can_cast(given.dtype, dtype, casting):
        return
    shown = "missing" if given is None else f"{getattr(given, 'dtype', type(given).__name__)}{list(np.shape(given))}"
    raise BadAnswer(f"{name} is {shown}, expected {dtype}{list(shape)}")


class _Recorded:
    """Where one kind of what a policy answers goes.

    Args:
        what: kind, as `Acted` names it.
        parts: by name, [n, T, ...].
    """

    def __init__(self, what: str, parts: Sequence[tuple[str, NDArray[Any]]]) -> None:
        self._what = what
        self._parts = [(name, array, _in_line(array), array.shape[2:]) for name, array in parts]

    def write(self, acted: Acted, where: Any, rows: int) -> None:
        """As `Reel.record`."""
        given: Mapping[str, Any] = getattr(acted, self._what)
        is_flat = type(where) is np.ndarray
        for name, array, flat, shape in self._parts:
            value = given.get(name)
            if type(value) is not np.ndarray or value.shape != (rows, *shape) or value.dtype != array.dtype:
                check_array(f"{self._what}[{name!r}]", value, array.dtype, (rows, *shape))
            if is_flat:
                flat[where] = value
            else:
                array[where] = value


def _in_line(array: NDArray[Any]) -> NDArray[Any]:
    """The same memory, its first two dimensions as one."""
    return array.reshape(math.prod(array.shape[:2]), *array.shape[2:])  # -1 is undefined where a value has no numbers


def _prefixed(layout: Layout, arrays: dict[str, NDArray[Any]], prefix: str) -> list[tuple[str, NDArray[Any]]]:
    names = [column.name for column in layout.columns if column.name.startswith(prefix)]
    return [(name.removeprefix(prefix), arrays[name]) for name in names]


def part_of(leaf: Leaf, array: NDArray[Any]) -> Part:
    """Where `leaf` of an observation goes, when `array` [T + 1, ...] holds its rows."""
    return leaf.path if leaf.direct else leaf, array, None if isinstance(leaf.space, Discrete) else leaf.space.shape


def plain_shape(leaves: Sequence[Leaf]) -> tuple[int, ...] | None:
    """Shape of an observation that is one array and nothing else; None for all others."""
    first = leaves[0]
    is_plain = first.direct and not first.path and not isinstance(first.space, Discrete)
    return first.space.shape if is_plain else None


def _cell(leaf: Leaf, observation: Any) -> Any:
    try:
        return to_cell(leaf, leaf.pick(observation))
    except ValueError as error:
        raise BadAnswer(f"the observation {error}") from error
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise BadAnswer(f"the observation has no {leaf.name}: {type(error).__name__}: {error}") from error


def put(parts: Sequence[Part], row: int, observation: Any) -> None:
    """Copy the parts of an observation to row `row` of their arrays. Raises BadAnswer as `Reel.store` does."""
    for path, array, shape in parts:
        value = observation
        if isinstance(path, Leaf):
            array[row] = _cell(path, observation)
            continue
        try:
            for key in path:
                value = value[key]
        except (KeyError, TypeError, IndexError) as error:
            raise BadAnswer(f"the observation has no {'.'.join(map(str, path))}") from error
        if shape is None:
            if type(value) not in INTEGERS:
                demand_integer(value, _name(path))
        elif type(value) is not np.ndarray or value.dtype is not array.dtype or value.shape != shape:
            array_kind(value, shape, array.dtype, _name(path))
        array[row] = value


def _name(path: Sequence[Any]) -> str:
    return f"the observation's {'.'.join(map(str, path))}" if path else "the observation"
