"""The table of recorded experience: one row a step, and how pieces of episodes become rows and rows become arrays.

It never touches a file. Columns of more than one number are lists of fixed size, flat; `columns` of the manifest has
their shapes. Every reader of Parquet opens them as they are.

    episode, step       int64, int32: which step of which episode; the rows of an episode lie together, in order
    shard, epoch, env, agent, kind    where it was played, and whether to train or to evaluate
    version             int64, policy version that chose the action
    <obs leaf>          what the policy saw; action, reward, terminated, truncated: as in a batch
    out.<name>, info.<key>, episode_return, episode_length    likewise
    begin               in the first row of an episode: reset, joined or continued
    end                 in the last row of a piece: terminated, truncated, cut, or more (the episode goes on)
    final.<obs leaf>    in the last row of a piece: the observation after it; null where the episode terminated
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from heddle.consumers.data.piece import Piece
from heddle.errors import DataError
from heddle.layout import Layout

OWNERS = {"shard": "int32", "epoch": "int64", "env": "int32", "agent": "int32"}
FINAL = "final."


@dataclass(frozen=True, slots=True)
class DataColumn:
    """One column of numbers: its dtype, the shape of one step's value, and whether it is an observation leaf."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    is_leaf: bool = False

    def as_json(self) -> dict[str, Any]:
        """For a manifest."""
        return {"name": self.name, "dtype": self.dtype, "shape": list(self.shape), "is_leaf": self.is_leaf}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "DataColumn":
        """The opposite of `as_json`. Raises KeyError, TypeError."""
        return cls(str(value["name"]), str(value["dtype"]), tuple(value["shape"]), bool(value["is_leaf"]))

    @property
    def arrow_type(self) -> pa.DataType:
        """Of the column: a number, or a flat list of fixed size."""
        item = pa.bool_() if self.dtype == "bool" else pa.from_numpy_dtype(np.dtype(self.dtype))
        return pa.list_(item, math.prod(self.shape)) if self.shape else item


def columns_of(layout: Layout) -> tuple[DataColumn, ...]:
    """What a recording of batches of this layout holds of each step.

    Raises:
        DataError: values that differ in length cannot be recorded.
    """
    if varying := [column.name for column in layout.columns if column.leaf is not None]:
        raise DataError(f"{', '.join(varying)}: texts, sequences and graphs cannot be recorded; a tap reads them")
    return tuple(
        DataColumn(column.name, column.dtype, column.shape, column.per == "step+1")
        for column in layout.columns
        if column.per in ("step", "step+1")
    )


def schema_of(columns: Sequence[DataColumn], provenance: Mapping[str, Any]) -> pa.Schema:
    """The Arrow schema of a file; `provenance` is kept in its metadata, as JSON."""
    fields = [pa.field("episode", pa.int64(), False), pa.field("step", pa.int32(), False)]
    fields += [pa.field(name, pa.from_numpy_dtype(np.dtype(dtype)), False) for name, dtype in OWNERS.items()]
    fields += [pa.field("kind", pa.string(), False), pa.field("version", pa.int64(), False)]
    for column in columns:
        shape = {b"heddle.shape": json.dumps(column.shape).encode()} if column.shape else None
        fields.append(pa.field(column.name, column.arrow_type, False, metadata=shape))
    fields += [pa.field("begin", pa.string()), pa.field("end", pa.string())]
    fields += [pa.field(f"{FINAL}{column.name}", column.arrow_type) for column in columns if column.is_leaf]
    return pa.schema(fields, metadata={b"heddle": json.dumps(provenance).encode()})


def to_table(pieces: Sequence[Piece], columns: Sequence[DataColumn], schema: pa.Schema) -> pa.Table:
    """The rows of `pieces`, one piece after another."""
    counts = [piece.steps for piece in pieces]
    firsts = np.cumsum([0, *counts])[:-1]
    lasts = np.cumsum(counts) - 1
    made: dict[str, pa.Array] = {
        "episode": pa.array(np.repeat(np.array([piece.episode for piece in pieces], np.int64), counts)),
        "step": pa.array(np.concatenate([np.arange(p.step, p.step + p.steps, dtype=np.int32) for p in pieces])),
        "kind": pa.array([piece.kind for piece in pieces for _ in range(piece.steps)], pa.string()),
        "version": pa.array(np.concatenate([piece.version for piece in pieces])),
        "begin": _sparse(sum(counts), firsts, [piece.begin or None for piece in pieces]),
        "end": _sparse(sum(counts), lasts, [piece.end or None for piece in pieces]),
    }
    for name, dtype in OWNERS.items():
        made[name] = pa.array(np.repeat(np.array([getattr(piece, name) for piece in pieces], dtype), counts))
    for column in columns:
        made[column.name] = _numbers(column, np.concatenate([piece.arrays[column.name] for piece in pieces]))
        if column.is_leaf:
            made[f"{FINAL}{column.name}"] = _finals(column, pieces, sum(counts), lasts)
    return pa.table([made[field.name] for field in schema], schema=schema)


