"""Gathering: snapshots made in a thread of its own, so that keys are answered while the broker is not.

It never draws.
"""

import threading
from collections.abc import Collection
from dataclasses import replace

from heddle.cli.top.gather import Gatherer
from heddle.cli.top.rows import Snapshot
from heddle.errors import BrokerError, Denied


class Gathering:
    """Gathers in a thread of its own, and outlasts an absence of the broker.

    Args:
        interval_s: from one look to the next.
    """

    def __init__(self, gatherer: Gatherer, *, interval_s: float) -> None:
        self._gatherer = gatherer
        self._interval_s = interval_s
        self._wants: tuple[str, tuple[str, ...]] = ("", ())
        self._ending = threading.Event()
        self._soon = threading.Event()
        self.latest = Snapshot()
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="gathering", daemon=True)

    def start(self) -> "Gathering":
        """Begin."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """Gather no more."""
        self._ending.set()
        self._soon.set()
        self._thread.join(2.0)

    def want(self, opened: str, watched: Collection[str]) -> None:
        """What is on the screen from now on; what was opened is looked at soon."""
        is_new = opened != self._wants[0]
        self._wants = (opened, tuple(watched))
        if is_new:
            self._soon.set()

    def soon(self) -> None:
        """Look again at once."""
        self._soon.set()

    def _run(self) -> None:
        try:
            while not self._ending.is_set():
                opened, watched = self._wants
                try:
                    self.latest = self._gatherer.snapshot(opened=opened, watched=watched)
                except (BrokerError, Denied) as error:
                    self.latest = replace(self.latest, problem=" ".join(str(error).split()))
                self._soon.wait(self._interval_s)
                self._soon.clear()
        except Exception as error:  # noqa: BLE001  top of a thread: who draws says so and ends
            self.failure = error
