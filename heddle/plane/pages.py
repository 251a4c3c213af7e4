"""Pages: a shared file mapped for writing so that the kernel can hold it in large pages.

An image of 28 kB that is written touches seven pages of 4 kB, and most of these are not at hand any more when a buffer
of 15 MB comes round again. It never fails for want of large pages: the bytes are the same.
"""

import ctypes
import functools
import mmap
import os
import sys
import weakref
from pathlib import Path
from typing import Any

_LARGE = Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")
MOST_LARGE = 4 << 20
"""Larger ones (512 MB, where small pages have 64 kB) would hold more than a batch."""
_MAP_FIXED, _MADV_COLLAPSE = 0x10, 25  # of Linux, which Python 3.11 does not name


def writable(file: int, size: int) -> memoryview:
    """`size` bytes of an open file, shared; they begin where a large page may. Raises OSError and ValueError."""
    large, system = large_page(), _system()
    if system is None or size < large or not large:
        return memoryview(mmap.mmap(file, size))
    whole = size + large
    place = _mapped(system.mmap(None, whole, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0))
    start = -(-place // large) * large
    try:  # over what was just mapped, so that nobody else is there
        _mapped(system.mmap(start, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | _MAP_FIXED, file, 0))
    except OSError:
        system.munmap(place, whole)
        raise
    memory = (ctypes.c_ubyte * size).from_address(start)
    weakref.finalize(memory, system.munmap, place, whole).atexit = False
    return memoryview(memory).cast("B")


def enlarge(memory: memoryview) -> bool:
    """Have the kernel put what `writable` gave into large pages, as far as it fills such; whether it did.

    Takes some milliseconds, for it is copied. Whoever reads or writes meanwhile notices nothing.
    """
    large, system = large_page(), _system()
    if system is None or not large or len(memory) < large:
        return False
    start = ctypes.addressof(ctypes.c_ubyte.from_buffer(memory))
    if start % large:
        return False
    return bool(system.madvise(start, len(memory) // large * large, _MADV_COLLAPSE) == 0)


@functools.cache
def large_page() -> int:
    """Bytes of a large page; 0 where there are none."""
    try:
        size = int(_LARGE.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0
    return size if size <= MOST_LARGE else 0


@functools.cache
def _system() -> Any:
    """The C library's calls; None where they are not known to be those of Linux."""
    if sys.platform != "linux":
        return None
    found = ctypes.CDLL(None, use_errno=True)
    found.mmap.restype = ctypes.c_void_p
    found.mmap.argtypes = [
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_long,
    ]
    found.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    found.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return found


def _mapped(place: int | None) -> int:
    if place is None or place == ctypes.c_void_p(-1).value:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return place
