"""A recording as a Minari dataset, in Minari's own Parquet format: `minari.MinariDataset(folder)` opens it.

It needs no Minari. One folder an episode, T + 1 rows each, the last one with the last observation alone. What an
environment showed as it terminated is not recorded (nothing is ever learned from it): the observation before stands
in its place. Actions are as the environment was given them: shifted by `start`, clipped to the bounds.

Format: Minari 0.5, `data_format` "parquet" (github.com/Farama-Foundation/Minari, minari/dataset/_storages).
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from heddle.consumers.data.files import workshop, write_json, write_parquet
from heddle.consumers.data.piece import Piece
from heddle.consumers.data.store import Manifest, data_files, read_manifest, read_pieces
from heddle.errors import Conflict, DataError, UsageError
from heddle.spaces import (
    ACTION,
    OBSERVATION,
    Box,
    DictSpace,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    Space,
    TupleSpace,
    from_json,
    parts,
)

MINARI_VERSION = "0.5.4"
_ID = re.compile(r"([-_\w][-_\w/]*[-_\w]+/)?[-_\w]+-v\d+")
Rows = Callable[[str], NDArray[Any]]
"""[T, ...] or [T + 1, ...] of a leaf."""


def export(
    folder: Path,
    target: Path,
    *,
    dataset_id: str | None = None,
    with_cut: bool = True,
    tell: Callable[[int, int], None] = lambda _done, _of: None,
) -> tuple[int, int]:
    """Write the recording in `folder` as a Minari dataset; how many episodes and steps.

    Args:
        tell: told how many episodes are written, and how many there are, again and again.

    It is there whole or not at all: what a process that died left beside `target` is cleared by the next one.

    Raises:
        UsageError: `dataset_id` is none of Minari's.
        Conflict: `target` is there already, or another process makes it.
        DataError: `folder` is no recording, Minari has no such space, or the disk does not take it.
    """
    if dataset_id is not None and not _ID.fullmatch(dataset_id):
        raise UsageError(f"{dataset_id!r} is no Minari id such as mine/cartpole-v0")
    manifest = read_manifest(folder)
    observation, action = (from_json(manifest.spaces[name]) for name in ("observation", "action"))
    metadata = _metadata(manifest, observation, action, dataset_id)
    if target.exists():
        raise Conflict(f"{target} is there already; give another folder with --to")
    with workshop(target) as made:
        steps = number = 0
        for pieces in whole_episodes(folder, manifest):
            if pieces[-1].end == "cut" and not with_cut:
                continue
            steps += _write_episode(made / str(number), number, pieces, observation, action)
            number += 1
            tell(number, manifest.episodes)
        size = sum(path.stat().st_size for path in made.rglob("*.parquet"))
        metadata |= {"total_episodes": number, "total_steps": steps, "dataset_size": round(size / 1e6, 1)}
        write_json(made / "metadata.json", metadata)
    return number, steps


def whole_episodes(folder: Path, manifest: Manifest) -> Iterator[list[Piece]]:
    """The pieces of each episode, in the order in which they ended."""
    under_way: dict[int, list[Piece]] = {}
    for path in data_files(folder, manifest):
        for piece in read_pieces(path, manifest.columns):
            pieces = [*under_way.pop(piece.episode, []), piece]
            if piece.end == "more":
                under_way[piece.episode] = pieces
            else:
                yield pieces


def _metadata(manifest: Manifest, observation: Space, action: Space, dataset_id: str | None) -> dict[str, Any]:
    told = manifest.provenance
    return {
        "data_format": "parquet",
        "jpeg_encoding": False,
        "dataset_id": dataset_id or f"heddle/{told['name']}-v0",
        "minari_version": MINARI_VERSION,
        "observation_space": json.dumps(_space(observation)),
        "action_space": json.dumps(_space(action)),
        "algorithm_name": _learner(told),
        "description": f"{told['env']}, recorded by Heddle {told['recorded_by']} from {told['experiment']}",
        "heddle": told,
    }


def _learner(told: Mapping[str, Any]) -> str:
    """Who learned as it was recorded; a recording that was made from a dataset does not know."""
    trainer = told["spec"].get("trainer", {})
    return str(trainer.get("learner", "unknown"))


def _space(space: Space) -> dict[str, Any]:
    """A space as Minari writes it down."""
    if isinstance(space, Box):
        low, high = (np.asarray(limit).tolist() for limit in space.limits())
        return {"type": "Box", "dtype": space.dtype, "shape": list(space.shape), "low": low, "high": high}
    if isinstance(space, Discrete):
        return {"type": "Discrete", "dtype": "int64", "start": space.start, "n": space.n}
    if isinstance(space, MultiDiscrete):
        counts, starts = space.counts().tolist(), space.starts().tolist()
        return {"type": "MultiDiscrete", "dtype": space.dtype, "nvec": counts, "start": starts}
    if isinstance(space, MultiBinary):
        return {"type": "MultiBinary", "n": list(space.shape) if len(space.shape) > 1 else space.shape[0]}
    if isinstance(space, DictSpace):
        return {"type": "Dict", "subspaces": {key: _space(part) for key, part in space.spaces.items()}}
    if isinstance(space, TupleSpace):
        return {"type": "Tuple", "subspaces": [_space(part) for _, part in parts(space)]}
    raise DataError(f"Minari has no Parquet form for a {type(space).__name__} space")


def _write_episode(folder: Path, number: int, pieces: list[Piece], observation: Space, action: Space) -> int:
    arrays = {name: np.concatenate([piece.arrays[name] for piece in pieces]) for name in pieces[0].arrays}
    steps, last = len(arrays["reward"]), pieces[-1].last
    ends_cut = pieces[-1].end == "cut"

    def observed(name: str) -> NDArray[Any]:
        final = arrays[name][-1] if last is None else last[name]
        return np.concatenate([arrays[name], np.asarray(final, arrays[name].dtype)[None]])

    def chosen(name: str) -> NDArray[Any]:
        return np.concatenate([arrays[name], np.zeros_like(arrays[name][:1])])

    truncated = np.append(arrays["truncated"], False)
    truncated[steps - 1] |= ends_cut
    infos = {name.removeprefix("info."): values for name, values in arrays.items() if name.startswith("info.")}
    table = {
        "episode_id": pa.array(np.full(steps + 1, number, np.int32)),
        "observations": _nested(observation, OBSERVATION, observed, as_given=True),
        "actions": _nested(action, ACTION, chosen, as_given=False),
        "rewards": pa.array(np.append(arrays["reward"], np.float32(0))),
        "terminations": pa.array(np.append(arrays["terminated"], False)),
        "truncations": pa.array(truncated),
    }
    if infos:
        padded = {name: pa.array(np.append(values, np.nan)) for name, values in infos.items()}
        table["infos"] = pa.StructArray.from_arrays(list(padded.values()), names=list(padded))
    folder.mkdir()
    write_parquet(folder / "part-0.parquet", pa.table(table))
    write_json(folder / "metadata.json", _episode_metadata(number, steps, pieces))
    return steps


def _episode_metadata(number: int, steps: int, pieces: list[Piece]) -> Mapping[str, Any]:
    first, versions = pieces[0], [int(version) for piece in pieces for version in (piece.version[0], piece.version[-1])]
    return {
        "id": number,
        "total_steps": steps,
        "begin": first.begin,
        "end": pieces[-1].end,
        "shard": first.shard,
        "epoch": first.epoch,
        "env": first.env,
        "policy_version_min": min(versions),
        "policy_version_max": max(versions),
    }


def _nested(space: Space, name: str, rows: Rows, *, as_given: bool) -> pa.Array:
    """The column of a space: structs for Dict and Tuple, flat lists of fixed size, or numbers."""
    if isinstance(space, DictSpace | TupleSpace):
        made = [(str(key), _nested(part, f"{name}.{key}", rows, as_given=as_given)) for key, part in parts(space)]
        return pa.StructArray.from_arrays([array for _, array in made], names=[key for key, _ in made])
    values = rows(name) if as_given else _as_given(space, rows(name))
    if isinstance(space, Discrete):
        return pa.array(values.astype(np.int64))
    flat = pa.array(np.ascontiguousarray(values).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, len(flat) // len(values))


def _as_given(space: Space, values: NDArray[Any]) -> NDArray[Any]:
    """What the environment was given for what the policy chose."""
    if isinstance(space, Discrete):
        return values + space.start
    if isinstance(space, MultiDiscrete):
        given: NDArray[Any] = (values + space.starts()).astype(space.dtype)
        return given
    if isinstance(space, Box):
        low, high = space.limits()
        clipped: NDArray[Any] = np.clip(values, low, high).astype(space.dtype, copy=False)
        return clipped
    return values
