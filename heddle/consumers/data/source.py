"""The source of an offline run: a recording, read as train batches in an order that is all of it decided by the seed.

It never changes the recording and holds a part of it at a time. Batch number u is a function of the seed, u and the
files alone: a trainer that was killed goes on with the very batch that it would have been given.

The files form groups of bounded size. One pass goes over every segment of every group once: the groups in random
order, within each the segments in random order, the last batches of a group made as large as the others.
"""

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from heddle.consumers.data.likeness import unlike
from heddle.consumers.data.schema import DataColumn, final_of, numbers_of, piece_starts
from heddle.consumers.data.store import Manifest, data_files, read_manifest, read_table
from heddle.errors import DataError
from heddle.layout import Column, Layout, Segments, make_layout
from heddle.policies.base import Policy
from heddle.spaces import ACTION, OBSERVATION, Space, from_json

WINDOW_BYTES = 256 * 2**20
"""What is held of the recording at a time; within it segments are shuffled."""


@dataclass(frozen=True, slots=True)
class _Group:
    """Files that are read together.

    Attributes:
        files: of it.
        starts, lengths: rows at which its segments begin, and how many steps they have.
        batches: how many it makes.
    """

    files: tuple[Path, ...]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    batches: int


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A group in memory: its columns [rows, ...], final observations with where they are, and piece boundaries."""

    arrays: dict[str, NDArray[Any]]
    finals: dict[str, NDArray[Any]]
    has_final: NDArray[np.bool_]
    piece_end: NDArray[np.bool_]


class DataSource:
    """Train batches of a recording.

    Attributes:
        layout: of the batches: the recorded outputs of the policy that the spec's policy has, too, and info.
        steps: in one pass.
        batches_per_pass: so many batches go over it once.
        fingerprint: of its files; another one gives other batches.

    Args:
        folder: of the recording.
        policy: that shall learn; its outputs and state are part of the layout.
        segment_steps: T.
        batch_steps: of one batch, as many full segments as these hold.
        seed: of the order.
        min_return: only episodes whose recorded rewards add up to so much; None takes all.

    Raises:
        DataError: it cannot be read, holds nothing, or was recorded in other spaces.
    """

    def __init__(
        self,
        folder: Path,
        observation: Space,
        action: Space,
        policy: Policy,
        *,
        segment_steps: int,
        batch_steps: int,
        seed: int,
        min_return: float | None = None,
        window_bytes: int = WINDOW_BYTES,
    ) -> None:
        manifest = read_manifest(folder)
        self._columns = {column.name: column for column in manifest.columns}
        self.layout = layout_of(manifest, observation, action, policy, steps=segment_steps)
        self._seed = seed
        self._rows = max(1, batch_steps // segment_steps)
        chosen = None if min_return is None else _good_episodes(folder, manifest, min_return)
        self._groups = _groups(folder, manifest, (segment_steps, self._rows), window_bytes, chosen)
        self.batches_per_pass = sum(group.batches for group in self._groups)
        self.steps = sum(int(group.lengths.sum()) for group in self._groups)
        if not self.batches_per_pass:
            least = "" if min_return is None else f" of episodes with a return of at least {min_return:g}"
            raise DataError(f"{folder} holds no steps{least} yet")
        told = json.dumps([[file["name"], file["rows"], file["bytes"]] for file in manifest.files])
        self.fingerprint = hashlib.sha256(told.encode()).hexdigest()[:16]
        self._held: tuple[int, _Loaded] | None = None

    def batch(self, number: int) -> Segments:
        """The batch of update `number`, from 0. Raises DataError."""
        turn, within = divmod(number, self.batches_per_pass)
        for index in self._generator(turn).permutation(len(self._groups)):
            group = self._groups[int(index)]
            if within < group.batches:
                break
            within -= group.batches
        order = self._generator(turn, int(index) + 1).permutation(len(group.starts))
        chosen = np.array_split(order, group.batches)[within]
        return self._segments(self._load(int(index)), group.starts[chosen], group.lengths[chosen])

    # ---- inside

    def _generator(self, *key: int) -> np.random.Generator:
        return np.random.Generator(np.random.PCG64(np.random.SeedSequence(self._seed, spawn_key=(7, *key))))

    def _load(self, index: int) -> _Loaded:
        if self._held is None or self._held[0] != index:
            self._held = None  # let go before the next one comes
            self._held = (index, _read_group(self._groups[index], self.layout, self._columns))
        return self._held[1]

    def _segments(self, held: _Loaded, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> Segments:
        steps, rows = self.layout.steps, len(starts)
        made = Segments.empty(self.layout, rows)
        at = np.minimum(starts[:, None] + np.arange(steps), (starts + lengths - 1)[:, None])
        valid = np.arange(steps) < lengths[:, None]
        for column in self.layout.columns:
            target = made.arrays[column.name]
            if column.name in held.arrays and column.per == "step":
                target[valid] = held.arrays[column.name][at][valid]
            elif column.per == "step+1":
                target[:, :steps][valid] = held.arrays[column.name][at][valid]
                target[np.arange(rows), lengths] = _following(held, column.name, starts + lengths - 1)
        made.arrays["length"][:] = lengths
        made.arrays["version"][:] = held.arrays["version"][starts]
        made.arrays["env"][:] = np.arange(rows)  # every segment stands alone
        made.set_finals(self._finals(held, starts, lengths))
        return made

    def _finals(self, held: _Loaded, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> list[Any]:
        """(row, step, observation by leaf) of segments whose last step was truncated and not terminated."""
        last = starts + lengths - 1
        over = held.arrays["truncated"][last] & ~held.arrays["terminated"][last]
        return [
            (int(row), int(lengths[row]) - 1, {name: values[last[row]] for name, values in held.finals.items()})
            for row in np.flatnonzero(over)
        ]


def layout_of(manifest: Manifest, observation: Space, action: Space, policy: Policy, *, steps: int) -> Layout:
    """The layout of batches from a recording, for a policy that shall learn from them.

    Raises:
        DataError: observations or actions were recorded in another form than the environment's, or in another space,
            whose numbers mean something else.
    """
    found = {column.name: column for column in manifest.columns}

    def has(name: str, dtype: str, shape: tuple[int, ...]) -> bool:
        column = found.get(name)
        return column is not None and (column.dtype, column.shape) == (dtype, shape)

    outputs = {
        name: output for name, output in policy.outputs.items() if has(f"out.{name}", output.dtype, output.shape)
    }
    info = [name.removeprefix("info.") for name in found if name.startswith("info.")]
    layout = make_layout(observation, action, steps=steps, outputs=outputs, state=policy.state, info_keys=info)
    wanted = [*layout.observation_leaves, *layout.action_leaves]
    for name in [leaf.name for leaf in wanted]:
        column = layout.column(name)
        if not has(name, column.dtype, column.shape):
            raise DataError(f"the recording has {name} as {_shown(found.get(name))}, here it is {_shown(column)}")
    for key, here, root in (("observation", observation, OBSERVATION), ("action", action, ACTION)):
        if odd := unlike(from_json(manifest.spaces[key]), here, root):
            raise DataError(f"{odd}: it was recorded in another environment, or another version of it")
    return layout


def _shown(column: DataColumn | Column | None) -> str:
    return "nothing" if column is None else f"{column.dtype}{list(column.shape)}"


def _good_episodes(folder: Path, manifest: Manifest, min_return: float) -> NDArray[np.bool_]:
    """Of each episode by number, whether its rewards add up to `min_return`."""
    returns = np.zeros(manifest.state.episode, np.float64)
    for path in data_files(folder, manifest):
        table = read_table(path, ["episode", "reward"])
        returns += np.bincount(table["episode"].to_numpy(), table["reward"].to_numpy(), minlength=len(returns))
    good: NDArray[np.bool_] = returns >= min_return
    return good


def _groups(
    folder: Path,
    manifest: Manifest,
    shape: tuple[int, int],
    window_bytes: int,
    chosen: NDArray[np.bool_] | None,
) -> list[_Group]:
    """The files in groups; `shape`: steps of a segment and segments of a batch; `chosen`: which episodes."""
    row_bytes = sum(math.prod(column.shape) * np.dtype(column.dtype).itemsize for column in manifest.columns)
    groups: list[_Group] = []
    files: list[Path] = []
    held = 0
    for path, told in zip(data_files(folder, manifest), manifest.files, strict=True):
        if files and held + int(told["rows"]) * row_bytes > window_bytes:
            groups.append(_group(files, *shape, chosen))
            files, held = [], 0
        files.append(path)
        held += int(told["rows"]) * row_bytes
    if files:
        groups.append(_group(files, *shape, chosen))
    return [group for group in groups if group.batches]


def _group(files: Sequence[Path], steps: int, rows: int, chosen: NDArray[np.bool_] | None) -> _Group:
    """The segments of the pieces in `files`: T steps each, the last of a piece what is left."""
    starts: list[int] = []
    lengths: list[int] = []
    offset = 0
    for path in files:
        table = read_table(path, ["episode", "end"])
        episode, ends = table["episode"].to_numpy(), table["end"].to_pylist()
        pieces = piece_starts(episode, ends)
        for first, last in zip(pieces, [*pieces[1:], len(episode)], strict=True):
            if chosen is not None and not chosen[episode[first]]:
                continue
            cuts = range(first, last, steps)
            starts += [offset + cut for cut in cuts]
            lengths += [min(steps, last - cut) for cut in cuts]
        offset += len(episode)
    batches = math.ceil(len(starts) / rows)
    return _Group(tuple(files), np.array(starts, np.int64), np.array(lengths, np.int64), batches)


def _read_group(group: _Group, layout: Layout, columns: dict[str, DataColumn]) -> _Loaded:
    table = pa.concat_tables([read_table(path) for path in group.files]).combine_chunks()
    skipped = ("episode_return", "episode_length")  # of whoever was recorded, not of who learns
    wanted = [c.name for c in layout.columns if c.name in columns and c.name not in skipped]
    arrays = {name: numbers_of(table, columns[name]) for name in wanted}
    arrays["version"] = table["version"].to_numpy()
    finals: dict[str, NDArray[Any]] = {}
    has_final = np.ones(table.num_rows, np.bool_)
    for leaf in layout.observation_leaves:
        finals[leaf.name], valid = final_of(table, columns[leaf.name])
        has_final &= valid
    piece_end = table["end"].is_valid().to_numpy()
    return _Loaded(arrays, finals, has_final, np.asarray(piece_end, np.bool_))


def _following(held: _Loaded, name: str, last: NDArray[np.int64]) -> NDArray[Any]:
    """The observation after each of these rows; after a termination, where none is known, the one before it."""
    values = held.arrays[name]
    following = np.where(held.piece_end[last], last, np.minimum(last + 1, len(values) - 1))
    found: NDArray[Any] = values[following].copy()
    known = held.has_final[last]
    found[known] = held.finals[name][last[known]]
    return found
