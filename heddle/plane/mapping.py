"""A mapping: one file of shared memory as a reader has it open, for as many views as there are.

It never decides when it ends; the home does.
"""

import mmap
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Mapping:
    """The file at a path, opened for reading, not locked.

    Attributes:
        file: its descriptor. key: device and inode, nobody else's while it is open.
        pid: of who opened it: its lock is that one's, also while a fork has it open, too.
        size: its bytes.
        users: views, and whoever is about to make one.

    Raises:
        OSError: it cannot be opened.
    """

    def __init__(self, path: str) -> None:
        self.file, self.pid = -1, os.getpid()
        self._memory: mmap.mmap | None = None
        self.file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        found = os.fstat(self.file)
        self.key, self.size, self.users = (found.st_dev, found.st_ino), found.st_size, 0

    def memory(self) -> NDArray[Any]:
        """All its bytes, [size] uint8, as an object of its own each time: it lives as long as what looks through it."""
        if self._memory is None:
            self._memory = mmap.mmap(self.file, self.size, access=mmap.ACCESS_READ)
        return np.frombuffer(self._memory, np.uint8)

    def is_at(self, path: str) -> bool:
        """Whether `path` leads to it."""
        try:
            found = os.lstat(path)
        except FileNotFoundError:
            return False
        return (found.st_dev, found.st_ino) == self.key

    def is_over(self) -> bool:
        """Whether nobody looks at it, and nobody can find it any more."""
        return not self.users and os.fstat(self.file).st_nlink == 0

    def close(self) -> None:
        """Let go."""
        self._memory = None
        if self.file >= 0:
            os.close(self.file)
            self.file = -1

    def __del__(self) -> None:
        self.close()
