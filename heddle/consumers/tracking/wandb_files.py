"""W&B's own record of a run on disk: which rows are in it for good.

It never writes there. The files are logs of blocks, as LevelDB has them, of the messages that W&B's own package names.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK = 32 * 1024
BEGIN = 7
"""Length of the file's own header, and of that of each record."""
WHOLE, FIRST, MIDDLE, LAST = 1, 2, 3, 4


class RunFile:
    """Reads the rows of one file as it grows.

    Args:
        record: W&B's message of a record.
    """

    def __init__(self, path: Path, record: Any) -> None:
        self._path = path
        self._record = record
        self._at = BEGIN
        self._cut = b""

    def rows(self) -> Iterator[int]:
        """The number of each row that came since the last look. Raises OSError."""
        for data in self.records():
            message = self._record.FromString(data)
            if message.WhichOneof("record_type") == "history":
                yield int(message.history.step.num)

    def records(self) -> Iterator[bytes]:
        """Each whole record that came since the last look, the bytes of W&B's message of it. Raises OSError."""
        with self._path.open("rb") as file:
            while True:
                left = BLOCK - self._at % BLOCK
                if left < BEGIN:
                    self._at += left
                    continue
                file.seek(self._at)
                header = file.read(BEGIN)
                if len(header) < BEGIN:
                    return
                _, length, kind = struct.unpack("<IHB", header)
                data = file.read(length)
                if kind not in (WHOLE, FIRST, MIDDLE, LAST) or len(data) < length:
                    return
                self._at += BEGIN + length
                self._cut = data if kind in (WHOLE, FIRST) else self._cut + data
                if kind in (WHOLE, LAST):
                    yield self._cut


def files_of(folder: Path, run: str) -> list[Path]:
    """The files of a run, of each process that wrote it, oldest first."""
    return sorted(folder.glob(f"wandb/*run-*-{run}/run-{run}.wandb"))
