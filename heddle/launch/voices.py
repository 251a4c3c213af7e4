"""Voices: what user code prints in the processes of a launcher, for the log in the broker that everybody reads.

It never sends and never waits. The log is short and many write to it, so a process that prints at every step has its
first lines there and the rest counted; all of them are in its log file.
"""

import re
import threading
from collections.abc import Sequence

from heddle.broker.lines import LINE_CHARS, PRINTED, Line
from heddle.clock import Clock, SystemClock
from heddle.launch.said import is_marked, printed_in
from heddle.ration import Ration
from heddle.subject import Subject

BURST, PER_SECOND = 20, 1.0
"""Lines of one process: so many at once, and then as they come back."""
MOST_WAITING = 100
"""Lines of all processes here that were not sent yet."""
NOTHING: Subject = {}
_OURS = re.compile(r"\d\d:\d\d:\d\d [A-Z]+ +heddle\b|\{.*\"logger\":\s*\"heddle\b")


class Voices:
    """Lines of this host's processes. From any thread."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._speakers: dict[tuple[str, str | int | None], Ration] = {}
        self._waiting: list[Line] = []

    def hear(self, who: str, line: str, about: Subject = NOTHING) -> bool:
        """A process printed a line; whether there is one more to send. What Heddle itself says there is in the log by
        other ways.

        Args:
            who: that did, as it is named in the log.
            about: experiment, shard and epoch, as far as they are known; a line may say so itself.
        """
        if not line.strip():
            return False
        speaker = who, about.get("experiment")
        if (passed_on := printed_in(line) if _OURS.match(line) or is_marked(line) else None) is not None:
            about, line = {**about, **passed_on.about}, passed_on.line
        elif _OURS.match(line):
            return False
        now = self._clock.monotonic()
        with self._lock:
            ration = self._speakers.setdefault(speaker, Ration.full(BURST, PER_SECOND, now))
            if len(self._waiting) >= MOST_WAITING:
                ration.refused += 1
                return False
            if not ration.take(now):
                return False
            if refused := ration.take_refused():
                line = f"(left out {refused} lines, they are in its log file) {line}"
            self._waiting.append(_line(who, about, line[:LINE_CHARS]))
        return True

    def forget(self, who: str, experiment: str | None = None) -> None:
        """It ended; what it said last stays until it is taken."""
        with self._lock:
            self._speakers.pop((who, experiment), None)

    def take(self) -> list[Line]:
        """In order; each once."""
        with self._lock:
            taken, self._waiting = self._waiting, []
        return taken

    def give_back(self, lines: Sequence[Line]) -> None:
        """They could not be sent: first again, as far as there is room."""
        with self._lock:
            self._waiting = [*lines, *self._waiting][:MOST_WAITING]


def _line(who: str, about: Subject, said: str) -> Line:
    experiment, shard, epoch = about.get("experiment"), about.get("shard"), about.get("epoch")
    return Line(
        None if experiment is None else str(experiment),
        PRINTED,
        who,
        "info",
        said,
        shard=None if shard is None else int(shard),
        epoch=None if epoch is None else int(epoch),
    )
