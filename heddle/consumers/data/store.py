"""The store: a folder of recorded experience, in which a commit is there whole or not at all.

It never reads a stream. `dataset.json`, the manifest, names every file that counts; it is replaced last, so a process
that dies at any line leaves the commit before. Files that it does not name are a dead process's and are removed.

    DIR/dataset.json            what was recorded, of which experiment, by which code; spaces, columns, files, marks
    DIR/data/part-*.parquet     the steps, in pieces of episodes that are over
    DIR/open/part-*.parquet     the episodes under way at the last commit
"""

import fcntl
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from heddle.consumers.data.files import write_json, write_parquet
from heddle.consumers.data.joiner import Piece, State
from heddle.consumers.data.schema import DataColumn, from_table, schema_of, to_table
from heddle.errors import Conflict, DataError

MANIFEST = "dataset.json"
FORMAT = "heddle-experience/1"
ENDED = ("terminated", "truncated")
"""How an episode ends that was played to its end."""
_DATA, _OPEN = "data", "open"


@dataclass(slots=True)
class Manifest:
    """What `dataset.json` holds.

    Attributes:
        provenance: experiment, name, seed, spec (resolved), toml, sha256, code (versions of Heddle).
        spaces: {"observation": ..., "action": ...}, as heddle.spaces writes them.
        columns: of each step.
        tap: name of the recorder's tap.
        files: {"name", "rows", "episodes", "bytes"} of each file in data/.
        open_file: in open/; "" for none.
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
    open_file: str = ""
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
        if told.pop("format") != FORMAT:
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
            self._lock = (folder / ".lock").open("w")
        except OSError as error:
            raise DataError(f"cannot write {folder}: {error.strerror or error}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            raise Conflict(f"another process records into {folder}; give another one with --to") from error
        self.manifest: Manifest | None = None
        if (folder / MANIFEST).exists():
            self.manifest = read_manifest(folder)
            self._sweep(self.manifest)

    def begin(self, manifest: Manifest) -> None:
        """Make a new recording of it."""
        self.manifest = manifest
        self._write_manifest(manifest)

    def open_pieces(self) -> list[Piece]:
        """The episodes that were under way at the last commit."""
        manifest = self._known()
        if not manifest.open_file:
            return []
        return read_pieces(self.folder / _OPEN / manifest.open_file, manifest.columns)

    def commit(self, whole: Sequence[Piece], under_way: Sequence[Piece]) -> None:
        """Add the pieces that are whole, and remember those that are not, all at once and durably.

        Raises:
            DataError: the disk does not take it; what was committed before stays.
        """
        manifest = self._known()
        number, old = manifest.commits + 1, manifest.open_file
        name = f"part-{number:08d}.parquet"
        schema = schema_of(manifest.columns, manifest.provenance)
        files, open_file = list(manifest.files), ""
        if whole:
            size = self._write(_DATA, name, to_table(whole, manifest.columns, schema))
            ended = sum(piece.end in ENDED for piece in whole)
            files.append({"name": name, "rows": sum(piece.steps for piece in whole), "episodes": ended, "bytes": size})
        if under_way:
            open_file = name
            self._write(_OPEN, name, to_table(under_way, manifest.columns, schema))
        manifest.files, manifest.open_file, manifest.commits = files, open_file, number
        manifest.steps = sum(int(file["rows"]) for file in files)
        manifest.episodes = sum(int(file["episodes"]) for file in files)
        self._write_manifest(manifest)
        if old:
            (self.folder / _OPEN / old).unlink(missing_ok=True)

    def close(self) -> None:
        """Let others record into it."""
        self._lock.close()

    # ---- inside

    def _known(self) -> Manifest:
        if self.manifest is None:
            raise DataError(f"{self.folder} holds no recording yet")
        return self.manifest

    def _write(self, part: str, name: str, table: pa.Table) -> int:
        """One file, durably; its bytes."""
        path = self.folder / part / name
        write_parquet(path, table)
        return path.stat().st_size

    def _write_manifest(self, manifest: Manifest) -> None:
        write_json(self.folder / MANIFEST, manifest.as_json())

    def _sweep(self, manifest: Manifest) -> None:
        """Remove what a process that died in a commit left."""
        named = {_DATA: {str(file["name"]) for file in manifest.files}, _OPEN: {manifest.open_file}}
        for part, names in named.items():
            for path in [*(self.folder / part).glob("part-*.parquet"), *(self.folder / part).glob(".part-*.tmp")]:
                if path.name not in names:
                    path.unlink(missing_ok=True)


def data_files(folder: Path, manifest: Manifest) -> list[Path]:
    """Every file of steps, in the order of recording."""
    return [folder / _DATA / str(file["name"]) for file in manifest.files]
