"""The pace of a child: how long its steps usually take, and so how long an answer is awaited before others play.

It never waits, and ends nothing: deadlines are `process.py`'s.
"""

PATIENCE = 10
"""A request that takes so many times longer than steps usually do lets other shards of the worker play meanwhile."""
SOON_MS, LONG_MS = 50, 1000
"""But not before, and in any case after, that many milliseconds."""


class Pace:
    """Of one child.

    Attributes:
        patience_ms: milliseconds for which an answer is awaited before others play.
    """

    def __init__(self) -> None:
        self.patience_ms = float(SOON_MS)

    def note(self, lasted_ms: float) -> None:
        """A step lasted so many milliseconds."""
        usual_ms = self.patience_ms / PATIENCE
        usual_ms += 0.1 * (lasted_ms - usual_ms)
        self.patience_ms = min(LONG_MS, max(SOON_MS, PATIENCE * usual_ms))
