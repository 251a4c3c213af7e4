"""All trackers of one experiment in one process, each in a thread and on a connection of its own.

One that hangs or fails never keeps the others from going on. When asked to end they have a bounded time for it.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from heddle.clock import Clock, SystemClock
from heddle.consumers.tracking.base import Backend, Source, in_short
from heddle.consumers.tracking.tracker import Told, Tracker
from heddle.errors import HeddleError, TrackerDown
from heddle.stop import StopFlag

log = logging.getLogger("heddle.track")

LEAVE_S = 25.0
"""How long trackers may take for what is there once they were asked to end; who started them kills after 30 s."""


@dataclass(slots=True)
class Crew:
    """Feeds every backend until all are done, or the stop flag is raised.

    Attributes:
        left: trackers that were not through when there was no more time.

    Args:
        connect: opens a connection, or the folder of a run.
        makers: make the backends, by kind; each in its own thread, for it may load a library for long.
        directory: where runs leave their checkpoints here; None sends none.
    """

    connect: Callable[[], Source]
    experiment: str
    makers: Mapping[str, Callable[[], Backend]]
    stop: StopFlag
    directory: Path | None = None
    clock: Clock = field(default_factory=SystemClock)
    left: list[str] = field(default_factory=list)
    _errors: dict[str, HeddleError] = field(default_factory=dict)
    _trackers: dict[str, Tracker] = field(default_factory=dict)

    def run(self) -> list[Told]:
        """How far each came.

        Raises:
            HeddleError: what one of them ended with, once the others are through.
        """
        threads = [
            threading.Thread(target=self._feed, args=(kind, make), name=kind, daemon=True)
            for kind, make in self.makers.items()
        ]
        for thread in threads:
            thread.start()
        deadline: float | None = None
        while alive := [thread for thread in threads if thread.is_alive()]:
            alive[0].join(0.1)
            if self.stop.draining:
                deadline = deadline or self.clock.monotonic() + LEAVE_S
                if self.clock.monotonic() >= deadline:
                    self.left = [thread.name for thread in alive]
                    log.warning("left without the last points of %s", ", ".join(self.left))
                    break
        if self._errors:
            raise next(iter(self._errors.values()))
        return [self._trackers[kind].told if kind in self._trackers else Told(kind, "") for kind in self.makers]

    def _feed(self, kind: str, make: Callable[[], Backend]) -> None:
        try:
            with contextlib.closing(self.connect()) as broker:
                tracker = Tracker(broker, self.experiment, make(), stop=self.stop, directory=self.directory)
                self._trackers[kind] = tracker
                tracker.run()
        except HeddleError as error:
            log.error("tracker %s ended: %s", kind, error)
            self._errors[kind] = error
        except Exception as error:  # top of a thread: raised again by `run`, in words that say whose it is
            log.exception("tracker %s ended", kind)
            what = f"{type(error).__name__}: {in_short(error)}"
            self._errors[kind] = TrackerDown(f"the library of {kind} failed, and its tracker ended: {what}")
