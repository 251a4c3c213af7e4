"""Layout and Segments: which arrays a batch holds, their shapes and dtypes, and the arrays themselves.

It never encodes and never plays: `batch.py` turns Segments into bytes and back, the player fills them.

Arrays of `Segments.arrays`; R rows (one segment each), T steps, K kept-apart final observations:

    obs leaves        [R, T+1, ...]  as the environment returned them; the last valid row is the bootstrap observation;
                                     of objects, `spaces.cells`, where lengths differ from step to step
    action leaves     [R, T, ...]    as the policy chose: integers counted from 0, Box before it is clipped
    reward            [R, T]         float32, raw
    terminated, truncated [R, T]     bool; both true means terminated
    out.<name>        [R, T, ...]    what the policy gave per step: log_prob, value ...
    info.<key>        [R, T]         float64, NaN where the environment gave none
    episode_return    [R, T]         float64, NaN unless an episode ended at that step
    episode_length    [R, T]         int32, 0 unless an episode ended at that step
    state.<name>      [R, ...]       recurrent state before the first step
    length            [R]            int32, valid steps, 0..T; all beyond is zero (NaN in info and episode_return, no
                                     elements in sequences and texts)
    env, agent        [R]            int32, environment's index within the shard, and agent's within the environment
    version           [R]            int64, policy version that played the segment
    final_row, final_step [K]        int32, in that order: the steps that were truncated and not terminated
    final.<obs leaf>  [K, ...]       their true last observations
"""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from heddle.spaces import ACTION, OBSERVATION, Leaf, Space, Text, leaves
from heddle.spaces.cells import blank_cell, boxed, fill
from heddle.stacks import Stack

if TYPE_CHECKING:
    from heddle.policies.base import Policy
    from heddle.spec.models import Rollout

Per: TypeAlias = Literal["step", "step+1", "segment"]

_GUESS = 16


class ColumnLike(Protocol):
    """What describes one array of a policy: `policies.OutputSpec` is one."""

    @property
    def dtype(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    Attributes:
        name: key in `Segments.arrays`.
        dtype: numpy name.
        shape: of one step's (or one segment's) value.
        per: how many such values a segment holds: T ("step"), T + 1 ("step+1") or one ("segment").
        leaf: where the values are cells that differ in length; dtype is then "object".
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    per: Per
    leaf: Leaf | None = None

    def row_shape(self, steps: int) -> tuple[int, ...]:
        """Shape of this column's part of one segment."""
        leading: dict[Per, tuple[int, ...]] = {"step": (steps,), "step+1": (steps + 1,), "segment": ()}
        return leading[self.per] + self.shape

    def row_bytes(self, steps: int) -> int:
        """Bytes of this column's part of one segment; where lengths differ, as if there were 16 elements a step."""
        leaf = self.leaf
        if leaf is None:
            return math.prod(self.row_shape(steps)) * np.dtype(self.dtype).itemsize
        is_text = isinstance(leaf.space, Text)
        size = min(leaf.space.size, _GUESS) if is_text else leaf.space.size * np.dtype(leaf.space.dtype).itemsize
        return math.prod(self.row_shape(steps)) * size * (_GUESS if leaf.depth else 1)


@dataclass(frozen=True, slots=True)
class Layout:
    """Every column of an experiment's batches. Hashable; equal layouts have equal bytes.

    Attributes:
        steps: T, the most steps of a segment.
        columns: in the order in which they are written.
        observation, action: the spaces.
    """

    steps: int
    columns: tuple[Column, ...]
    observation: Space
    action: Space

    @property
    def segment_bytes(self) -> int:
        """Bytes of one segment's fixed columns, uncompressed; final observations and framing come on top."""
        return _segment_bytes(self)

    def bytes_of(self, rows: int, finals: int) -> int:
        """Bytes of the arrays of so many segments and final observations."""
        observation = sum(leaf.space.size * np.dtype(leaf.space.dtype).itemsize for leaf in self.observation_leaves)
        return self.segment_bytes * rows + observation * finals

    @property
    def observation_leaves(self) -> list[Leaf]:
        """Leaves of the observation space."""
        return leaves(self.observation, OBSERVATION)

    @property
    def action_leaves(self) -> list[Leaf]:
        """Leaves of the action space: one, "action", unless that is a dict or tuple."""
        return leaves(self.action, ACTION)

    def column(self, name: str) -> Column:
        """The column of that name. Raises KeyError."""
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)


