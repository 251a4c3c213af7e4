"""The player alone against a loop written by hand: same environments, same policy, one process, nothing sent."""

from benchmarks.measure import Played, Row, alternate, compare, spread
from benchmarks.workload import SHAPES, BareLoop, Shape, play_for, scene, w1
from heddle.producers.player import Player

SECTION = "player"
ROUNDS = 7
SECONDS = 0.6
WITHIN_S = 20.0


def run() -> list[Row]:
    """Rows for both shapes."""
    return [row for shape in SHAPES.values() for row in _rows(shape)]


def _rows(shape: Shape) -> list[Row]:
    stage = scene(w1(shape))
    player, bare, seeded = stage.player(0), BareLoop(stage, 0), BareLoop(stage, 0, seeded=True)

    def play_one(one: Player | BareLoop) -> Played:
        return play_for([one], SECONDS, shape.batch)

    for one in (player, bare, seeded):
        play_for([one], 0.2, shape.batch)
    pairs = alternate(ROUNDS, lambda: play_one(player), lambda: play_one(bare), within_s=WITHIN_S)
    seeded_us = spread(play_one(seeded).cpu_us for _ in pairs)
    for one in (player, bare, seeded):
        one.close()
    section = f"{SECTION}, {shape.envs} envs x {shape.steps}"
    rows = compare(section, ("player", "bare loop"), pairs)
    return [*rows, Row(section, "bare loop that seeds its resets: CPU a step", "us", seeded_us)]
