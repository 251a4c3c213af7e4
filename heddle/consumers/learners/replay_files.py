"""Replayed experience on disk: files that records are appended to, each record with its length and checksum. A record
holds segments, or what changed of the priorities since the record before.

A checkpoint names files and how many bytes of each it covers; what lies beyond is another writer's, or torn, and is
never looked at. Each writer has files of its own, with its seat epoch in their names. Writing and reading delete
nothing: `keep` does, told what the checkpoints on disk name, and never a file of a later seat. So a writer that lost
its seat spoils nothing.
"""

import logging
import os
import re
import secrets
import struct
import zlib
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from heddle.durable import sync_folder
from heddle.errors import CheckpointError

log = logging.getLogger("heddle.trainer")

_HEADER = struct.Struct("<4sQI")
_MAGICS = {b"HRP1": False, b"HRPP": True}
"""Beginnings of records, and whether such a one holds priorities."""
_SUFFIX = ".replay"
_NAME = re.compile(r"(\d{20})-[0-9a-f]{16}\.replay")


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


@dataclass(frozen=True, slots=True)
class Record:
    """Bytes that are written together: segments `first` to `first + count - 1` of the run.

    Attributes:
        is_priorities: they are changed priorities of segments before `first` instead, and `count` is 0.
    """

    data: bytes
    first: int
    count: int
    is_priorities: bool = False

    def packed(self) -> bytes:
        """With its header."""
        magic = next(magic for magic, is_priorities in _MAGICS.items() if is_priorities == self.is_priorities)
        return _HEADER.pack(magic, len(self.data), zlib.crc32(self.data)) + self.data


class ReplayFiles:
    """The replay files of one experiment, in one folder, as the holder of one seat epoch writes them.

    Args:
        roll_bytes: a file that has grown beyond this is followed by a new one.
    """

    def __init__(self, directory: Path, *, roll_bytes: int, seat_epoch: int = 0) -> None:
        self.directory = directory
        self._roll_bytes = roll_bytes
        self._seat_epoch = seat_epoch
        self._parts: list[Part] = []
        self._own = False
        self._pending: deque[Record] = deque()

    def add(self, record: Record, *, oldest: int) -> None:
        """Have the next `commit` write this; what waits for it and ended before segment `oldest` never will be."""
        self._pending.append(record)
        while self._pending and self._pending[0].first + self._pending[0].count <= oldest:
            self._pending.popleft()

    def commit(self, *, oldest: int, anew: Callable[[], Iterable[Record]], also: Collection[Record] = ()) -> list[Part]:
        """Make every record durable; the parts that hold segments from number `oldest` on.

        Args:
            also: records behind those that were added, this time only.
            anew: everything from `oldest` on, for when files are gone that held some of it.

        Raises:
            CheckpointError: the disk does not take it, and nothing of it stays there; the next commit tries again.
        """
        parts = [part for part in self._parts if part.first + part.count > oldest]
        try:
            if lost := [part.name for part in parts if not self._is_there(part)]:
                log.warning("replay files are gone, writes all anew directory=%s files=%s", self.directory, lost)
                self._own, parts = False, self._write([], anew())
            else:
                parts = self._write(parts, [*self._pending, *also])
        except OSError as error:
            self._own = False  # whatever came of it, nothing is appended behind it
            raise CheckpointError(f"cannot write {self.directory}: {error.strerror or error}") from error
        self._pending.clear()
        self._parts = parts
        return list(parts)

    def read(self, parts: Collection[Part]) -> Iterator[tuple[bool, bytes]]:
        """The records of these parts, in order, and whether each holds priorities; what was not committed is forgotten.

        Raises:
            CheckpointError: a file is missing, torn or changed.
        """
        self._parts, self._own = list(parts), False
        self._pending.clear()
        for part in parts:
            yield from self._records(part)

    def keep(self, names: Collection[str]) -> None:
        """Delete files that are neither among these nor in use, but none of a later seat; trouble is no trouble."""
        kept = {*names, *(part.name for part in self._parts)}
        with suppress(FileNotFoundError):
            for path in self.directory.glob(f"*{_SUFFIX}"):
                match = _NAME.fullmatch(path.name)
                if path.name in kept or (match is not None and int(match[1]) > self._seat_epoch):
                    continue
                try:
                    path.unlink(missing_ok=True)
                except OSError as error:
                    log.warning("cannot delete an old replay file path=%s error=%s", path, error)

    def _records(self, part: Part) -> Iterator[tuple[bool, bytes]]:
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
            if magic not in _MAGICS or len(record) != size or zlib.crc32(record) != checksum:
                raise CheckpointError(f"{path} is damaged at byte {place}")
            yield _MAGICS[magic], record
            place += _HEADER.size + size

    def _is_there(self, part: Part) -> bool:
        try:
            return (self.directory / part.name).stat().st_size >= part.size
        except FileNotFoundError:
            return False

    def _write(self, parts: list[Part], records: Iterable[Record]) -> list[Part]:
        """`parts` and what holds these records. Raises OSError; then nothing of them is left on the disk."""
        grown, made = list(parts), list[str]()
        tail = parts[-1] if parts and self._own else None
        waiting = iter(records)
        record = next(waiting, None)
        try:
            while record is not None:
                part = grown.pop() if grown and (made or self._own) else None
                if part is None or part.size >= self._roll_bytes:
                    grown += [part] if part is not None else []
                    part = self._begun(record.first)
                    made.append(part.name)
                with (self.directory / part.name).open("r+b") as file:
                    file.seek(part.size)
                    while record is not None and part.size < self._roll_bytes:
                        file.write(record.packed())
                        part = replace(part, size=file.tell(), count=part.count + record.count)
                        record = next(waiting, None)
                    file.flush()
                    os.fsync(file.fileno())
                grown.append(part)
            if made:
                sync_folder(self.directory)
        except OSError:
            self._undo(made, tail)
            raise
        self._own = self._own or bool(made)
        return grown

    def _begun(self, first: int) -> Part:
        """A new, empty file, in a folder that survives a power cut."""
        if not self._own:
            self.directory.mkdir(parents=True, exist_ok=True)
            sync_folder(self.directory.parent)
        part = Part(f"{self._seat_epoch:020d}-{secrets.token_hex(8)}{_SUFFIX}", 0, first, 0)
        (self.directory / part.name).open("xb").close()
        return part

    def _undo(self, made: list[str], tail: Part | None) -> None:
        """Take away what a write left that failed: a full disk needs the room."""
        for name in made:
            with suppress(OSError):
                (self.directory / name).unlink(missing_ok=True)
        if tail is not None:
            with suppress(OSError):
                os.truncate(self.directory / tail.name, tail.size)