@functools.lru_cache(maxsize=64)
def _segment_bytes(layout: Layout) -> int:
    return sum(column.row_bytes(layout.steps) for column in layout.columns)


def make_layout(
    observation: Space,
    action: Space,
    *,
    steps: int,
    outputs: Mapping[str, ColumnLike | tuple[str, tuple[int, ...]]],
    state: Mapping[str, ColumnLike | tuple[str, tuple[int, ...]]] | None = None,
    info_keys: Sequence[str] = (),
) -> Layout:
    """The layout of an experiment's batches.

    Args:
        steps: T, at least 1.
        outputs: what the policy gives per step, as objects with dtype and shape or as (dtype, shape).
        state: the policy's recurrent state of one environment, likewise.
        info_keys: numeric keys of the environment's info to record.

    Raises:
        ValueError: steps below 1.
    """
    if steps < 1:
        raise ValueError(f"steps = {steps} must be at least 1")
    columns = [_observed(leaf) for leaf in leaves(observation)]
    columns += [Column(leaf.name, leaf.chosen_dtype, leaf.space.shape, "step") for leaf in leaves(action, ACTION)]
    columns.append(Column("reward", "float32", (), "step"))
    columns += [Column(name, "bool", (), "step") for name in ("terminated", "truncated")]
    columns += [Column(f"out.{name}", *_described(outputs[name]), "step") for name in sorted(outputs)]
    columns += [Column(f"info.{key}", "float64", (), "step") for key in sorted(set(info_keys))]
    columns += [Column("episode_return", "float64", (), "step"), Column("episode_length", "int32", (), "step")]
    columns += [Column(f"state.{name}", *_described((state or {})[name]), "segment") for name in sorted(state or {})]
    columns += [Column(name, "int32", (), "segment") for name in ("length", "env", "agent")]
    columns.append(Column("version", "int64", (), "segment"))
    return Layout(steps, tuple(columns), observation, action)


def rollout_layout(observation: Space, action: Space, policy: "Policy", rollout: "Rollout") -> Layout:
    """The layout of what `policy` plays in these spaces, with T and the keys of info that [rollout] of a spec names."""
    return make_layout(
        observation,
        action,
        steps=rollout.steps,
        outputs=policy.outputs,
        state=policy.state,
        info_keys=rollout.info_keys,
    )


