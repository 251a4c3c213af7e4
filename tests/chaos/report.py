"""The report of a siege: what was done, what came of it, and whether every promise was kept.

It never measures by itself: times are those of accepted batches and reported updates.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.chaos.history import History
from tests.chaos.siege import Hit

SHOWN = 20


@dataclass(frozen=True, slots=True)
class Times:
    """Recovery times in seconds.

    Attributes:
        count: measured; never: still not back when the siege was over.
    """

    count: int
    median: float
    p99: float
    worst: float
    never: int = 0

    def __str__(self) -> str:
        if not self.count:
            return "none measured"
        lost = f", {self.never} NEVER" if self.never else ""
        return f"n {self.count}, median {self.median:.2f} s, p99 {self.p99:.2f} s, worst {self.worst:.2f} s{lost}"


def times(seconds: Iterable[float | None]) -> Times:
    """Of measured ones; None = never."""
    all_of_them = list(seconds)
    known = sorted(one for one in all_of_them if one is not None)
    never = len(all_of_them) - len(known)
    if not known:
        return Times(0, math.nan, math.nan, math.nan, never)
    return Times(len(known), quantile(known, 0.5), quantile(known, 0.99), known[-1], never)


def quantile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of them do not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def shard_recovery(hit: Hit, histories: dict[str, History]) -> float | None:
    """Seconds until every shard of a hit worker had given a batch of a later owner; None = not all did."""
    back = [
        next((b.at_ms for b in histories[name].shard(shard).batches if b.epoch > epoch), None)
        for (name, shard), epoch in hit.held.items()
    ]
    known = [at_ms for at_ms in back if at_ms is not None]
    return (max(known) - hit.at_ms) / 1000 if len(known) == len(back) else None


def trainer_recovery(hit: Hit, histories: dict[str, History]) -> float | None:
    """Seconds until a later holder of the seat had done an update; None = it never did."""
    history = next((one for name, one in histories.items() if f" trainer {name}" in hit.command), None)
    if history is None:
        return None
    before = max((moment.epoch for moment in history.updates if moment.at_ms <= hit.at_ms), default=0)
    after = (moment.at_ms for moment in history.updates if moment.epoch > before and moment.at_ms > hit.at_ms)
    at_ms = next(after, None)
    return None if at_ms is None else (at_ms - hit.at_ms) / 1000


@dataclass(slots=True)
class Report:
    """One siege in figures.

    Attributes:
        deeds: "kill worker" -> how often; missed: found nobody alive.
        recovery: what -> times, under fire: while others were hit too.
        flows: experiment -> its counters at the end.
        refused: late writes of former owners that were turned away, in batches.
        violations: every broken promise, in words.
        most_files: that lay in shared memory at a time.
    """

    seed: int
    seconds: float
    deeds: dict[str, int]
    missed: int
    recovery: dict[str, Times]
    flows: dict[str, dict[str, int]]
    accepted: int
    claims: int
    seats: int
    checkpoints: int
    refused: int
    unknown_steps: int
    most_files: int = 0
    violations: list[str] = field(default_factory=list)

    @property
    def kept(self) -> bool:
        """Every promise was."""
        return not self.violations

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {**asdict(self), "kept": self.kept}

    def text(self) -> str:
        """For people."""
        lines = [f"chaos, seed {self.seed}, {self.seconds:.0f} s"]
        for deed in ("kill", "freeze"):
            parts = [f"{what.split()[1]} {n}" for what, n in sorted(self.deeds.items()) if what.startswith(deed + " ")]
            count = sum(n for what, n in self.deeds.items() if what.startswith(deed + " "))
            lines.append(f"  {deed + 's':<12}{count}: {', '.join(parts) or 'none'}")
        network = {what: n for what, n in self.deeds.items() if what.split()[0] not in ("kill", "freeze")}
        lines.append(f"  {'network':<12}{sum(network.values())}: {_joined(network)}; found nobody {self.missed}")
        for what, took in self.recovery.items():
            lines.append(f"  {'back':<12}{what}: {took}")
        lines.append(f"  {'fenced':<12}shards claimed {self.claims} times, seats taken {self.seats} times")
        zombies = sum("zombie" in one for one in self.violations)
        lines.append(f"  {'zombies':<12}{zombies} late writes accepted, {self.refused} refused and counted")
        lines.append(f"  {'checked':<12}{self.checkpoints} checkpoints against {self.accepted} accepted batches")
        for name, flow in self.flows.items():
            lines.append(f"  {'books':<12}{name}: {_books(flow)}")
        if self.most_files:
            lines.append(f"  {'memory':<12}at most {self.most_files} files and rings at a time, none at the end")
        if self.unknown_steps:
            lines.append(f"  {'forgotten':<12}{self.unknown_steps} trained steps that a killed server did not remember")
        lines += [f"  VIOLATION   {one}" for one in self.violations[:SHOWN]]
        if len(self.violations) > SHOWN:
            lines.append(f"  ... and {len(self.violations) - SHOWN} more")
        lines.append("every promise was kept" if self.kept else f"BROKEN: {len(self.violations)} violations")
        return "\n".join(lines)


def deeds(hits: Iterable[Hit]) -> dict[str, int]:
    """How often each deed hit each role."""
    return dict(Counter(f"{hit.action.deed} {hit.action.role}" for hit in hits))


def recoveries(hits: Sequence[Hit], histories: dict[str, History]) -> dict[str, Times]:
    """Recovery times under fire, for the roles whose return can be seen from outside."""
    workers = [hit for hit in hits if hit.action.role == "worker" and hit.held]
    trainers = [hit for hit in hits if hit.action.role == "trainer"]
    return {
        "killed workers' shards": times(shard_recovery(h, histories) for h in workers if h.action.deed == "kill"),
        "frozen workers' shards": times(shard_recovery(h, histories) for h in workers if h.action.deed == "freeze"),
        "trainers": times(trainer_recovery(h, histories) for h in trainers if h.action.deed == "kill"),
    }


def _joined(counts: dict[str, int]) -> str:
    return ", ".join(f"{what} {count}" for what, count in sorted(counts.items())) or "none"


def _books(flow: dict[str, int]) -> str:
    shown = ("appended", "trained", "evaluated", "stale", "dead", "dropped", "rolled_back", "entries")
    names = {"entries": "in flight"}
    told = ", ".join(f"{names.get(name, name)} {flow.get(name, 0)}" for name in shown)
    return f"{told}; discarded {flow.get('discarded', 0)}, forgotten {flow.get('forgotten', 0)}"
