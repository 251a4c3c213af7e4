"""Healing: what a leader does about an experiment in whose keys somebody put something else.

It never touches another experiment, and never guesses what a key held: what cannot be made anew ends the experiment.
"""

import logging

from heddle.broker import Broker
from heddle.broker.damage import told, told_of_field
from heddle.broker.faults import Damaged, NoNumber
from heddle.coord.telling import Teller
from heddle.errors import Gone

log = logging.getLogger("heddle.coordinator")


class Healer:
    """Heals under one leader's epoch."""

    def __init__(self, broker: Broker, tell: Teller, epoch: int) -> None:
        self._broker = broker
        self._tell = tell
        self._epoch = epoch

    def heal(self, experiment: str, error: Damaged, *, ttl_ms: int) -> bool:
        """Have it go on without what was damaged, or fail with the reason. True when it goes on.

        Args:
            error: what was met.
            ttl_ms: of its leases.

        Raises:
            LeaderLost, BrokerError: nothing was changed.
        """
        try:
            found = self._broker.damages.find(experiment)
            reason = told(experiment, found)
            if not reason and not found and is_of_a_field(error):
                reason = told_of_field(experiment, error)
            if not reason:
                self._broker.damages.mend(experiment, found, leader_epoch=self._epoch, ttl_ms=ttl_ms)
                names = ", ".join(key.name for key in found)
                self._tell.note(experiment, "mended", keys=names, because="somebody put something else there")
                return True
            self._broker.experiments.set_status(experiment, "failed", leader_epoch=self._epoch, reason=reason)
            self._tell.note(experiment, "failed", reason=reason)
        except Gone:
            log.info("removed before it was mended experiment=%s", experiment)
        except Damaged as more:  # what it would be written to; whoever looks at it is told, see `Experiments.status`
            log.warning("left as it is experiment=%s because %s, and %s", experiment, error, more)
        return False


def is_of_a_field(error: Damaged) -> bool:
    """True when a key is what it should be, and something in it is not."""
    return isinstance(error, NoNumber) or "WRONGTYPE" not in str(error)
