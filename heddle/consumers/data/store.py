"""The store: a folder of recorded experience, in which a commit is there whole or not at all.

It never reads a stream. `dataset.json`, the manifest, names every file that counts; it is replaced last, so a process
that dies at any line leaves the commit before. Files that it does not name are a dead process's and are removed.

    DIR/dataset.json            what was recorded, of which experiment, by which code; spaces, columns, files, marks
    DIR/data/part-*.parquet     the steps, in pieces of episodes that are over
    DIR/open/part-*.parquet     steps of episodes under way, those that each commit brought; never written again

What is in open/ counts from the step on that `under_way` names, for what was before is in data/. A file of which
nothing counts any more is removed.
"""

import fcntl
import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from heddle.consumers.data.files import write_json, write_parquet
from heddle.consumers.data.joiner_state import State
from heddle.consumers.data.piece import Piece, joined
from heddle.consumers.data.schema import DataColumn, from_table, schema_of, to_table
from heddle.errors import Conflict, DataError
from heddle.locks import take

MANIFEST = "dataset.json"
FORMAT = "heddle-experience/2"
_WITH_ONE_OPEN_FILE = "heddle-experience/1"
MOST_OPEN_FILES = 64
"""With more of them, what counts is written into one: an episode of hours does not leave a file for each second."""
ENDED = ("terminated", "truncated")
"""How an episode ends that was played to its end."""
_DATA, _OPEN = "data", "open"


@dataclass(slots=True)
class Manifest:
    """What `dataset.json` holds.

    Attributes:
        provenance: experiment, name, seed, spec (resolved), toml, sha256, code (versions of Heddle), commit.
        spaces: {"observation": ..., "action": ...}, as heddle.spaces writes them.
        columns: of each step.
        tap: name of the recorder's tap.
        files: {"name", "rows", "episodes", "bytes"} of each file in data/.
        open_files: in open/, in the order of writing.
        under_way: episode -> the first step of it that is not in data/.
        commits: so many there were.
        steps, episodes: what is in the files; episodes that were played to their end.
        refused: batches that could not be read.
        done: the recording is complete.
        state: the joiner's.
    """

    provenance: dict[str, Any]
    spaces: dict[str, Any]
    columns: tuple[DataColumn, ...]
    tap: str
    files: list[dict[str, Any]] = field(default_factory=list)
    open_files: list[str] = field(default_factory=list)
    under_way: dict[str, int] = field(default_factory=dict)
    commits: int = 0
    steps: int = 0
    episodes: int = 0
    refused: int = 0
    done: bool = False
    state: State = field(default_factory=State)

    @property
    def size_bytes(self) -> int:
        """Of the files in data/."""
        return sum(int(file["bytes"]) for file in self.files)

    def as_json(self) -> dict[str, Any]:
        """As the file has it."""
        columns = [column.as_json() for column in self.columns]
        return {"format": FORMAT, **asdict(self), "columns": columns}


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a recording.

    Raises:
        DataError: there is none, or it is none of this version.
    """
    path = folder / MANIFEST
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        version = told.pop("format")
        if version == _WITH_ONE_OPEN_FILE:
            told = _as_now(folder, told)
        elif version != FORMAT:
            raise DataError(f"{path} is no recording of this version of Heddle ({FORMAT})")
        told["columns"] = tuple(DataColumn.from_json(column) for column in told["columns"])
        told["state"] = State(**told["state"])
        for shard in told["state"].marks:
            told["state"].mark(shard)
        return Manifest(**told)
    except FileNotFoundError as error:
        raise DataError(
            f"{folder} holds no recorded experience (no {MANIFEST}); make one: heddle record-experience"
        ) from error
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path} is no manifest of recorded experience: {error}") from error


def _as_now(folder: Path, told: dict[str, Any]) -> dict[str, Any]:
    """A manifest of the format before: all that one file in open/ holds is under way."""
    name = told.pop("open_file")
    table = read_table(folder / _OPEN / name, ["episode", "step"]) if name else None
    firsts: dict[str, int] = {}
    for row in table.to_pylist() if table is not None else ():
        firsts.setdefault(str(row["episode"]), row["step"])
    return told | {"open_files": [name] if name else [], "under_way": firsts}


def read_pieces(path: Path, columns: Sequence[DataColumn]) -> list[Piece]:
    """The pieces of one file. Raises DataError."""
    return list(from_table(read_table(path), columns))


def read_table(path: Path, names: Sequence[str] | None = None) -> pa.Table:
    """One file's rows, those columns of it. Raises DataError."""
    try:
        return pq.read_table(path, columns=None if names is None else list(names), partitioning=None)
    except (OSError, pa.ArrowException, KeyError) as error:
        raise DataError(f"cannot read {path}: {' '.join(str(error).split())[:200]}") from error


