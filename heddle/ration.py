"""A ration: so many at once, and then as they come back. It never reads a clock: the time is the caller's."""

from dataclasses import dataclass


@dataclass(slots=True)
class Ration:
    """What one speaker may still say.

    Attributes:
        burst: so many at once; per_second: so many come back.
        left: of them; at: monotonic seconds when that was.
        refused: how many were refused since one was given.
    """

    burst: float
    per_second: float
    left: float
    at: float
    refused: int = 0

    @classmethod
    def full(cls, burst: float, per_second: float, now: float) -> "Ration":
        """One of which nothing was taken yet; `now` is monotonic seconds."""
        return cls(burst, per_second, burst, now)

    def take(self, now: float) -> bool:
        """Whether there is one more at `now`, monotonic seconds; a refused one is counted."""
        self.left = min(self.burst, self.left + self.per_second * (now - self.at))
        self.at = now
        if self.left < 1:
            self.refused += 1
            return False
        self.left -= 1
        return True

    def take_refused(self) -> int:
        """How many were refused since this was asked last."""
        refused, self.refused = self.refused, 0
        return refused
