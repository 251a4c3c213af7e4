"""One experiment run in one terminal: services, experiment and trainer, from start to the last word.

It never prints; who shows it calls `step` and reads `over`, and takes what happened from `told`.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from heddle.clock import Clock, SystemClock
from heddle.errors import HeddleError
from heddle.launch.children import Ending, Role
from heddle.launch.local import Local
from heddle.stop import StopFlag

log = logging.getLogger("heddle.launch")

TRAINER_DONE = (4, 8)
"""Removed meanwhile; trained by somebody else: not to be started again."""
HOPELESS = (2, 3, 6)
"""Usage, spec, rights: starting again cannot help."""
MOST_FAILURES = 5
LAST_WORD_S = 5.0
STOP_S = 60.0


class Watched(Protocol):
    """What a session must know of its experiment at each step."""

    @property
    def outcome(self) -> str:
        """What the trainer said of its end; "" before."""
        ...

    @property
    def ended(self) -> bool:
        """Its state is final, or it is gone."""
        ...

    def look(self) -> None:
        """Ask the broker now instead of the next time."""
        ...


@dataclass(slots=True)
class Session:
    """Runs a submitted experiment's trainer beside the services, until it is over.

    Attributes:
        local: the services, started.
        trainer: the role of its trainer, added to them.
        watched: the experiment.
        stop_experiment: has the broker tell everybody to stop.
        stop: asks once to end gently, twice at once.
        tell: takes one line about something that happened.
        given_up: asked of each unasked ending of the trainer: whether the experiment has failed by it.
        failure: why the run cannot go on; "" while it can.
    """

    local: Local
    trainer: Role
    watched: Watched
    stop_experiment: Callable[[], Any]
    stop: StopFlag
    tell: Callable[[str], None]
    clock: Clock = field(default_factory=SystemClock)
    given_up: Callable[[Ending], bool] = lambda _ending: False
    failure: str = ""
    restarts: list[Ending] = field(default_factory=list)
    _stopping_at: float | None = None
    _outcome_at: float | None = None

    def step(self) -> None:
        """Look at everything once."""
        try:
            self.local.step()
        except HeddleError as error:
            self.failure = " ".join(str(error).split())
        self._take_endings()
        if self.stop.draining and self._stopping_at is None:
            self._stopping_at = self.clock.monotonic()
            self.local.wake()  # who is frozen could not give back what it holds
            self.tell("stopping: workers deliver, the trainer saves; once more to stop at once")
            threading.Thread(target=self._ask_to_stop, name="stop", daemon=True).start()

    def over(self) -> bool:
        """True once there is nothing to wait for."""
        if self.failure or self.stop.now or self.watched.ended:
            return True
        now = self.clock.monotonic()
        if self.watched.outcome and self._outcome_at is None:
            self._outcome_at = now
        if self._outcome_at is not None and now - self._outcome_at > LAST_WORD_S and self.trainer.child is None:
            return True  # the coordinator does not come to write it down
        return self._stopping_at is not None and now - self._stopping_at > STOP_S

    def _take_endings(self) -> None:
        endings, self.local.endings[:] = list(self.local.endings), []
        for ending in endings:
            if ending.role == self.trainer.name and self._trainer_ended(ending):
                continue
            self.restarts.append(ending)
            self.tell(f"restarting {ending.role}, because {ending.why}")

    def _trainer_ended(self, ending: Ending) -> bool:
        """Whether the trainer's end is the end of the run, or of all hope."""
        given_up = self.given_up(ending)
        try:
            self.watched.look()
        except HeddleError as error:
            log.info("cannot look error=%s", error)
        if given_up or self.watched.outcome or self.watched.ended:
            self.trainer.terminate(0.0)
            return True
        if ending.code in HOPELESS or self.trainer.failures >= MOST_FAILURES:
            self.failure = ending.why
            return True
        return False

    def _ask_to_stop(self) -> None:
        while not self.stop.now and not self.watched.ended:
            try:
                self.stop_experiment()
                return
            except HeddleError as error:
                log.info("cannot tell the experiment to stop error=%s", error)
                self.clock.sleep(0.5)


def trainer_role(
    experiment: str, *, url: str, directory: Path, log_file: Path | None, on_line: Callable[[str], None] | None = None
) -> Role:
    """The role of one experiment's trainer."""
    arguments = ["trainer", experiment, "--dir", str(directory)]
    return Role("trainer", arguments, url=url, done=TRAINER_DONE, log_file=log_file, on_line=on_line)
