"""Figures of many seeds, kept in a file so that a long run may be cut short and gone on with.

It never runs a seed. The file is written beside its place and moved there: it is whole, whenever the run is killed.
"""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.simulation.plan import Outcome


@dataclass(slots=True)
class Figures:
    """What came of the seeds from `first` to `next` - 1.

    Attributes:
        broken: seeds that broke a promise.
        commands, virtual_s: of all of them; took_s: seconds of real time, of all sittings.
    """

    first: int
    next: int
    broken: list[int] = field(default_factory=list)
    commands: int = 0
    virtual_s: float = 0.0
    took_s: float = 0.0

    @property
    def seeds(self) -> int:
        return self.next - self.first

    def add(self, outcome: Outcome) -> None:
        """The next seed is done."""
        self.next += 1
        self.commands += outcome.events
        self.virtual_s += outcome.virtual_s
        if outcome.problem:
            self.broken.append(outcome.plan.seed)

    def line(self, jobs: int) -> str:
        """All of it as one line of JSON."""
        took_s = max(self.took_s, 1e-9)
        rates = {"seeds_per_s": round(self.seeds / took_s, 2), "virtual_per_real": round(self.virtual_s / took_s)}
        shown = {**asdict(self), "virtual_s": round(self.virtual_s), "took_s": round(self.took_s, 1)}
        return json.dumps({"seeds": self.seeds, **shown, **rates, "jobs": jobs})

    def save(self, path: Path) -> None:
        """Where `load` finds it."""
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(asdict(self)))
        temporary.replace(path)


def load(path: Path | None, first: int) -> Figures:
    """What an earlier sitting left for seeds from `first` on; nothing done where it left nothing.

    Raises:
        ValueError: the file is about other seeds.
    """
    if path is None or not path.exists():
        return Figures(first, first)
    found = Figures(**json.loads(path.read_text()))
    if found.first != first:
        raise ValueError(f"{path} is about seeds from {found.first} on, not from {first}")
    return found
