"""TensorBoard's event files: records that are whole or not there, and where each of ours ends.

It never changes a file that another process began: TensorBoard may be reading it.
"""

import struct
from collections.abc import Iterator
from pathlib import Path

SUFFIX = ".heddle"
_HEADER, _FOOTER = 12, 4


def files_in(folder: Path) -> list[Path]:
    """Ours in a folder, oldest first."""
    return sorted(folder.glob(f"events.out.tfevents.*{SUFFIX}"))


def next_file(folder: Path, now_s: float, host: str) -> Path:
    """A name that sorts behind all there are, whatever the clock says: TensorBoard reads files in that order."""
    before = files_in(folder)
    fields = before[-1].name.split(".")[3:5] if before else ["0", "0"]
    seconds, number = max(int(now_s), int(fields[0])), int(fields[1]) + 1
    return folder / f"events.out.tfevents.{seconds:010d}.{number:06d}.{host.replace('.', '-')}{SUFFIX}"


def records(path: Path) -> Iterator[bytes]:
    """The whole records of a file; one that a death cut short ends it.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        while len(header := file.read(_HEADER)) == _HEADER:
            (length,) = struct.unpack("<Q", header[:8])
            data = file.read(length + _FOOTER)
            if len(data) < length + _FOOTER:
                return
            yield data[:-_FOOTER]