def from_table(table: pa.Table, columns: Sequence[DataColumn]) -> Iterator[Piece]:
    """The pieces that `table` holds, in its order."""
    if not table.num_rows:
        return
    table = table.combine_chunks()
    arrays = {column.name: numbers_of(table, column) for column in columns}
    finals = {column.name: final_of(table, column) for column in columns if column.is_leaf}
    plain = {name: table[name].to_numpy() for name in ("episode", "step", "version", *OWNERS)}
    kinds, begins, ends = (table[name].to_pylist() for name in ("kind", "begin", "end"))
    starts = piece_starts(plain["episode"], ends)
    for start, stop in zip(starts, [*starts[1:], table.num_rows], strict=True):
        last = {name: values[stop - 1] for name, (values, _) in finals.items()}
        known = all(valid[stop - 1] for _, valid in finals.values())
        owner = {name: int(plain[name][start]) for name in ("episode", "step", *OWNERS)}
        yield Piece(
            **owner,
            kind=kinds[start],
            begin=begins[start] or "",
            end=ends[stop - 1] or "",
            steps=stop - start,
            arrays={name: values[start:stop] for name, values in arrays.items()},
            version=plain["version"][start:stop],
            last=last if known else None,
        )


def piece_starts(episode: NDArray[np.int64], ends: Sequence[str | None]) -> list[int]:
    """Rows at which a piece begins: where the episode changes, or the row before ended one.

    Args:
        episode: [rows] number of the episode of each step.
        ends: [rows] how the piece ended there, None where it goes on.
    """
    starts = [0]
    starts += [row for row in range(1, len(episode)) if episode[row] != episode[row - 1] or ends[row - 1] is not None]
    return starts


def numbers_of(table: pa.Table, column: DataColumn) -> NDArray[Any]:
    """[rows, ...] of one column; read-only."""
    array = table[column.name].combine_chunks()
    return _dense(array, column)


def final_of(table: pa.Table, column: DataColumn) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """[rows, ...] of a leaf's final observations, zeros where there is none; [rows], whether there is one."""
    array = table[f"{FINAL}{column.name}"].combine_chunks()
    valid: NDArray[np.bool_] = array.is_valid().to_numpy(zero_copy_only=False)
    values = np.zeros((len(array), *column.shape), column.dtype)
    if valid.any():
        values[valid] = _dense(array.drop_null(), column)
    return values, valid


def _dense(array: pa.Array, column: DataColumn) -> NDArray[Any]:
    flat = array.flatten() if column.shape else array
    values = flat.to_numpy(zero_copy_only=False).astype(column.dtype, copy=False)
    shaped: NDArray[Any] = values.reshape(len(array), *column.shape)
    return shaped


def _numbers(column: DataColumn, values: NDArray[Any]) -> pa.Array:
    flat = pa.array(np.ascontiguousarray(values).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, type=column.arrow_type) if column.shape else flat


def _sparse(rows: int, at: NDArray[np.int64], values: Sequence[str | None]) -> pa.Array:
    whole: list[str | None] = [None] * rows
    for row, value in zip(at.tolist(), values, strict=True):
        whole[row] = value
    return pa.array(whole, pa.string())


def _finals(column: DataColumn, pieces: Sequence[Piece], rows: int, lasts: NDArray[np.int64]) -> pa.Array:
    """Null but in the last rows of pieces that have an observation after them."""
    having = [(row, piece.last) for row, piece in zip(lasts.tolist(), pieces, strict=True) if piece.last is not None]
    places = np.full(rows, -1, np.int64)
    places[[row for row, _ in having]] = np.arange(len(having))
    if not having:
        return pa.nulls(rows, column.arrow_type)
    known = _numbers(column, np.stack([np.asarray(last[column.name], column.dtype) for _, last in having]))
    return known.take(pa.array(places, mask=places < 0))
