"""Checkpoints: everything a run needs to continue, in one file that is there whole or not at all.

It never needs torch and never loads a file whose digest does not match: a torn or foreign file is refused by name.

The file is safetensors. Tensors are named "weights/..." and "learner/..."; the rest is a manifest, JSON in the file's
metadata.
"""

import contextlib
import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save as to_safetensors

from heddle.durable import sync_folder
from heddle.errors import CheckpointError, HeddleError
from heddle.policies.base import Array, Arrays
from heddle.policies.weights import WeightsError, load_arrays, read_metadata

log = logging.getLogger("heddle.checkpoint")

FORMAT = "heddle-checkpoint/1"
HEADER_CAP_BYTES = 64 * 2**20
"""Largest header that is parsed: marks of some 500,000 shards."""
EPOCH_LIMIT = 10**15
"""No seat epoch is so high: they are server milliseconds. A file that says so was not written by a trainer."""
BEST = "best.safetensors"
_NAME = re.compile(r"checkpoint-(\d{20})-(\d{12})\.safetensors")
_PARTS = ("weights", "learner")


@dataclass(slots=True, kw_only=True)
class Checkpoint:
    """One point of a run.

    Attributes:
        experiment: experiment id.
        spec_json: the resolved spec; with `spaces` it makes the file enough to play the policy.
        spec_sha256: its digest.
        spaces: {"observation": ..., "action": ...} as JSON values of heddle.spaces.
        seat_epoch: of the trainer that wrote it.
        update: updates done.
        policy_version: version of the weights as published.
        env_steps: steps trained on, what the budget counts.
        episodes: episodes that ended in them.
        weights: policy weights and "norm." statistics.
        learner: the learner's tensors.
        learner_meta: the learner's JSON values.
        counters: numbers that continue, e.g. wall seconds used.
        rng: random state that is not the learner's.
        marks: "p/shard" -> what was consumed last, e.g. [epoch, nonce, seq].
        extra: whatever else the trainer keeps; JSON values.
        mean_return: mean return when it was written; None before the first episode ended.
        best_return: best one so far, by which `best.safetensors` was chosen.
    """

    experiment: str
    spec_json: str
    spec_sha256: str
    spaces: dict[str, Any]
    seat_epoch: int
    update: int
    policy_version: int
    env_steps: int
    episodes: int = 0
    weights: Arrays = field(default_factory=dict)
    learner: Arrays = field(default_factory=dict)
    learner_meta: dict[str, Any] = field(default_factory=dict)
    counters: dict[str, float] = field(default_factory=dict)
    rng: dict[str, Any] = field(default_factory=dict)
    marks: dict[str, Any] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)
    mean_return: float | None = None
    best_return: float | None = None


_MANIFEST_FIELDS = tuple(item.name for item in fields(Checkpoint) if item.name not in _PARTS)


def file_name(seat_epoch: int, update: int) -> str:
    """The name that orders checkpoints: first by seat epoch, then by update."""
    return f"checkpoint-{seat_epoch:020d}-{update:012d}.safetensors"


def save(directory: Path, checkpoint: Checkpoint, check: Callable[[], None] = lambda: None) -> Path:
    """Write `checkpoint` durably: when this returns, the file survives a power cut.

    Args:
        check: called once `highest_epoch` tells others of this file and before it is there; may raise a HeddleError,
            and then it never is.

    Raises:
        CheckpointError: the directory cannot be written, or a later trainer swept the file; nothing of it stays.
    """
    path = directory / file_name(checkpoint.seat_epoch, checkpoint.update)
    temporary = directory / f".{path.name}.tmp"
    data = encode(checkpoint)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            check()
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(directory)
    except (OSError, HeddleError) as error:
        with contextlib.suppress(OSError):  # half a file on a full disk keeps the next one out
            temporary.unlink(missing_ok=True)
        if isinstance(error, HeddleError):
            raise
        raise CheckpointError(f"cannot write {path}: {error.strerror or error}") from error
    return path


