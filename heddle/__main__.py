"""The entry of the command `heddle` and of `python -m heddle`: loads the command line and runs it.

It never does anything else, but that a Ctrl-C while it loads ends it without a traceback, and that its end is quick.
"""

# ruff: noqa: E402, I001  the first import takes microseconds, the next ones milliseconds in which a Ctrl-C may come
import _signal  # type: ignore[import-not-found]

HEARD = _signal.getsignal(_signal.SIGINT)
IS_PROGRAM = __name__ == "__main__" and HEARD is _signal.default_int_handler
if IS_PROGRAM:
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)

import atexit
import contextlib
import os
import signal
import sys
from typing import NoReturn

from heddle.quick_exit import FAILED, QuickExit

INTERRUPTED = 130


def fill_streams() -> None:
    """Give a process that was started with standard streams closed ones that lead nowhere.

    Else the first socket or file that it opens has their number, and what a child prints goes in there.
    """
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))


def look_elsewhere_first() -> None:
    """Undo what `python -m` does: a `random.py` in the working directory would hide the library's from everybody.

    The command line appends that directory, so that user code is found there.
    """
    # pathlib would itself be looked for there
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
    with contextlib.suppress(OSError):  # it is gone: told later
        here = os.getcwd()  # noqa: PTH109
        if sys.path and sys.path[0] == here != root:
            del sys.path[0]


def main() -> NoReturn:
    """Run `heddle`, and exit."""
    fill_streams()
    look_elsewhere_first()
    end = QuickExit()
    atexit.register(end.leave)
    heard = HEARD if IS_PROGRAM else signal.getsignal(signal.SIGINT)
    if heard is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from heddle.cli import main as run

    if heard is signal.default_int_handler:
        signal.signal(signal.SIGINT, heard)
    try:
        run()
    except SystemExit as ended:
        end.code = ended.code if isinstance(ended.code, int) else FAILED if ended.code else 0
        raise
    except KeyboardInterrupt:
        end.code = INTERRUPTED
        raise


if __name__ == "__main__":
    main()
