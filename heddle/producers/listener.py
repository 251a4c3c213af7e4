"""The listener: writes news of policies and commands down at the desk the moment they are told.

It never decides; news that are missed arrive with the next append or renewal.
"""

import logging
import threading
from collections.abc import Callable

from heddle.broker import Broker
from heddle.producers.desk import Desk

log = logging.getLogger("heddle.worker")

WAIT_S = 0.5


class Listener:
    """A thread between the broker's news and the desk.

    Args:
        on_news: told which experiment there is news of, once it is written down.
        on_failure: told an error that nobody expects; the thread then ends.
    """

    def __init__(
        self,
        broker: Broker,
        desk: Desk,
        *,
        on_news: Callable[[str], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._desk = desk
        self._on_news = on_news
        self._on_failure = on_failure
        self._news = broker.events.listen()
        self._lock = threading.Lock()
        self._watched: set[str] = set()
        self._ending = False
        self._thread = threading.Thread(target=self._run, name="listener", daemon=True)

    def start(self) -> "Listener":
        """Start the thread that listens."""
        self._thread.start()
        return self

    def stop(self, timeout_s: float = 2.0) -> None:
        """End the thread and the subscription."""
        self._ending = True
        self._news.close()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def watch(self, experiment: str) -> None:
        """Hear of an experiment from now on; again is no mistake."""
        with self._lock:
            self._watched.add(experiment)
        self._news.watch(experiment)

    def unwatch(self, experiment: str) -> None:
        """Hear of it no more."""
        with self._lock:
            self._watched.discard(experiment)
        self._news.unwatch(experiment)

    def _run(self) -> None:
        try:
            while not self._ending:
                if self._news.wait(WAIT_S):
                    self._pass_on()
        except Exception as error:  # noqa: BLE001  top of a thread: without news a worker would lag by a renewal
            log.exception("listener failed")
            self._on_failure(error)

    def _pass_on(self) -> None:
        with self._lock:
            watched = list(self._watched)
        for experiment in watched:
            facts = self._news.facts(experiment)
            if facts is not None:
                self._desk.hear(experiment, command=facts.command, policy=facts.policy, eval_policy=facts.eval_policy)
                self._on_news(experiment)