def load(path: Path) -> Checkpoint:
    """Read one checkpoint, whole and verified.

    Raises:
        CheckpointError: no such file, torn, foreign, of another format, or under another's name.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error
    try:
        checkpoint = decode(data)
    except (CheckpointError, WeightsError) as error:
        raise CheckpointError(f"{path} is not a whole checkpoint: {error}") from error
    name = file_name(checkpoint.seat_epoch, checkpoint.update)
    if _NAME.fullmatch(path.name) and path.name != name:
        raise CheckpointError(f"{path} holds another checkpoint than its name says: {name}")
    return checkpoint


def encode(checkpoint: Checkpoint) -> bytes:
    """A checkpoint as the bytes of its file."""
    tensors = {
        f"{part}/{name}": np.asarray(array, order="C")
        for part in _PARTS
        for name, array in getattr(checkpoint, part).items()
    }
    manifest = json.dumps({name: getattr(checkpoint, name) for name in _MANIFEST_FIELDS}, sort_keys=True)
    metadata = {"format": FORMAT, "manifest": manifest, "sha256": _digest(manifest, tensors)}
    return bytes(to_safetensors(tensors, metadata))


def decode(data: bytes) -> Checkpoint:
    """The opposite of `encode`.

    Raises:
        CheckpointError: of another format, or the digest differs.
        WeightsError: not safetensors.
    """
    metadata = read_metadata(data, HEADER_CAP_BYTES)
    if metadata.get("format") != FORMAT:
        raise CheckpointError(f"format is {metadata.get('format')!r}, this version reads {FORMAT!r}")
    tensors = load_arrays(data)
    manifest = metadata.get("manifest", "")
    if _digest(manifest, tensors) != metadata.get("sha256"):
        raise CheckpointError("its digest does not match its content")
    try:
        values: dict[str, Any] = json.loads(manifest)
        known: dict[str, Any] = {name: values[name] for name in _MANIFEST_FIELDS}
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"its manifest lacks {error}") from error
    parts: dict[str, Arrays] = {part: {} for part in _PARTS}
    for name, array in tensors.items():
        part, _, rest = name.partition("/")
        if part not in parts:
            raise CheckpointError(f"unknown tensor {name!r}")
        parts[part][rest] = array
    return Checkpoint(weights=parts["weights"], learner=parts["learner"], **known)


def listing(directory: Path) -> list[Path]:
    """Checkpoints by name, newest (highest seat epoch, then update) first. Raises CheckpointError."""
    return sorted((path for path in _files(directory) if _NAME.fullmatch(path.name)), reverse=True)


@dataclass(frozen=True, slots=True)
class Found:
    """What a directory of checkpoints has to go on from.

    Attributes:
        checkpoint: the newest that loads; None for none.
        path: its file.
        skipped: of each newer file, why it was not taken.
    """

    checkpoint: Checkpoint | None = None
    path: Path | None = None
    skipped: tuple[str, ...] = ()


def look(directory: Path, *, experiment: str | None = None, below: str = "") -> Found:
    """The newest checkpoint that loads, and why each newer one does not; nothing is logged: for screens.

    Args:
        directory: where `save` wrote.
        experiment: skip files of other experiments.
        below: look only at files older than the one of this name.
    """
    skipped: list[str] = []
    for path in (path for path in listing(directory) if not below or path.name < below):
        try:
            checkpoint = load(path)
            if experiment is not None and checkpoint.experiment != experiment:
                raise CheckpointError(f"{path} is of experiment {checkpoint.experiment}")
        except CheckpointError as error:
            skipped.append(str(error))
            continue
        return Found(checkpoint, path, tuple(skipped))
    return Found(skipped=tuple(skipped))


def find(directory: Path, *, experiment: str | None = None, below: str = "") -> Found:
    """As `look`, for whoever goes on from it: each file that is skipped has a warning in the log."""
    found = look(directory, experiment=experiment, below=below)
    for reason in found.skipped:
        log.warning("skipped checkpoint: %s", reason)
    return found


def newest(directory: Path, *, experiment: str | None = None) -> Checkpoint | None:
    """The checkpoint that `find` finds."""
    return find(directory, experiment=experiment).checkpoint


def epoch_of(path: Path) -> int:
    """The seat epoch of the trainer that wrote a checkpoint, as its name tells; 0 for another name."""
    match = _NAME.fullmatch(path.name)
    return 0 if match is None else int(match[1])


def highest_epoch(directory: Path) -> int:
    """The highest seat epoch that any file's name tells, whole or torn; 0 for none."""
    matches = [_NAME.fullmatch(path.name.removeprefix(".").removesuffix(".tmp")) for path in _files(directory)]
    epochs = [int(match[1]) for match in matches if match is not None]
    return max((epoch for epoch in epochs if epoch < EPOCH_LIMIT), default=0)


def sweep(directory: Path, below: int) -> None:
    """Delete what writers with a seat epoch lower than `below` left unfinished; trouble with that is no trouble."""
    for path in _files(directory):
        match = _NAME.fullmatch(path.name.removeprefix(".").removesuffix(".tmp"))
        if match is not None and path.name.endswith(".tmp") and int(match[1]) < below:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)


def _files(directory: Path) -> list[Path]:
    try:
        return list(directory.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(f"cannot read {directory}: {error.strerror or error}") from error


def prune(directory: Path, keep: int, protect: Collection[Path] = ()) -> list[Path]:
    """Delete all but the newest `keep` checkpoints, `protect` and the best one, and what torn writes left.

    Returns:
        The paths deleted.
    """
    found = listing(directory)
    if not found:
        return []
    guarded = {path.resolve() for path in protect}
    doomed = [path for path in found[max(1, keep) :] if path.resolve() not in guarded]
    # A temporary name at or below the newest whole file belongs to a writer that died.
    doomed += [path for path in directory.glob(".checkpoint-*.tmp") if path.name[1:-4] <= found[0].name]
    for path in doomed:
        path.unlink(missing_ok=True)
    return doomed


def mark_best(directory: Path, path: Path) -> Path:
    """Make `best.safetensors` the same file as `path`, in one step; it outlives pruning."""
    best = directory / BEST
    temporary = directory / f".{BEST}.tmp"
    temporary.unlink(missing_ok=True)
    try:
        os.link(path, temporary)
    except OSError:
        shutil.copyfile(path, temporary)  # a file system without hard links
    temporary.replace(best)
    temporary.unlink(missing_ok=True)  # still there when the best was this very file: renaming then does nothing
    sync_folder(directory)
    return best


def _digest(manifest: str, tensors: Mapping[str, Array]) -> str:
    digest = hashlib.sha256(manifest.encode())
    for name in sorted(tensors):
        array = tensors[name]
        digest.update(f"\0{name}\0{array.dtype.str}\0{array.shape}\0".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
