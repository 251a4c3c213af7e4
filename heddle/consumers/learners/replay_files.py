"""Replayed experience on disk: files that records are appended to, each record with its length and checksum.

A checkpoint names files and how many bytes of each it covers; what lies beyond is another writer's, or torn, and is
never looked at. Each writer has files of its own, so that one which lost its seat spoils nothing.
"""

import logging
import os
import secrets
import struct
import zlib
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from heddle.errors import CheckpointError

log = logging.getLogger("heddle.trainer")

_HEADER = struct.Struct("<4sQI")
_MAGIC = b"HRP1"
_SUFFIX = ".replay"


@dataclass(frozen=True, slots=True)
class Part:
    """The covered part of one file.

    Attributes:
        name: in the folder.
        size: bytes.
        first, count: its first segment, counted from the beginning of the run, and how many it holds.
    """

    name: str
    size: int
    first: int
    count: int

    def to_json(self) -> list[str | int]:
        """As a checkpoint holds it."""
        return [self.name, self.size, self.first, self.count]

    @classmethod
    def from_json(cls, value: list[str | int]) -> "Part":
        """The opposite of `to_json`. Raises ValueError."""
        name, size, first, count = value
        if Path(str(name)).name != name or not str(name).endswith(_SUFFIX):
            raise ValueError(f"{name!r} is no replay file")
        return cls(str(name), int(size), int(first), int(count))


class ReplayFiles:
    """The replay files of one experiment, in one folder.

    Args:
        roll_bytes: a file that has grown beyond this is followed by a new one.
    """

    def __init__(self, directory: Path, *, roll_bytes: int) -> None:
        self.directory = directory
        self._roll_bytes = roll_bytes
        self._parts: list[Part] = []
        self._own = False
        self._pending: list[tuple[bytes, int]] = []
        self._named: list[frozenset[str]] = []

    def add(self, record: bytes, segments: int) -> None:
        """Have the next `commit` write this record, which holds so many segments."""
        self._pending.append((record, segments))

    def commit(self, *, oldest: int, kept: int) -> list[Part]:
        """Make every record durable; the parts that hold segments from number `oldest` on.

        Files that none of the last `kept` answers named are deleted.

        Raises:
            CheckpointError: the disk does not take it; the next commit tries again.
        """
        try:
            if self._pending:
                self._write()
        except OSError as error:
            self._own = False  # whatever came of it, nothing is appended behind it
            raise CheckpointError(f"cannot write {self.directory}: {error.strerror or error}") from error
        self._parts = [part for part in self._parts if part.first + part.count > oldest]
        self._named = [*self._named[-kept:], frozenset(part.name for part in self._parts)]
        self._sweep(frozenset().union(*self._named))
        return list(self._parts)

    def read(self, parts: Collection[Part]) -> Iterator[bytes]:
        """The records of these parts, in order; what was added and not committed is forgotten.

        Raises:
            CheckpointError: a file is missing, torn or changed.
        """
        self._parts, self._pending, self._own = list(parts), [], False
        for part in parts:
            yield from self._records(part)
        self._sweep(frozenset(part.name for part in parts).union(*self._named))

    def _records(self, part: Part) -> Iterator[bytes]:
        path = self.directory / part.name
        try:
            data = path.read_bytes()[: part.size]
        except OSError as error:
            raise CheckpointError(f"cannot read {path}, which the checkpoint names: {error.strerror}") from error
        if len(data) < part.size:
            raise CheckpointError(f"{path} is torn: {len(data)} bytes, the checkpoint covers {part.size}")
        place = 0
        while place < part.size:
            head = data[place : place + _HEADER.size]
            magic, size, checksum = _HEADER.unpack(head) if len(head) == _HEADER.size else (b"", 0, 0)
            record = data[place + _HEADER.size : place + _HEADER.size + size]
            if magic != _MAGIC or len(record) != size or zlib.crc32(record) != checksum:
                raise CheckpointError(f"{path} is damaged at byte {place}")
            yield record
            place += _HEADER.size + size

    def _write(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        is_new = not self._own or self._parts[-1].size >= self._roll_bytes
        last = self._parts[-1] if self._parts else Part("", 0, 0, 0)
        if is_new:
            last = Part(f"{secrets.token_hex(8)}{_SUFFIX}", 0, last.first + last.count, 0)
        with (self.directory / last.name).open("xb" if is_new else "r+b") as file:
            file.seek(last.size)
            for record, _ in self._pending:
                file.write(_HEADER.pack(_MAGIC, len(record), zlib.crc32(record)))
                file.write(record)
            size = file.tell()
            file.flush()
            os.fsync(file.fileno())
        if is_new:
            _sync(self.directory)
        count = last.count + sum(segments for _, segments in self._pending)
        grown = Part(last.name, size, last.first, count)
        self._parts = [*self._parts, grown] if is_new else [*self._parts[:-1], grown]
        self._own, self._pending = True, []

    def _sweep(self, named: frozenset[str]) -> None:
        with suppress(FileNotFoundError):
            for path in self.directory.glob(f"*{_SUFFIX}"):
                if path.name not in named:
                    try:
                        path.unlink(missing_ok=True)
                    except OSError as error:
                        log.warning("cannot delete an old replay file path=%s error=%s", path, error)


def _sync(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
