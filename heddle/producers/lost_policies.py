"""Lost policies: what a worker does about a published version that cannot be read any more.

It never fetches one, and never waits: of a pinned one it writes down at the desk that it is missing, so that the shards
which evaluate it are not played, and after a while that it may be there again.
"""

import logging

from heddle.broker import Broker
from heddle.broker.faults import Damaged
from heddle.clock import Clock
from heddle.errors import BrokerError
from heddle.producers.desk import Desk

log = logging.getLogger("heddle.worker")

ASK_FIRST_S, ASK_LAST_S = 1.0, 30.0
"""A trainer that lives pins a higher version by itself, which is heard of at once: the same one hardly comes back."""


class LostPolicies:
    """Those that one worker met; for its playing thread alone."""

    def __init__(self, broker: Broker, desk: Desk, *, clock: Clock) -> None:
        self._broker = broker
        self._desk = desk
        self._clock = clock
        self._pinned: dict[str, tuple[int, int, float]] = {}

    def met(self, experiment: str, version: int, *, is_pinned: bool) -> None:
        """That version cannot be read: have its trainer see to it.

        Args:
            is_pinned: for evaluation: it is not asked for again for a second, twice as long each time in a row.
        """
        if is_pinned:
            self._leave(experiment, version)
        self._take_back(experiment, version)

    def ask_again(self) -> None:
        """Have the pinned versions whose time has come be asked for once more."""
        now = self._clock.monotonic()
        for experiment, (version, _, until) in list(self._pinned.items()):
            if not self._desk.of(experiment):  # whoever holds shards of it next begins anew
                del self._pinned[experiment]
            elif until <= now and self._desk.facts(experiment).missing == version:
                self._desk.miss(experiment, 0)

    def _leave(self, experiment: str, version: int) -> None:
        known, times, _ = self._pinned.get(experiment, (0, 0, 0.0))
        times = times + 1 if known == version else 1
        if times == 1:
            log.warning(
                "cannot read pinned policy=%d of experiment=%s, evaluates nothing until it or a higher one is there",
                version,
                experiment,
            )
        pause_s = min(ASK_LAST_S, ASK_FIRST_S * 2.0 ** min(times - 1, 10))
        self._pinned[experiment] = (version, times, self._clock.monotonic() + pause_s)
        self._desk.miss(experiment, version)

    def _take_back(self, experiment: str, version: int) -> None:
        """Have the trainer publish again what somebody removed; with a barrier no other version would ever come."""
        try:
            if self._broker.policies.take_back(experiment, version):
                told = f"policy {version} cannot be read any more, its trainer publishes it again"
                self._desk.notes.add(experiment, told, level="warning")
        except (BrokerError, Damaged) as error:
            log.debug("could not take back policy=%d of experiment=%s error=%s", version, experiment, error)
