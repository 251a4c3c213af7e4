"""The subject: what this process, and what this thread just now, is at work on, for whoever writes log lines of it.

It never writes one, and nothing decides by it.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

Subject = Mapping[str, str | int]

PRINTED = "heddle.printed"
"""Logger of lines that user code printed where we read them first; such a record has its line as `printed`, and what
it is about as `subject`."""

_process: dict[str, str | int] = {}
_here: ContextVar[Subject] = ContextVar("subject", default={})  # noqa: B039  never changed, always replaced


def this_process_is(**names: str | int) -> None:
    """All that this process says is about these from now on, e.g. worker = its id."""
    _process.update(names)


@contextmanager
def about(subject: Subject) -> Iterator[None]:
    """What this thread says within is about these, e.g. experiment, shard and epoch."""
    before = _here.set(subject)
    try:
        yield
    finally:
        _here.reset(before)


def subject() -> dict[str, str | int]:
    """What a line of this thread is about now."""
    return {**_process, **_here.get()}


def here() -> Subject:
    """As `subject`, without what the whole process is about."""
    return _here.get()
