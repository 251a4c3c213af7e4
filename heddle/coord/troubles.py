"""Troubles of which those concerned say nothing: who stands still cannot, and who is slow does not know.

Pure: it remembers of one experiment what was told, so that each trouble is told once, and never talks to the broker.
"""

from dataclasses import dataclass

from heddle.broker.seats import SEAT_TTL_MS

FULL_MS = 10_000
"""Shards that find no room for a shorter time wait for a checkpoint, or for a trainer that has just come."""
LULL_MS = 3_000
"""A full stream has room for a moment after every update: a shorter calm is none."""
CALM_MS = 60_000
"""So long nobody waited before a stream that is full once more is told of again."""


@dataclass(slots=True)
class Troubles:
    """What was seen of one experiment that shall run.

    Attributes:
        missed_epoch: seat epoch of the trainer of whose silence was told; 0 for none.
        full_since_ms, full_seen_ms: since when shards were seen to wait for room, and when last; None for never.
        is_full_told: that was told.
    """

    missed_epoch: int = 0
    full_since_ms: int | None = None
    full_seen_ms: int = 0
    is_full_told: bool = False

    def is_missed(self, seat_epoch: int, *, is_held: bool, contact_ms: int) -> bool:
        """True once for each silence: the seat that a trainer had is free, and not because nobody could renew it.

        Args:
            contact_ms: for how long contact with the broker has been unbroken.
        """
        if is_held:
            self.missed_epoch = 0
        if is_held or seat_epoch == self.missed_epoch or contact_ms < 2 * SEAT_TTL_MS:
            return False
        self.missed_epoch = seat_epoch
        return seat_epoch > 0

    def is_full(self, waits: bool, now_ms: int) -> bool:
        """True once for each full stream: shards have waited for room for long, or again and again."""
        lull_ms = CALM_MS if self.is_full_told else LULL_MS
        if self.full_since_ms is not None and now_ms - self.full_seen_ms >= lull_ms and not waits:
            self.full_since_ms, self.is_full_told = None, False
        if not waits:
            return False
        if self.full_since_ms is None:
            self.full_since_ms = now_ms
        self.full_seen_ms = now_ms
        is_news = not self.is_full_told and now_ms - self.full_since_ms >= FULL_MS
        self.is_full_told = self.is_full_told or is_news
        return is_news
