"""What has been seen so far of one experiment: curves and speed.

It never reads the broker or a clock.
"""

from collections.abc import Mapping

SPEED_S = 5.0
POINTS_KEPT = 20_000


class History:
    """What has been seen so far of one experiment: curves, speed."""

    def __init__(self) -> None:
        self.after = "0"
        self.updates = 0
        self.latest: dict[str, float] = {}
        self.returns: list[tuple[float, float]] = []
        self.eval_returns: list[tuple[float, float]] = []
        self._speed: list[tuple[float, int]] = []

    def add_update(self, update: int, values: Mapping[str, float]) -> None:
        """Take in the metrics of one update."""
        self.updates = max(self.updates, update)
        self.latest.update(values)
        steps = self.latest.get("env_steps", float(update))
        for name, points in (("return", self.returns), ("eval_return", self.eval_returns)):
            if name in values:
                points.append((steps, values[name]))
                del points[:-POINTS_KEPT]

    def steps(self, here: int) -> int:
        """Steps that count for the budget, of which `here` were trained in this run: it may continue another."""
        return max(here, int(self.latest.get("env_steps", 0)))

    def speed(self, now: float, steps: int) -> float:
        """Steps per second over the last seconds, given the count of now."""
        self._speed.append((now, steps))
        while len(self._speed) > 2 and now - self._speed[0][0] > SPEED_S:
            self._speed.pop(0)
        (then, before), (_, after) = self._speed[0], self._speed[-1]
        return max(0.0, (after - before) / (now - then)) if now > then else 0.0
