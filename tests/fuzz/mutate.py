"""Mutations of bytes: what goes wrong on disks and wires, and what somebody with an editor does.

Everything follows from the generator that is passed in.
"""

import struct
from collections.abc import Callable, Sequence

import numpy as np

WORDS = (0, 1, -1, 7, 255, 256, 1 << 15, (1 << 31) - 1, -(1 << 31), 0x7FFFFFF8, 0x10000000)
LONGS = (0, -1, 1 << 31, 1 << 32, (1 << 62), (1 << 63) - 1, -(1 << 63), 1 << 40)


def mutated(data: bytes, rng: np.random.Generator, others: Sequence[bytes], *, front: int = 4_096) -> bytes:
    """One to six changes of `data`.

    Args:
        others: samples from which pieces are spliced in.
        front: half of all changes hit so many bytes in front, where the headers are.
    """
    changed = bytearray(data)
    for _ in range(int(rng.choice([1, 1, 1, 1, 2, 3, 6]))):
        if len(changed) < 16:
            break
        MUTATIONS[int(rng.integers(len(MUTATIONS)))](changed, _Front(rng, front), others)
    return bytes(changed)


class _Front:
    """A generator that also draws places, every second one near the front."""

    def __init__(self, rng: np.random.Generator, front: int) -> None:
        self.rng = rng
        self.front = front

    def place(self, data: bytearray, margin: int = 0) -> int:
        reach = len(data) if self.rng.random() < 0.5 else min(len(data), self.front)
        return int(self.rng.integers(0, max(1, reach - margin)))

    def below(self, most: int) -> int:
        return int(self.rng.integers(0, most))


def _flip(data: bytearray, at: _Front, _others: Sequence[bytes]) -> None:
    data[at.place(data)] ^= 1 << at.below(8)


def _byte(data: bytearray, at: _Front, _others: Sequence[bytes]) -> None:
    data[at.place(data)] = at.below(256)


def _word(data: bytearray, at: _Front, _others: Sequence[bytes]) -> None:
    place = at.place(data, 4) & ~3
    data[place : place + 4] = struct.pack("<i", WORDS[at.below(len(WORDS))])


def _long(data: bytearray, at: _Front, _others: Sequence[bytes]) -> None:
    place = at.place(data, 8) & ~7
    data[place : place + 8] = struct.pack("<q", LONGS[at.below(len(LONGS))])


def _nudge(data: bytearray, at: _Front, _others: Sequence[bytes]) -> None:
    """An offset, a length or a count that is a little off."""
    place = at.place(data, 4) & ~3
    if place + 4 <= len(data):
        (value,) = struct.unpack_from("<I", data, place)
        data[place : place + 4] = struct.pack("<I", (value + at.below(17) - 8) % (1 << 32))


def _cut(data: bytearray, at: _Front, _others: Sequence[bytes]) -> None:
    del data[at.place(data) :]


def _remove(data: bytearray, at: _Front, _others: Sequence[bytes]) -> None:
    place = at.place(data)
    del data[place : place + 1 + at.below(64)]


def _extend(data: bytearray, at: _Front, _others: Sequence[bytes]) -> None:
    data.extend(at.rng.bytes(1 + at.below(64)))


def _double(data: bytearray, at: _Front, _others: Sequence[bytes]) -> None:
    place = at.place(data)
    data[place:place] = data[place : place + 1 + at.below(64)]


def _zero(data: bytearray, at: _Front, _others: Sequence[bytes]) -> None:
    place = at.place(data, 32)
    size = min(1 + at.below(32), len(data) - place)
    data[place : place + size] = bytes(size)


def _swap(data: bytearray, at: _Front, _others: Sequence[bytes]) -> None:
    one, other = at.place(data, 8) & ~7, at.place(data, 8) & ~7
    data[one : one + 8], data[other : other + 8] = data[other : other + 8], data[one : one + 8]


def _splice(data: bytearray, at: _Front, others: Sequence[bytes]) -> None:
    """A piece of another sample, from the same place or any."""
    other = others[at.below(len(others))]
    place = at.place(data)
    start = place if at.below(2) else at.below(max(1, len(other)))
    piece = other[start : start + 1 + at.below(256)]
    data[place : place + len(piece)] = piece


MUTATIONS: tuple[Callable[[bytearray, _Front, Sequence[bytes]], None], ...] = (
    *(_flip, _flip, _byte, _byte, _word, _word, _long, _nudge, _nudge),
    *(_cut, _remove, _extend, _double, _zero, _swap, _splice),
)
