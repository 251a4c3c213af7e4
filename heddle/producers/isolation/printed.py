"""What a child prints, as lines of its worker's log, from where they go the way of all that workers print.

It never waits and keeps nothing but the line that is not over yet: of a flood most lines are only counted.
"""

import logging

from heddle.clock import Clock
from heddle.quick_exit import keep_last_words
from heddle.ration import Ration
from heddle.subject import PRINTED, Subject

BURST, PER_SECOND = 100, 10.0
"""Lines of one child: so many at once, and then as they come back."""
LINE_BYTES = 2_000

log = logging.getLogger(PRINTED)


class Printed:
    """Passes on what one child prints.

    Args:
        subject: what its lines are about.
    """

    def __init__(self, subject: Subject, clock: Clock) -> None:
        self._clock = clock
        self._subject = dict(subject)
        self._ration = Ration.full(BURST, PER_SECOND, clock.monotonic())
        self._begun = b""
        named = {**subject, "shard": f"{subject['experiment']}/{subject['shard']}"} if "shard" in subject else subject
        self._is_over = keep_last_words(self, Printed.close)
        self._head = " ".join(f"{name}={value}" for name, value in named.items() if name != "experiment")

    def take(self, data: bytes) -> None:
        """It printed these bytes; the lines that are over now are passed on, as many as it may say."""
        if not log.isEnabledFor(logging.INFO):
            return
        whole, _, rest = (self._begun + data).rpartition(b"\n")
        self._begun = rest[:LINE_BYTES]
        now = self._clock.monotonic()
        lines = whole.split(b"\n", BURST)
        for line in lines[:BURST]:
            if line.strip() and self._ration.take(now):
                self._pass_on(line)
        if len(lines) > BURST:
            self._ration.refused += lines[BURST].count(b"\n") + 1

    def close(self) -> None:
        """Nothing more will come, or this process ends at once: what stands there without an end is a line, too."""
        self._is_over()
        begun, self._begun = self._begun, b""
        if begun.strip() and log.isEnabledFor(logging.INFO) and self._ration.take(self._clock.monotonic()):
            self._pass_on(begun)

    def _pass_on(self, line: bytes) -> None:
        text = "".join(c if c.isprintable() or c == "\t" else " " for c in line[:LINE_BYTES].decode("utf-8", "replace"))
        if refused := self._ration.take_refused():
            text = f"(left out {refused} lines) {text}"
        log.info("%s | %s", self._head, text.rstrip(), extra={"printed": text.rstrip(), "subject": self._subject})
