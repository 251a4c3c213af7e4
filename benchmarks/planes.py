"""W2, images that cost nothing to make, through shared memory and the broker, beside playing that sends nothing.

Through the broker three times: images that share nothing, and stacks of four frames, of which each frame is sent once,
made for nothing and by gymnasium's FrameStackObservation. All in turn in each round; the policy draws actions at
random, so that nothing hides what moving images costs. The ceilings play the same environments.
"""

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.measure import CLOCK, Played, Row, compare
from benchmarks.pipeline import Ceiling, Pipeline
from benchmarks.workload import PLANES

ROUNDS = 7
WITHIN_S = 160.0
TITLES = {
    "shm": "W2, shared memory",
    "redis": "W2, through the broker",
    "once": "W2, stacked, through the broker",
    "wrapped": "W2, FrameStackObservation, through the broker",
    "once-shm": "W2, stacked, each frame once in shared memory",
}
CEILINGS = {"shm": "redis", "redis": "redis", "once": "once", "wrapped": "wrapped", "once-shm": "once"}
"""Whose players are the ceiling's."""


def run(names: Sequence[str] = tuple(PLANES), rounds: int = ROUNDS, within_s: float = WITHIN_S) -> list[Row]:
    """Rows of each, against the ceiling of its round."""
    with tempfile.TemporaryDirectory(prefix="heddle-bench-") as folder, ExitStack() as stack:
        players: dict[str, Pipeline | Ceiling] = {}
        for name in names:
            players[name] = pipeline = Pipeline(name, Path(folder) / name)
            stack.callback(pipeline.close)
            pipeline.rest()
        for name in dict.fromkeys(CEILINGS[name] for name in names):
            players[f"ceiling of {name}"] = ceiling = Ceiling(name)
            stack.callback(ceiling.close)
        played = rotated(players, rounds, within_s)
        check(players)
    found = []
    for name in names:
        pairs = [(one[name], one[f"ceiling of {CEILINGS[name]}"]) for one in played]
        found += compare(TITLES[name], ("pipeline", "ceiling"), pairs)
    return found


def rotated(players: dict[str, Pipeline | Ceiling], most: int, within_s: float) -> list[dict[str, Played]]:
    """Rounds in which each plays once, another one first in each."""
    rounds: list[dict[str, Played]] = []
    names, until = list(players), CLOCK.monotonic() + within_s
    while len(rounds) < most and not (rounds and CLOCK.monotonic() > until):
        first = len(rounds) % len(names)
        rounds.append({name: players[name].play() for name in [*names[first:], *names[:first]]})
    return rounds


def check(players: dict[str, Pipeline | Ceiling]) -> None:
    """Batches went where they should: all but the first of each claim, or none."""
    for name, one in players.items():
        if isinstance(one, Pipeline):
            flow = one.client.broker.experience.flow(one.experiment.id, 0)
            share = flow.mapped / max(1, flow.appended.batches)
            if (share > 0.9) != (one.shape.plane == "shm"):
                raise RuntimeError(f"{name}: {share:.0%} of the batches lay in shared memory")
