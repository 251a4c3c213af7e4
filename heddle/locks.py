"""Locks on files that are this process's alone: a fork of it that lives on holds none of them.

The system lets go of a lock (flock) once nobody has what was opened open any more, and a fork has open whatever its
parent had: environments of a vector are forked, loaders of data are. It never waits by itself.
"""

import contextlib
import fcntl
import os
import weakref

_all: "weakref.WeakSet[Held]" = weakref.WeakSet()


class Held:
    """Something opened and locked; let go of when it is closed or collected, with this process at the latest.

    Attributes:
        descriptor: of it, -1 once it was let go of, and in a fork.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        _all.add(self)

    def close(self) -> None:
        """Let go of it; again is no mistake."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            with contextlib.suppress(OSError):  # where there are no locks
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # also for a fork that was made past Python
            os.close(descriptor)

    def leave(self) -> None:
        """In a fork: it is the parent's, and stays so."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()


def take(descriptor: int, kind: int) -> Held:
    """Lock what a descriptor has open, which is the lock's from now on.

    Args:
        kind: as of `fcntl.flock`.

    Raises:
        BlockingIOError: another has it, and `kind` says not to wait. The descriptor is closed.
        OSError: there are no locks here; likewise.
    """
    try:
        fcntl.flock(descriptor, kind)
    except OSError:
        os.close(descriptor)
        raise
    return Held(descriptor)


def _leave_all() -> None:
    for held in list(_all):
        held.leave()


os.register_at_fork(after_in_child=_leave_all)
