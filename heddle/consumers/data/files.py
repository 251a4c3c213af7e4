"""Files and folders of recorded experience that are there whole or not at all, durably.

It never reads one.
"""

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from heddle.durable import sync_folder
from heddle.errors import Conflict, DataError
from heddle.locks import take


@contextlib.contextmanager
def workshop(target: Path) -> Iterator[Path]:
    """A folder beside `target` that becomes it when the block ends well, and is removed otherwise.

    Raises:
        Conflict: another process makes `target`, or it came to be meanwhile.
        DataError: the disk does not take it.
    """
    made = target.with_name(f".{target.name}.partial")
    try:
        made.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(made, os.O_RDONLY)
    except OSError as error:
        raise DataError(f"cannot write {made}: {error.strerror or error}") from error
    try:
        held = take(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise Conflict(f"another process makes {target}") from error
    try:
        if not made.exists() or made.stat().st_ino != os.fstat(descriptor).st_ino:
            raise Conflict(f"{target} came to be meanwhile")
        _empty(made)
        try:
            yield made
            sync_folder(made)
            if target.exists():
                raise Conflict(f"{target} came to be meanwhile")
            made.rename(target)
            sync_folder(target.parent)
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise
    finally:
        held.close()


def _empty(folder: Path) -> None:
    """Remove what a process that died left there."""
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def write_parquet(path: Path, table: pa.Table) -> None:
    """Write one file, durably, whole or not at all. Raises DataError."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            pq.write_table(table, file, compression="zstd")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise DataError(f"cannot write {path}: {error.strerror or error}") from error


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Replace a file by JSON, durably. Raises DataError."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(value, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror or error}") from error
