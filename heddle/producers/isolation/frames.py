"""Frames: the messages between a worker and the child of a shard: a kind, an environment, and bytes.

Numbers of steps travel in the block; a frame only says whose turn it is, or carries JSON or a snapshot.
"""

import struct
from dataclasses import dataclass

HEADER = struct.Struct("<BIQ")
"""kind, environment, length of the payload"""

NOBODY = 0xFFFF_FFFF
"""In place of an environment."""

MAKE, ROUND, RESET, SAVE, RESTORE, CHECK, CLOSE = range(1, 8)
"""What a worker asks for."""
DONE, FAILED = 64, 65
"""What a child answers."""

OUT_OF_MEMORY, HUNG_UP = 71, 72
"""Exit codes of a child that had not even the memory to say so, and of one whose line was closed by the user's code."""

MOST_BYTES = 1 << 30
"""Longest payload; a child that announces more has lost its wits."""


class BrokenFrame(Exception):
    """Bytes that are no frame."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One message."""

    kind: int
    env: int
    payload: bytes


def pack(kind: int, env: int = NOBODY, payload: bytes = b"") -> bytes:
    """The bytes of a frame."""
    return HEADER.pack(kind, env, len(payload)) + payload


class Intake:
    """Puts what arrives together to frames."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def take(self, data: bytes) -> Frame | None:
        """Add `data`; the next frame, when it is whole.

        Raises:
            BrokenFrame: it announces more than `MOST_BYTES`.
        """
        self._bytes += data
        if len(self._bytes) < HEADER.size:
            return None
        kind, env, length = HEADER.unpack_from(self._bytes)
        if length > MOST_BYTES:
            raise BrokenFrame(f"a message of {length} bytes was announced")
        end = HEADER.size + length
        if len(self._bytes) < end:
            return None
        frame = Frame(kind, env, bytes(self._bytes[HEADER.size : end]))
        del self._bytes[:end]
        return frame
