"""Ahead: has published weights fetched by a thread of its own, so that playing never waits for them.

It never loads them into a policy: the playing thread does, between two segments.
"""

import logging
import queue
import threading
from collections.abc import Callable

from heddle.broker.faults import Damaged
from heddle.errors import BrokerError, Gone, NotFound, PolicyLost
from heddle.policies.weights import TornWeights, WeightsError
from heddle.producers.stage import Fetch

log = logging.getLogger("heddle.worker")


def when_played(_experiment: str, wanted: int) -> int:
    """In place of `Ahead.follow`: nothing is fetched ahead, so whatever is wanted is fetched when it is played."""
    return wanted


class Ahead:
    """One version of each experiment at most: the newest that was fetched.

    Args:
        fetch: the broker's `policies.fetch`.
        on_failure: told an error that nobody expects; the thread then ends.
    """

    def __init__(self, fetch: Fetch, *, on_failure: Callable[[BaseException], None]) -> None:
        self._fetch = fetch
        self._on_failure = on_failure
        self._lock = threading.Lock()
        self._wanted: dict[str, int] = {}
        self._ready: dict[str, tuple[int, bytes]] = {}
        self._lost: set[str] = set()  # cannot be read: whoever plays meets that, and takes the version back
        self._asked: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="weights", daemon=True)

    def start(self) -> "Ahead":
        """Start the thread that fetches."""
        self._thread.start()
        return self

    def stop(self, timeout_s: float = 2.0) -> None:
        """End the thread."""
        self._asked.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def follow(self, experiment: str, wanted: int) -> int:
        """The newest version that `fetch` gives at once, 0 for none; a newer one that is wanted will be ready soon.

        One that could not be read is returned as it is wanted: to fetch it at once tells why.
        """
        with self._lock:
            if experiment in self._lost:
                self._lost.discard(experiment)
                return wanted
            self._wanted.setdefault(experiment, 0)
            ready = self._ready[experiment][0] if experiment in self._ready else 0
            if wanted > max(ready, self._wanted.get(experiment, 0)):
                self._wanted[experiment] = wanted
                self._asked.put(experiment)
            return ready

    def heard(self, experiment: str, version: int) -> None:
        """There is a new version; where nobody follows, as with a barrier, it is fetched when it is played."""
        with self._lock:
            is_followed = experiment in self._wanted
        if is_followed:
            self.follow(experiment, version)

    def fetch(self, experiment: str, version: int | None = None) -> tuple[int, bytes]:
        """As the broker's; of the latest version what is ready is taken."""
        with self._lock:
            ready = self._ready.pop(experiment, None) if version is None else None
        return self._fetch(experiment, version) if ready is None else ready

    def forget(self, experiment: str) -> None:
        """Nothing is played of it any more."""
        with self._lock:
            self._wanted.pop(experiment, None)
            self._ready.pop(experiment, None)
            self._lost.discard(experiment)

    def _run(self) -> None:
        try:
            while (experiment := self._asked.get()) is not None:
                self._get(experiment)
        except Exception as error:  # noqa: BLE001  top of a thread: without it a worker would play the old policy for ever
            log.exception("fetching weights failed")
            self._on_failure(error)

    def _get(self, experiment: str) -> None:
        with self._lock:
            ready = self._ready[experiment][0] if experiment in self._ready else 0
            if ready >= self._wanted.get(experiment, 0):
                return
        try:
            fetched = self._fetch(experiment, None)
        except (BrokerError, Damaged, NotFound, Gone, WeightsError) as error:  # asked for again with the next segment
            log.debug("cannot fetch the policy of %s, playing on with the old one error=%s", experiment, error)
            with self._lock:
                self._wanted[experiment] = min(self._wanted.get(experiment, 0), ready)
                if isinstance(error, PolicyLost | TornWeights):
                    self._lost.add(experiment)
            return
        with self._lock:
            if experiment in self._wanted:
                self._ready[experiment], self._wanted[experiment] = fetched, fetched[0]