@dataclass(slots=True)
class Segments:
    """The arrays of one batch: see the table at the top of this module.

    Attributes:
        layout: which arrays there are.
        rows: R.
        arrays: by name, with the shapes and dtypes of that table.
        owner: whose memory the arrays are, while it may want them back.
        stacks: observation leaves, by name, that were not put together yet: `arrays` lacks them. See `whole`.
    """

    layout: Layout
    rows: int
    arrays: dict[str, NDArray[Any]]
    owner: object | None = field(default=None, repr=False, compare=False)
    stacks: dict[str, Stack] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def empty(cls, layout: Layout, rows: int) -> "Segments":
        """Arrays of zeros (NaN in info and episode_return) for `rows` segments, without final observations."""
        arrays = {column.name: _blank(column, layout.steps, rows) for column in layout.columns}
        arrays |= no_finals(layout)
        return cls(layout, rows, arrays)

    @property
    def num_steps(self) -> int:
        """Valid steps of all rows."""
        return int(self.arrays["length"].sum())

    @property
    def num_finals(self) -> int:
        """K, the final observations kept apart."""
        return len(self.arrays["final_row"])

    @property
    def version_min(self) -> int:
        """Oldest policy version in here; 0 without rows."""
        return int(self.arrays["version"].min()) if self.rows else 0

    @property
    def version_max(self) -> int:
        """Newest policy version in here; 0 without rows."""
        return int(self.arrays["version"].max()) if self.rows else 0

    def valid(self) -> NDArray[np.bool_]:
        """[R, T] bool: which steps count."""
        valid: NDArray[np.bool_] = np.arange(self.layout.steps) < self.arrays["length"][:, None]
        return valid

    def whole(self) -> "Segments":
        """The same with all observations in `arrays`; itself where they are."""
        if not self.stacks:
            return self
        made = {name: stack.observations() for name, stack in self.stacks.items()}
        return Segments(self.layout, self.rows, self.arrays | made, self.owner)

    def set_finals(self, finals: Sequence[tuple[int, int, Mapping[str, Any]]]) -> None:
        """Store the final observations of truncated episodes, given as (row, step, {leaf: array})."""
        self.arrays |= no_finals(self.layout)
        if not finals:
            return
        ordered = sorted(finals, key=lambda final: (final[0], final[1]))
        self.arrays["final_row"] = np.array([row for row, _, _ in ordered], np.int32)
        self.arrays["final_step"] = np.array([step for _, step, _ in ordered], np.int32)
        for leaf in self.layout.observation_leaves:
            found = [values[leaf.name] for _, _, values in ordered]
            stacked = boxed(found) if leaf.ragged else np.stack([np.asarray(one, leaf.space.dtype) for one in found])
            self.arrays[f"final.{leaf.name}"] = stacked

    def select(self, rows: NDArray[np.intp]) -> "Segments":
        """A copy with only these rows ([k] indexes, rising), final observations following their rows."""
        arrays = {column.name: self.arrays[column.name][rows] for column in self.layout.columns}
        place = np.full(self.rows, -1, np.int32)
        place[rows] = np.arange(len(rows), dtype=np.int32)
        kept = np.flatnonzero(place[self.arrays["final_row"]] >= 0)
        for name in no_finals(self.layout):
            arrays[name] = self.arrays[name][kept]
        arrays["final_row"] = place[arrays["final_row"]]
        return Segments(self.layout, len(rows), arrays)


def no_finals(layout: Layout) -> dict[str, NDArray[Any]]:
    """The final_* arrays with K = 0."""
    arrays: dict[str, NDArray[Any]] = {name: np.zeros(0, np.int32) for name in ("final_row", "final_step")}
    for leaf in layout.observation_leaves:
        shape = () if leaf.ragged else leaf.space.shape
        arrays[f"final.{leaf.name}"] = np.zeros((0, *shape), object if leaf.ragged else leaf.space.dtype)
    return arrays


def has_blanks(column: Column) -> bool:
    """True when NaN, not 0, stands for "nothing here" in this column."""
    return column.name == "episode_return" or column.name.startswith("info.")


def _blank(column: Column, steps: int, rows: int) -> NDArray[Any]:
    shape = (rows, *column.row_shape(steps))
    if column.leaf is not None:
        cells = np.empty(shape, object)
        fill(cells, blank_cell(column.leaf))
        return cells
    return np.full(shape, np.nan, column.dtype) if has_blanks(column) else np.zeros(shape, column.dtype)


def _observed(leaf: Leaf) -> Column:
    if leaf.ragged:
        return Column(leaf.name, "object", (), "step+1", leaf)
    return Column(leaf.name, leaf.space.dtype, leaf.space.shape, "step+1")


def _described(described: ColumnLike | tuple[str, tuple[int, ...]]) -> tuple[str, tuple[int, ...]]:
    dtype, shape = described if isinstance(described, tuple) else (described.dtype, described.shape)
    return np.dtype(dtype).name, tuple(int(size) for size in shape)
