"""The trainer host: one trainer process for each active experiment that has none.

It never trains itself and holds no seat: a trainer that loses the race for one ends, and the host looks elsewhere.
"""

import logging
import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from heddle.broker import Broker
from heddle.broker.faults import Damaged
from heddle.broker.records import Status
from heddle.broker.seats import wants_trainer
from heddle.launch.children import STAMP, Ending, Role
from heddle.launch.giving_up import Repeats, has_given_up
from heddle.launch.role_host import OnLine, RoleHost
from heddle.launch.speaking import Speaking
from heddle.stop import StopFlag

log = logging.getLogger("heddle.trainers")

LOOK_S = 0.5
PARTITION = 0
WANTED = frozenset({"queued", "running", "paused", "stopping"})
DONE_CODES = (0, 4, 8)
"""Ended or left cleanly, removed meanwhile, seat taken by another: nothing to start again at once."""


def unseated(active: Iterable[str], seated: Iterable[str], running: Iterable[str], most: int | None) -> list[str]:
    """Experiments to start a trainer for now, oldest first.

    Args:
        active: ids that want a trainer, oldest first.
        seated: ids whose seat is held.
        running: ids that have a process here already.
        most: processes here at most; None = no bound.
    """
    here, taken = set(running), set(seated)
    free = [experiment for experiment in active if experiment not in here and experiment not in taken]
    return free if most is None else free[: max(0, most - len(here))]


class TrainerHost(RoleHost):
    """Runs trainers until it is asked to stop.

    Args:
        directory: each experiment's checkpoints go into a folder of its id in here.
        most: trainers at once; None = no bound.
        stop: once = every trainer saves and ends, twice = at once.
        connect: opens the broker instead of `url`; the children still get `url`.
        on_line: told every line of a trainer and what it is about, instead of our log.
    """

    def __init__(
        self,
        url: str,
        *,
        directory: Path,
        most: int | None = None,
        stop: StopFlag,
        connect: Callable[[], Broker] | None = None,
        on_line: OnLine | None = None,
    ) -> None:
        about: dict[str, Any] = {"directory": directory, "stop": stop, "look_s": LOOK_S}
        super().__init__("trainer", url, connect=connect, on_line=on_line, **about)
        self._most = most
        self._repeats: dict[str, Repeats] = {}
        self._speaking = Speaking(self._connect)
        self._id = f"trainers-{os.uname().nodename}-{os.getpid()}-{os.urandom(4).hex()}"

    def run(self) -> int:
        """As any host; what its trainers printed last is handed on before it ends."""
        try:
            return super().run()
        finally:
            self._speaking.stop()

    def missing(self, broker: Broker) -> dict[str, Role]:
        """One for each active experiment whose seat is free; those of others that wait to be started again leave."""
        known = [one for one in reversed(broker.experiments.ls()) if one.state in WANTED]
        active = [one.experiment for one in known if wants_trainer(one.outcome, _left(broker, one))]
        seated = [experiment for experiment in active if _is_seated(broker, experiment)]
        for experiment in self._repeats.keys() - set(active):
            del self._repeats[experiment]
        for experiment in self.roles.keys() - set(active):
            if (role := self.roles[experiment]).child is None:
                role.terminate(0.0)
        return {experiment: self._role(experiment) for experiment in unseated(active, seated, self.roles, self._most)}

    def stepped(self, broker: Broker, experiment: str, role: Role, ending: Ending | None) -> None:
        """The same failure again and again, and nothing trained: later each time, and one day not again."""
        if role.finished:
            self._speaking.forget("trainer", experiment)
        if ending is None:
            return
        broker.events.log(experiment, "trainer", None, "error", ending.why.removeprefix(f"trainer {experiment} "))
        repeats = self._repeats.setdefault(experiment, Repeats())
        if has_given_up(broker, experiment, self._id, self.directory, repeats, ending):
            self.log.error("gave up experiment=%s after=%d because %s", experiment, repeats.count, ending.why)
            role.terminate(0.0)
            del self._repeats[experiment]
        elif repeats.count:
            role.hold_off(repeats.count)

    def _role(self, experiment: str) -> Role:
        return Role(
            f"trainer {experiment}",
            ["trainer", experiment, "--dir", str(self.directory)],
            url=self.url,
            done=DONE_CODES,
            on_line=partial(self._hear, experiment),
        )

    def _hear(self, experiment: str, line: str) -> None:
        """What a trainer prints, in our log; a line of its own log without the time, which ours has."""
        if self._on_line is not None:
            self._on_line({"experiment": experiment}, line)
        else:
            log.info("%s | %s", experiment, STAMP.sub("", line))
        self._speaking.hear("trainer", {"experiment": experiment}, line)


def _left(broker: Broker, told: Status) -> int:
    """Batches in flight of an experiment whose trainer has told its end; 0 before that: nobody needs to know."""
    try:
        return broker.experience.flow(told.experiment, PARTITION).entries if told.outcome else 0
    except Damaged as error:
        log.debug("starting no trainer experiment=%s error=%s", told.experiment, error)
        return 0


def _is_seated(broker: Broker, experiment: str) -> bool:
    """Whether there is no trainer to start for it: one whose seat cannot be read gets none, and disturbs nobody."""
    try:
        return broker.seats.holder(experiment) is not None
    except Damaged as error:
        log.debug("starting no trainer experiment=%s error=%s", experiment, error)
        return True
