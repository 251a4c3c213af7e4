"""W2, images that cost nothing to make, through shared memory and the broker, beside playing that sends nothing.

All three in turn in each round; the policy draws actions at random, so that nothing hides what moving images costs.
"""

import tempfile
from contextlib import ExitStack
from pathlib import Path

from benchmarks.measure import CLOCK, Played, Row, compare
from benchmarks.pipeline import Ceiling, Pipeline
from benchmarks.workload import PLANES

ROUNDS = 7
WITHIN_S = 90.0
TITLES = {"shm": "W2, shared memory", "redis": "W2, through the broker"}


def run() -> list[Row]:
    """Rows of both, each against the ceiling of its round."""
    with tempfile.TemporaryDirectory(prefix="heddle-bench-") as folder, ExitStack() as stack:
        players: dict[str, Pipeline | Ceiling] = {}
        for name in PLANES:
            players[name] = pipeline = Pipeline(name, Path(folder) / name)
            stack.callback(pipeline.close)
            pipeline.rest()
        players["ceiling"] = ceiling = Ceiling("redis")
        stack.callback(ceiling.close)
        rounds = rotated(players)
        check(players)
    found = []
    for name, title in TITLES.items():
        found += compare(title, ("pipeline", "ceiling"), [(one[name], one["ceiling"]) for one in rounds])
    return found


def rotated(players: dict[str, Pipeline | Ceiling]) -> list[dict[str, Played]]:
    """Rounds in which each plays once, another one first in each."""
    rounds: list[dict[str, Played]] = []
    names, until = list(players), CLOCK.monotonic() + WITHIN_S
    while len(rounds) < ROUNDS and not (rounds and CLOCK.monotonic() > until):
        first = len(rounds) % len(names)
        rounds.append({name: players[name].play() for name in [*names[first:], *names[:first]]})
    return rounds


def check(players: dict[str, Pipeline | Ceiling]) -> None:
    """Batches went where they should: all but the first of each claim, or none."""
    for name, one in players.items():
        if isinstance(one, Pipeline):
            flow = one.client.broker.experience.flow(one.experiment.id, 0)
            share = flow.mapped / max(1, flow.appended.batches)
            if (share > 0.9) != (name == "shm"):
                raise RuntimeError(f"{name}: {share:.0%} of the batches lay in shared memory")
