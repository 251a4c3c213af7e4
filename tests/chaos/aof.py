"""The tap: follows a server's append-only file and gives out every write it keeps, in the order of execution.

It never connects to the server, so it sees entries that live for a millisecond, and what it saw before a SIGKILL is
what the server still knows after it. Commands of one script or transaction come together.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

Command = list[bytes]
Group = list[Command]

_NAME = re.compile(r"appendonly\.aof\.(\d+)\.incr\.aof")
_CHUNK_BYTES = 4 << 20


class TornFile(Exception):
    """The file holds something that is no command."""


@dataclass(slots=True)
class _Part:
    """One incremental file: open, with the offset up to which whole groups were given out."""

    number: int
    file: BinaryIO
    taken: int = 0
    tail: bytes = b""


class Tap:
    """Reads `folder/appendonlydir` as it grows."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "appendonlydir"
        self._parts: list[_Part] = []
        self._next = 0

    def poll(self) -> list[Group]:
        """What was executed since the last call."""
        self._find_parts()
        groups: list[Group] = []
        while self._parts:
            part = self._parts[0]
            while data := part.file.read(_CHUNK_BYTES):
                part.tail += data
                new, used = parse(part.tail)
                groups += new
                part.tail = part.tail[used:]
                part.taken += used
            if len(self._parts) == 1:
                return groups
            if part.tail:
                raise TornFile(f"file {part.number} ends in the middle of a command")
            part.file.close()
            self._parts.pop(0)
        return groups

    def resume(self) -> int:
        """The server was killed and may cut off a half-written end: forget it. Returns how many bytes that are."""
        forgotten = 0
        for part in self._parts:
            forgotten += len(part.tail)
            part.file.seek(part.taken)
            part.tail = b""
        return forgotten

    def close(self) -> None:
        """Close the files."""
        for part in self._parts:
            part.file.close()

    def _find_parts(self) -> None:
        if not self._folder.is_dir():
            return
        for path in sorted(self._folder.iterdir(), key=_number):
            if (number := _number(path)) > max(self._next - 1, 0):
                self._parts.append(_Part(number, path.open("rb")))
                self._next = number + 1


def _number(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    return int(match[1]) if match else 0


def parse(data: bytes) -> tuple[list[Group], int]:
    """Whole groups at the start of `data`, and how many bytes they take.

    Raises:
        TornFile: it is not a sequence of commands.
    """
    groups: list[Group] = []
    block: Group | None = None
    at = used = 0
    while (found := _command(data, at)) is not None:
        command, at = found
        verb = command[0].upper() if command else b""
        if verb == b"MULTI":
            block = []
        elif verb == b"EXEC":
            groups.append(block or [])
            block = None
        elif block is not None:
            block.append(command)
        elif command:
            groups.append([command])
        if block is None:
            used = at
    return groups, used


def _command(data: bytes, at: int) -> tuple[Command, int] | None:
    """The command at `at` and where the next one starts; None when it is not whole. A comment is an empty command."""
    end = data.find(b"\r\n", at)
    if end < 0:
        return None
    if data[at : at + 1] == b"#":
        return [], end + 2
    if data[at : at + 1] != b"*":
        raise TornFile(f"expected a command, found {data[at : at + 40]!r}")
    count, at = int(data[at + 1 : end]), end + 2
    words = []
    for _ in range(count):
        end = data.find(b"\r\n", at)
        if end < 0:
            return None
        size, begin = int(data[at + 1 : end]), end + 2
        if begin + size + 2 > len(data):
            return None
        words.append(data[begin : begin + size])
        at = begin + size + 2
    return words, at
