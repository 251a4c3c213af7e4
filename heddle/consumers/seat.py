"""The seat: how one trainer becomes the only one of its experiment, and learns that it is not any more.

It never reads a checkpoint: the fence is up when `claim` returns, and only then may its caller look at them.
"""

import logging
import os
import threading

from heddle.broker import Broker
from heddle.broker.faults import Damaged
from heddle.broker.notes import Notes
from heddle.broker.seats import SEAT_TTL_MS
from heddle.clock import Clock
from heddle.errors import BrokerError, BrokerFull, BrokerUnreachable, Gone, NotFound, SeatLost
from heddle.lease import Keeper

log = logging.getLogger("heddle.trainer")

ASK_EVERY_S = 0.25
"""How often a trainer in waiting asks for a taken seat: a small part of the TTL that it waits out."""


def trainer_id() -> str:
    """An id that no other process ever has, with host and pid for people."""
    return f"{os.uname().nodename}-{os.getpid()}-{os.urandom(4).hex()}"


class Seat:
    """A seat that was claimed, kept by a thread of its own.

    Attributes:
        epoch: fencing number; every later holder's is higher.
        trainer: id of this holder.
        notes: what it has to tell; the loop sends them.
    """

    def __init__(self, broker: Broker, experiment: str, trainer: str, epoch: int, *, ttl_ms: int, clock: Clock) -> None:
        self.epoch = epoch
        self.trainer = trainer
        self._broker = broker
        self._experiment = experiment
        self._ttl_ms = ttl_ms
        self._clock = clock
        self._renewed_at = clock.monotonic()
        self._lost = threading.Event()
        self._reason = ""
        self._doing = ("start", clock.monotonic())
        self.notes = Notes("trainer", trainer, clock=clock)
        self._keeper = Keeper(
            self._renew, ttl_s=ttl_ms / 1000.0, on_lost=self._lose, on_back=self._back, name="seat", clock=clock
        )

    @classmethod
    def claim(
        cls,
        broker: Broker,
        experiment: str,
        trainer: str,
        *,
        clock: Clock,
        ttl_ms: int = SEAT_TTL_MS,
        above: int = 0,
    ) -> "Seat | None":
        """Take the seat and raise the fence, above the epoch `above`; None while another trainer holds it.

        Raises:
            Gone: the experiment was removed.
            BrokerUnreachable: no answer; asking again gets the same seat.
        """
        epoch = broker.seats.claim_seat(experiment, trainer, ttl_ms=ttl_ms, above=above)
        if epoch is None:
            return None
        seat = cls(broker, experiment, trainer, epoch, ttl_ms=ttl_ms, clock=clock)
        seat._keeper.start()
        log.info("took seat experiment=%s trainer=%s epoch=%d", experiment, trainer, epoch)
        return seat

    def doing(self, what: str) -> None:
        """What the trainer does from now on, for people: told with the renewals."""
        if what != self._doing[0]:
            self._doing = (what, self._clock.monotonic())

    def check(self) -> None:
        """Raises SeatLost once another trainer took the seat, or the experiment was removed."""
        if self._lost.is_set():
            raise SeatLost(f"{self._experiment}: lost the seat of epoch {self.epoch}: {self._reason}")

    def check_well(self) -> None:
        """As `check`; a process that was frozen, and may not know yet that it was replaced, asks the broker first.

        A broker that does not answer is no reason to think so.
        """
        self.check()
        if self._clock.monotonic() - self._renewed_at > self._ttl_ms / 2000:
            try:
                self.confirm()
            except (BrokerUnreachable, BrokerFull) as error:
                log.info("cannot ask who holds the seat epoch=%d error=%s", self.epoch, error)

    def confirm(self) -> None:
        """Ask the broker whether this is still the holder. Raises SeatLost, Gone, BrokerUnreachable."""
        self.check()
        if not self._renew():
            self._lose("another trainer holds it")
            self.check()

    def is_removed(self) -> bool:
        """Whether the experiment is there no more; False where nobody can tell."""
        try:
            self._broker.experiments.status(self._experiment)
        except (Gone, NotFound):
            return True
        except (BrokerError, Damaged) as error:
            log.info("cannot ask whether it was removed experiment=%s error=%s", self._experiment, error)
        return False

    def release(self, *, how: str = "left") -> None:
        """Leave the seat to the next one; with the broker away its TTL does that.

        Args:
            how: of `heddle.broker.seats.HOW`.
        """
        self._keeper.stop()
        if self._lost.is_set():
            return
        try:
            self._broker.seats.release_seat(self._experiment, self.epoch, how=how)
        except (BrokerError, Damaged) as error:
            log.warning("cannot release the seat, its TTL will epoch=%d error=%s", self.epoch, error)

    def give_up(self, reason: str) -> None:
        """Leave the seat because this process can train no further, and say why in the experiment's log."""
        self._broker.events.log(self._experiment, "trainer", self.trainer, "error", reason)
        self.release(how="failed")

    @property
    def is_lost(self) -> bool:
        """True once another trainer took it, or the experiment was removed."""
        return self._lost.is_set()

    def abandon(self) -> None:
        """Stop renewing, without another word to the broker, now and later."""
        self._keeper.stop()
        if not self._lost.is_set():
            self._lose("left")

    def _renew(self) -> bool:
        asked_at = self._clock.monotonic()
        what, since = self._doing
        try:
            kept = self._broker.seats.renew_seat(
                self._experiment,
                self.trainer,
                self.epoch,
                ttl_ms=self._ttl_ms,
                doing=what,
                doing_ms=round(1000 * (asked_at - since)),
            )
        except Damaged as error:  # nobody can take it either; the leader mends it, or ends the experiment
            self._broker.damages.note(self._experiment, error)
            raise BrokerUnreachable(str(error)) from error
        if not kept:
            return False
        self._renewed_at = asked_at
        return True

    def _back(self, after_s: float) -> None:
        self.notes.add(self._experiment, f"reached the broker again after {after_s:.1f} s", level="warning")

    def _lose(self, reason: str) -> None:
        self._reason = reason
        self._lost.set()
