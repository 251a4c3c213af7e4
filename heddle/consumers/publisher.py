"""The publisher: makes the trainer's newest weights the policy that workers play.

It never holds up an ack: what the broker cannot take now is offered again later. Versions only rise; weights that are
published again after a resume, or to get past a version that nobody can train, get a new number. With a courier, large
weights of one update are under way while the next one is made, and may be checkpointed before they are there.
"""

import logging

from heddle.broker import Broker
from heddle.consumers.courier import LARGE_BYTES, Courier
from heddle.errors import BrokerFull, BrokerUnreachable, Conflict, SeatLost
from heddle.policies.base import Arrays
from heddle.policies.lag import Gap
from heddle.policies.weights import pack

log = logging.getLogger("heddle.trainer")

CLOSE_S = 5.0
"""For so long the end of a trainer waits for what is under way; nobody loses anything by its not arriving."""


class Publisher:
    """Publishes for the holder of the seat.

    Attributes:
        version: newest version made, published or not yet.
        same: versions whose weights are the newest ones.
        update: the update that made them.
        gap: numbers above `version` that are left out.

    Args:
        version: highest version that is known: published, or in the checkpoint that was resumed.
        same: versions whose weights the first ones published here equal.
        skip: how many numbers above `version` to leave out: an earlier trainer may have published under them what
            neither broker nor checkpoint remembers, and a worker that plays such weights would not fetch ours.
        apart: large weights are published while the next update is made; of no use where that waits for workers.
    """

    def __init__(
        self,
        broker: Broker,
        experiment: str,
        *,
        seat_epoch: int,
        version: int,
        same: frozenset[int] = frozenset(),
        skip: int = 0,
        apart: bool = False,
    ) -> None:
        self.gap = Gap(version + 1, skip)
        self.version = version + skip
        self.same = same
        self.update = 0
        self._broker = broker
        self._experiment = experiment
        self._seat_epoch = seat_epoch
        self._weights: Arrays = {}
        self._data = b""
        self._pending = False
        self._is_refused = False
        self._courier = Courier(self._carry) if apart else None
        self._is_out = False  # what the courier was given last is not known to be there

    @property
    def weights(self) -> Arrays:
        """The newest weights; not to be changed."""
        return self._weights

    @property
    def pending(self) -> bool:
        """True while the newest version is not known to be published."""
        return self._pending

    @property
    def is_refused(self) -> bool:
        """True while the broker does not take the newest version: there is no room for it, or nobody answers."""
        return self._is_refused

    def first(self, weights: Arrays, update: int) -> bool:
        """Publish restored, or fresh, weights under the next version; see `offer` for the answer."""
        self._weights, self.update = weights, update
        return self.renumber()

    def publish(self, weights: Arrays, update: int) -> bool:
        """Publish the weights of an update under the next version; see `offer` for the answer.

        With a courier, large ones are under way when this returns, and the answer is False.
        """
        self._arrive()
        self.same = frozenset()
        self._weights, self.update = weights, update
        self._number()
        if self._courier is None or len(self._data) <= LARGE_BYTES:
            return self.offer()
        self._is_out = True
        self._courier.send(self.version, self._data, self.update)
        return False

    def renumber(self) -> bool:
        """Publish the same weights under the next version; see `offer` for the answer."""
        self._arrive()
        self._number()
        return self.offer()

    def settle(self, timeout_s: float | None = None) -> bool:
        """Wait for what is under way, and offer it again where it was refused.

        Returns:
            True when the newest version is published; False as well when it is still under way after `timeout_s`.

        Raises:
            SeatLost, Gone: and whatever else nobody expected in the courier's thread.
        """
        if self._courier is None or not self._is_out:
            return not self._pending
        if not self._courier.wait(timeout_s):
            return False
        self._arrive()
        return self.offer()

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Publish no more. What is under way gets a moment."""
        if self._courier is not None:
            self._courier.wait(timeout_s)
            self._courier.close()

    def rise_above(self, version: int) -> None:
        """Publish the same weights above `version` when that is higher than any of ours.

        Workers still play a version that broker and checkpoint both forgot: they would never fetch a lower one.
        """
        if version > self.version:
            self._arrive()  # what it says of the version before
            log.warning("workers play a version that was forgotten, going above it version=%d", version)
            self.version = version
            self.renumber()

    def compare(self, published: int) -> bool:
        """Publish again when ctl shows a lower version than ours: the broker lost it."""
        if published < self.version:
            self._pending = True
        return self.offer()

    def offer(self) -> bool:
        """Publish what is pending.

        Returns:
            True when the newest version is published; False when the broker is away or full: call again.

        Raises:
            SeatLost, Gone.
        """
        if self._courier is not None:
            if self._courier.is_away:
                return False
            self._arrive()
        if not self._pending:
            return True
        try:
            self._send()
        except SeatLost:
            raise
        except (BrokerFull, BrokerUnreachable, Conflict) as error:
            self._refused(error)
            return False
        self._pending = self._is_refused = False
        return True

    def _number(self) -> None:
        self.version += 1
        self.same |= {self.version}
        self._data = pack(self._weights, version=self.version, update=self.update)
        self._pending = True

    def _arrive(self) -> None:
        """Wait for what is under way, and learn what became of it; what the broker did not take stays pending.

        Raises:
            SeatLost, Gone: and whatever else nobody expected in the courier's thread.
        """
        if self._courier is None or not self._is_out:
            return
        self._courier.wait()
        self._is_out = False
        trouble = self._courier.trouble()
        if trouble is None:
            self._pending = self._is_refused = False
        elif isinstance(trouble, BrokerFull | BrokerUnreachable | Conflict) and not isinstance(trouble, SeatLost):
            self._refused(trouble)
        else:
            raise trouble

    def _refused(self, error: BaseException) -> None:
        level = logging.DEBUG if self._is_refused else logging.WARNING
        log.log(level, "cannot publish, will again version=%d error=%s", self.version, error)
        self._is_refused = True

    def _send(self) -> None:
        try:
            self._publish()
        except SeatLost:
            raise
        except Conflict:  # a higher one is there: an earlier holder's, published between our look and our claim
            self.version = max(self.version, self._broker.policies.latest(self._experiment)) + 1
            self.same |= {self.version}
            self._data = pack(self._weights, version=self.version, update=self.update)
            self._publish()

    def _publish(self) -> None:
        self._carry(self.version, self._data, self.update)

    def _carry(self, version: int, data: bytes, update: int) -> None:
        """In whichever thread: nothing of this object is changed."""
        self._broker.policies.publish(self._experiment, self._seat_epoch, version, data, update=update)
