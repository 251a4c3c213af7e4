"""Healing: what a leader does about an experiment in whose keys somebody put something else.

It never touches another experiment, and never guesses what a key held: what cannot be made anew ends the experiment.
"""

import logging
from collections.abc import Sequence

from heddle.broker import Broker, numbers
from heddle.broker.damage import told, told_of_field
from heddle.broker.faults import Damaged, NoNumber, Odd
from heddle.coord.telling import Teller
from heddle.errors import Gone
from heddle.shard import ShardPlan

log = logging.getLogger("heddle.coordinator")

MOST_UNFOUND = 4
"""So often is damage looked for in vain before the experiment ends over it."""
UNFOUND_MS = 60_000
"""Within so long; a worker that meets it comes back after 1, 2 and 4 s."""


class Healer:
    """Heals under one leader's epoch."""

    def __init__(self, broker: Broker, tell: Teller, epoch: int) -> None:
        self._broker = broker
        self._tell = tell
        self._epoch = epoch
        self._unfound: dict[str, list[int]] = {}

    def heal(self, experiment: str, error: Damaged, *, ttl_ms: int, plans: Sequence[ShardPlan] = ()) -> bool:
        """Have it go on without what was damaged, or fail with the reason. True when it goes on.

        Args:
            error: what was met.
            ttl_ms: of its leases; plans: of its shards, from the first on.

        Raises:
            LeaderLost, BrokerError: nothing was changed.
        """
        try:
            reason = self._made_anew(experiment, error, ttl_ms, plans)
            if not reason:
                return True
            self._broker.experiments.set_status(experiment, "failed", leader_epoch=self._epoch, reason=reason)
            self._tell.note(experiment, "failed", reason=reason)
        except Gone:
            log.info("removed before it was mended experiment=%s", experiment)
        except Damaged as more:  # what it would be written to; whoever looks at it is told, see `Experiments.status`
            log.warning("left as it is experiment=%s because %s, and %s", experiment, error, more)
        return False

    def _made_anew(self, experiment: str, error: Damaged, ttl_ms: int, plans: Sequence[ShardPlan]) -> str:
        """Write anew what was damaged; why the experiment cannot go on where something cannot be, else ""."""
        damages = self._broker.damages
        found, odd = damages.find(experiment), damages.numbers(experiment, plans)
        reason = told(experiment, found) or numbers.told(experiment, odd)
        if not (reason or found or odd or isinstance(error, Odd)) and is_of_a_field(error) and self._recurs(experiment):
            reason = told_of_field(experiment, error)
        if reason:
            return reason
        damages.mend(experiment, found, leader_epoch=self._epoch, ttl_ms=ttl_ms)
        if found:
            names = ", ".join(key.name for key in found)
            self._tell.note(experiment, "mended", keys=names, because="somebody put something else there")
        for one in odd:
            if damages.write_anew(experiment, one, leader_epoch=self._epoch):
                where = {"key": one.key, "field": one.field, "was": repr(one.shown), "now": one.instead}
                self._tell.note(experiment, "mended", **where, because="somebody wrote what is no number")
        return ""

    def _recurs(self, experiment: str) -> bool:
        """True when damage is met again and again where none is found: once it may have been told late."""
        now_ms = self._broker.conn.now_ms()
        times = [at_ms for at_ms in self._unfound.get(experiment, ()) if 0 <= now_ms - at_ms < UNFOUND_MS]
        self._unfound[experiment] = [*times, now_ms]
        return len(times) + 1 >= MOST_UNFOUND


def is_of_a_field(error: Damaged) -> bool:
    """True when a key is what it should be, and something in it is not."""
    return isinstance(error, NoNumber) or "WRONGTYPE" not in str(error)
