"""News in the simulation: hints of new policies and commands, which may be late or lost.

It never is the only way to learn them, as the real listener is not.
"""

from dataclasses import replace
from typing import ClassVar

from heddle.broker.connection import Connection
from heddle.broker.news import Facts
from tests.simulation.hub import Hub, Process
from tests.simulation.threads import Event


class SimNews:
    """Stands for `NewsListener`, without its socket: the world passes on what the server published."""

    listeners: ClassVar[list["SimNews"]] = []

    def __init__(self, hub: Hub, conn: Connection) -> None:
        self.process: Process = hub.task().process
        self._hub = hub
        self._facts: dict[str, Facts | None] = {}
        self._event = Event(hub)
        SimNews.listeners.append(self)

    def watch(self, experiment: str) -> None:
        self._facts.setdefault(experiment, None)

    def unwatch(self, experiment: str) -> None:
        self._facts.pop(experiment, None)

    def facts(self, experiment: str) -> Facts | None:
        return self._facts.get(experiment)

    def wait(self, timeout_s: float) -> bool:
        came = self._event.wait(timeout_s)
        self._event.clear()
        return came

    def close(self) -> None:
        if self in SimNews.listeners:
            SimNews.listeners.remove(self)

    def hear(self, experiment: str, word: str, value: str) -> None:
        """One message came."""
        if not self.process.alive or self.process.paused or experiment not in self._facts:
            return
        known = self._facts[experiment] or Facts(0, 0, "run")
        if word == "command":
            known = replace(known, command=value)
        elif word == "policy":
            known = replace(known, policy=int(value))
        else:
            known = replace(known, eval_policy=int(value))
        self._facts[experiment] = known
        self._event.set()
