"""The origin of children: interpreter, variables and search path as they were before user code ran in their worker.

It never looks at them again: an inline environment may clear `sys.path`, change the variables or leave the working
directory, and the children of other experiments start all the same.
"""

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Origin:
    """What children are started with.

    Attributes:
        executable: the interpreter. variables: the environment, secrets included. paths: where code is found, all of
            them absolute, the working directory among them: children run elsewhere.
    """

    executable: str
    variables: Mapping[str, str]
    paths: tuple[str, ...]


_kept: Origin | None = None


def origin() -> Origin:
    """The one that was kept; as everything is now where nothing was."""
    return _kept or _look()


@contextmanager
def kept() -> Iterator[None]:
    """Within it children are started with what is found now."""
    global _kept
    before, _kept = _kept, _look()
    with suppress(FileNotFoundError):  # nowhere to write to: who isolates will say so, nobody else needs it
        tempfile.gettempdir()  # decides where homes are, once, by variables and working directory
    try:
        yield
    finally:
        _kept = before


def _look() -> Origin:
    try:
        here = [str(Path.cwd())]
    except FileNotFoundError:  # somebody removed it: nothing is found there
        here = []
    paths = [str(Path(*here, entry)) for entry in sys.path if entry or here]  # "" is the working directory itself
    return Origin(sys.executable, dict(os.environ), (*paths, *(entry for entry in here if entry not in paths)))
