"""Rounds in turns, and what is made of them. It starts nothing and measures nothing itself."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchmarks.measure import Played, Row, spread

TITLES = {
    "w1": "W1, CartPole-v1, 64 environments",
    "w2": "W2, 84x84x4 images, 16 environments",
    "w3": "W3, waits of 10 ms, 64 environments",
}
GOALS = {"w1": 5.0, "w2": 8.0, "w3": 4.0}
"""How many times the steps/s of a framework Heddle is to reach."""
FRAMEWORKS = ("rllib", "torchrl", "sample-factory")
Play = Callable[[], Played]


class SideFailed(Exception):
    """A peer does not do what it was asked for."""


@dataclass
class LeftOut:
    """Who could not take part and why: said at once, and kept for the end."""

    say: Callable[[str], None]
    reasons: list[str] = field(default_factory=list)

    def add(self, who: str, why: str) -> None:
        """One more."""
        self.reasons.append(f"{who}: {why}")
        self.say(f"left out: {who}, {why}")


def compared(workload: str, players: dict[str, Play], rounds: int, left_out: LeftOut) -> list[Row]:
    """Rows of one workload: rates, CPU, and ratios of `heddle` to each of the others.

    Every second round goes the other way round. Who fails once is out, with all its rounds; `heddle` may not.
    """
    able = {name: play for name, play in players.items() if _played(name, play, workload, left_out)}  # makes and warms
    played: dict[str, list[Played]] = {name: [] for name in able}
    for number in range(rounds):
        for name in list(played) if number % 2 == 0 else list(reversed(played)):
            one = _played(name, able[name], workload, left_out)
            if one is None:
                del played[name]
            else:
                played[name].append(one)
    return rows_of(workload, played)


def rows_of(workload: str, played: dict[str, list[Played]]) -> list[Row]:
    """For the table; ratios are taken round by round."""
    section, mine, rows = TITLES[workload], played["heddle"], list[Row]()
    for name, some in played.items():
        rows.append(Row(section, f"{name}: steps/s", "1/s", spread(one.rate for one in some)))
        rows.append(Row(section, f"{name}: CPU a step", "us", spread(one.cpu_us for one in some)))
    for name, some in played.items():
        if name != "heddle":
            goal = f" (goal {GOALS[workload]:g})" if name in FRAMEWORKS else ""
            rows.append(Row(section, f"steps/s, heddle / {name}{goal}", "x", spread(ratios(mine, some))))
            cpu = spread(b.cpu_us / a.cpu_us for a, b in zip(mine, some, strict=True))
            rows.append(Row(section, f"CPU a step, {name} / heddle", "x", cpu))
    return rows


def ratios(mine: Sequence[Played], theirs: Sequence[Played]) -> list[float]:
    """Of steps/s, of each round."""
    return [a.rate / b.rate for a, b in zip(mine, theirs, strict=True)]


def _played(name: str, play: Play, workload: str, left_out: LeftOut) -> Played | None:
    try:
        return play()
    except SideFailed as problem:
        left_out.add(f"{name} at {workload}", str(problem))
        return None
