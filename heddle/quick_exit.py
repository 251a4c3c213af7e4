"""The quick end of a program: libraries are not taken apart.

It never skips what somebody waits for: threads are joined, exit handlers run, output is flushed.
"""

import contextlib
import os
import sys
from typing import ClassVar

FAILED = 1
STUCK_CODE, HURRIED_CODE = 70, 130
"""Of a role that named the call which hung, and of one that was told to end twice."""


class QuickExit:
    """Ends this process once threads are joined and exit handlers have run, with what was imported left as it is.

    The interpreter would take torch and its like apart piece by piece first: half a second and more, in which nothing
    is done for anybody.

    Attributes:
        code: the exit status; that of an error that nobody expected until it is set.
        kept: that of this program, if it ends so.
    """

    kept: ClassVar["QuickExit | None"] = None

    def __init__(self) -> None:
        self.code = FAILED
        self.keep()

    def keep(self) -> None:
        """This process is the one to end so, also when it is a fork of the one that said so first."""
        QuickExit.kept, self._pid = self, os.getpid()

    def leave(self) -> None:
        """For `atexit`: registered before all others, it is called after them."""
        if os.getpid() != self._pid:
            return  # a fork of us, which ends its own way
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):  # whoever read it went away, or it was closed
                stream.flush()
        os._exit(self.code)
