"""Phases: what the workers of a pool spend their time on, as their samplers saw it between two looks.

It never names a worker: shares are those of all of a pool together, of a fixed list of phases.
"""

from collections.abc import Mapping

from heddle.broker.presence import WorkerInfo

PHASES = ("env", "policy", "books", "encode", "snapshot", "weights", "wait", "other")
"""Those of `heddle profile`; what is called otherwise counts as other. "sending" is beside them: of another thread."""
BESIDE = "sending"

Counts = Mapping[str, int]


class Phases:
    """Remembers what each worker had counted at the look before."""

    def __init__(self) -> None:
        self._before: dict[str, Counts] = {}
        self._shares: dict[str, dict[str, float]] = {}

    def look(self, workers: Mapping[str, Mapping[str, WorkerInfo]]) -> dict[str, dict[str, float]]:
        """Shares by pool and phase; of a pool of which nothing new was heard those of before."""
        now = {name: info.beat.profile for some in workers.values() for name, info in some.items()}
        told = {}
        for pool, some in workers.items():
            total = dict.fromkeys((*PHASES, BESIDE), 0)
            for name in some:
                for phase, count in _since(self._before.get(name, {}), now[name]).items():
                    total[phase if phase in total else "other"] += count
            samples = sum(total[phase] for phase in PHASES)
            before = self._shares.get(pool, {})
            told[pool] = {phase: count / samples for phase, count in total.items()} if samples else before
        self._before, self._shares = now, told
        return told


def _since(before: Counts, now: Counts) -> dict[str, int]:
    """What was counted since; a worker that began anew counts from 0."""
    more = {phase: count - before.get(phase, 0) for phase, count in now.items()}
    return dict(now) if any(count < 0 for count in more.values()) else more
