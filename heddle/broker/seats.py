"""The trainer's seat: one holder per experiment, fenced by an epoch that only rises.

This module never renews by itself: the keeper does, from its own thread.

Who holds the seat is decided by `seat_epoch` in ctl, raised in the same script that gives the seat away; the seat's
own key with its TTL only tells when another trainer may take it. Every call works when the broker is out of memory.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from heddle.broker import keys
from heddle.broker.connection import Connection
from heddle.broker.counts import count
from heddle.broker.records import integer, text, texts
from heddle.broker.refusals import gone

SEAT_TTL_MS = 5_000
"""How long a seat outlives its holder's last renewal."""
ENDED_SO = "ended_"
"""Before each of `HOW` in the hash of who sat last: how many trainers ended so and were followed by another."""
HOW = ("left", "failed", "died", "silent")
"""It ended as it was told to, or said why it could not go on; its host saw it dead; its time ran out."""


@dataclass(frozen=True, slots=True)
class Sitter:
    """Who sits in the seat, or sat in it last.

    Attributes:
        trainer: its id; "" when nobody ever sat.
        left_ms: until another may take the seat, unless it is renewed; 0 when nobody sits.
        since_ms, seen_ms, gone_ms: server ms at which it took the seat, was last heard of, and left by itself (0: it
            did not).
        doing, doing_ms: what it did when it was last heard of, and since how long then.
    """

    trainer: str = ""
    left_ms: int = 0
    since_ms: int = 0
    seen_ms: int = 0
    gone_ms: int = 0
    doing: str = ""
    doing_ms: int = 0


@dataclass(frozen=True, slots=True)
class SeatHolder:
    """Who sits.

    Attributes:
        trainer: its id.
        epoch: its fencing number.
        left_ms: until another may take the seat, unless it is renewed.
    """

    trainer: str
    epoch: int
    left_ms: int


def wants_trainer(outcome: str, in_flight: int) -> bool:
    """Whether there is something for a trainer to do in an experiment that is not over.

    One that ended well may have batches in flight again: its broker was killed and forgot that they had been acked,
    and its trainer died before it saw that. What a failed one leaves is nobody's to train.

    Args:
        outcome: what its trainer said of its end; "" until then.
        in_flight: batches between workers and trainer.
    """
    return not outcome or (outcome != "failed" and in_flight > 0)


class Seats:
    """Every call about seats, on one connection."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn

    def claim_seat(self, experiment: str, trainer: str, *, ttl_ms: int = SEAT_TTL_MS, above: int = 0) -> int | None:
        """Take the seat; from then on no call of an earlier holder counts.

        Args:
            trainer: id of this process, never used by another one: the same id gets the same epoch again.
            above: an epoch that is known to have been given away; the server may have forgotten it, and its clock may
                have been set back.

        Returns:
            The epoch; None while another trainer's TTL runs (`holder` tells whose).

        Raises:
            Gone: the experiment was removed.
        """
        reply = self._conn.script("seat_claim", self._keys(experiment), [trainer, ttl_ms, above])
        answer = text(reply[0])
        if answer == "GONE":
            raise gone(experiment)
        return integer(reply[1]) if answer == "OK" else None

    def renew_seat(
        self,
        experiment: str,
        trainer: str,
        epoch: int,
        *,
        ttl_ms: int = SEAT_TTL_MS,
        doing: str = "",
        doing_ms: int = 0,
    ) -> bool:
        """Keep the seat, also when its TTL passed and nobody took it.

        Args:
            doing, doing_ms: what the trainer does, and since how long; for people.

        Returns:
            False when it is lost for good.

        Raises:
            Gone: the experiment was removed.
        """
        answer = text(
            self._conn.script("seat_renew", self._keys(experiment), [trainer, epoch, ttl_ms, doing, doing_ms])
        )
        if answer == "GONE":
            raise gone(experiment)
        return answer == "OK"

    def release_seat(self, experiment: str, epoch: int, *, how: str = "left") -> bool:
        """Leave the seat; nothing that this holder sends later counts.

        Args:
            how: of `HOW`, for people.

        Returns:
            False when it was not the holder's any more.
        """
        return bool(self._conn.script("seat_release", self._keys(experiment), [epoch, how]))

    def holder(self, experiment: str) -> SeatHolder | None:
        """Who sits; None for nobody."""
        pipe = self._conn.pipeline()
        pipe.hmget(keys.seat(experiment), "trainer", "epoch")
        pipe.pttl(keys.seat(experiment))
        (trainer, epoch), left_ms = pipe.execute()
        if trainer is None:
            return None
        return SeatHolder(text(trainer), integer(epoch), max(0, int(left_ms)))

    def last(self, experiment: str) -> Sitter:
        """Who sits, or sat last."""
        pipe = self._conn.pipeline()
        pipe.hgetall(keys.trainer(experiment))
        pipe.pttl(keys.seat(experiment))
        known, left_ms = pipe.execute()
        return read_sitter(texts(known), int(left_ms))

    @staticmethod
    def _keys(experiment: str) -> list[str]:
        return [keys.ctl(experiment), keys.seat(experiment), keys.trainer(experiment)]


def read_sitter(fields: Mapping[str, str], left_ms: int) -> Sitter:
    """The hash of who sits or sat last, and what is left of the seat's key."""
    return Sitter(
        trainer=fields.get("trainer", ""),
        left_ms=max(0, left_ms),
        since_ms=count(fields.get("since")),
        seen_ms=count(fields.get("seen")),
        gone_ms=count(fields.get("left")),
        doing=fields.get("doing", ""),
        doing_ms=count(fields.get("doing_ms")),
    )