class Store:
    """The folder, open for one recorder.

    Raises:
        Conflict: another process records into it.
        DataError: it cannot be written, or holds something else.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            for part in (_DATA, _OPEN):
                (folder / part).mkdir(parents=True, exist_ok=True)
            file = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise DataError(f"cannot write {folder}: {error.strerror or error}") from error
        try:
            self._lock = take(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise Conflict(f"another process records into {folder}; give another one with --to") from error
        self.manifest: Manifest | None = None
        self._ends: dict[str, dict[int, int]] = {}  # of each file in open/: episode -> the step behind its last one
        if (folder / MANIFEST).exists():
            self.manifest = read_manifest(folder)
            self._sweep(self.manifest)
            for name in self.manifest.open_files:
                self._ends[name] = _ends_of(read_pieces(folder / _OPEN / name, self.manifest.columns))

    def begin(self, manifest: Manifest) -> None:
        """Make a new recording of it."""
        self.manifest = manifest
        self._write_manifest(manifest)

    def open_pieces(self) -> list[Piece]:
        """The episodes that were under way at the last commit, a piece each."""
        manifest = self._known()
        found: dict[int, list[Piece]] = {episode: [] for episode in self._first_steps()}
        for name in manifest.open_files:
            for part in read_pieces(self.folder / _OPEN / name, manifest.columns):
                if part.episode in found and (live := part.since(self._first_steps()[part.episode])) is not None:
                    found[part.episode].append(live)
        return [joined(parts) for parts in found.values()]

    def commit(self, whole: Sequence[Piece], news: Sequence[Piece], under_way: Mapping[int, int]) -> None:
        """Add the pieces that are whole and the news of those that are not, all at once and durably.

        Args:
            news: steps of episodes under way that no commit had yet.
            under_way: episode -> the first step of it that is in no whole piece.

        Raises:
            DataError: the disk does not take it; what was committed before stays.
        """
        manifest = self._known()
        number = manifest.commits + 1
        name = f"part-{number:08d}.parquet"
        schema = schema_of(manifest.columns, manifest.provenance)
        files, ends = list(manifest.files), dict(self._ends)
        if whole:
            size = self._write(_DATA, name, to_table(whole, manifest.columns, schema))
            ended = sum(piece.end in ENDED for piece in whole)
            files.append({"name": name, "rows": sum(piece.steps for piece in whole), "episodes": ended, "bytes": size})
        if news:
            self._write(_OPEN, name, to_table(news, manifest.columns, schema))
            ends[name] = _ends_of(news)
        kept = {name: last for name, last in ends.items() if _counts(last, under_way)}
        manifest.files, manifest.open_files, manifest.commits = files, list(kept), number
        manifest.under_way = {str(episode): step for episode, step in under_way.items()}
        manifest.steps = sum(int(file["rows"]) for file in files)
        manifest.episodes = sum(int(file["episodes"]) for file in files)
        self._write_manifest(manifest)
        self._ends = kept
        self._remove(ends.keys() - kept.keys())

    def compact(self) -> None:
        """Write what counts in open/ into one file, where there are many. Raises DataError."""
        manifest = self._known()
        if len(manifest.open_files) <= MOST_OPEN_FILES:
            return
        pieces, old = self.open_pieces(), list(manifest.open_files)
        manifest.commits += 1
        name = f"part-{manifest.commits:08d}.parquet"
        self._write(_OPEN, name, to_table(pieces, manifest.columns, schema_of(manifest.columns, manifest.provenance)))
        manifest.open_files = [name]
        self._write_manifest(manifest)
        self._ends = {name: _ends_of(pieces)}
        self._remove(old)

    def close(self) -> None:
        """Let others record into it."""
        self._lock.close()

    # ---- inside

    def _known(self) -> Manifest:
        if self.manifest is None:
            raise DataError(f"{self.folder} holds no recording yet")
        return self.manifest

    def _first_steps(self) -> dict[int, int]:
        return {int(episode): step for episode, step in self._known().under_way.items()}

    def _remove(self, names: Collection[str]) -> None:
        for name in names:
            (self.folder / _OPEN / name).unlink(missing_ok=True)

    def _write(self, part: str, name: str, table: pa.Table) -> int:
        """One file, durably; its bytes."""
        path = self.folder / part / name
        write_parquet(path, table)
        return path.stat().st_size

    def _write_manifest(self, manifest: Manifest) -> None:
        write_json(self.folder / MANIFEST, manifest.as_json())

    def _sweep(self, manifest: Manifest) -> None:
        """Remove what a process that died in a commit left."""
        named = {_DATA: {str(file["name"]) for file in manifest.files}, _OPEN: set(manifest.open_files)}
        for part, names in named.items():
            for path in [*(self.folder / part).glob("part-*.parquet"), *(self.folder / part).glob(".part-*.tmp")]:
                if path.name not in names:
                    path.unlink(missing_ok=True)


def _ends_of(pieces: Sequence[Piece]) -> dict[int, int]:
    """Episode -> the step behind the last one of it."""
    return {piece.episode: piece.step + piece.steps for piece in pieces}


def _counts(ends: Mapping[int, int], under_way: Mapping[int, int]) -> bool:
    """Whether a file in open/ that reaches to `ends` holds a step that is nowhere else."""
    return any(end > under_way[episode] for episode, end in ends.items() if episode in under_way)


def data_files(folder: Path, manifest: Manifest) -> list[Path]:
    """Every file of steps, in the order of recording."""
    return [folder / _DATA / str(file["name"]) for file in manifest.files]
