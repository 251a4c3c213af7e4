"""The player alone against a loop written by hand: same environments, same policy, one process, nothing sent."""

from benchmarks.measure import Played, Row, alternate, compare
from benchmarks.workload import SHAPES, BareLoop, Shape, play_for, scene, w1
from heddle.producers.player import Player

SECTION = "player"
ROUNDS = 9
SECONDS = 0.7
WITHIN_S = 20.0


def run() -> list[Row]:
    """Rows for both shapes."""
    return [row for shape in SHAPES.values() for row in _rows(shape)]


def _rows(shape: Shape) -> list[Row]:
    stage = scene(w1(shape))
    player, bare = stage.player(0), BareLoop(stage, 0)

    def play_one(one: Player | BareLoop) -> Played:
        return play_for([one], SECONDS, shape.batch)

    for one in (player, bare):
        play_for([one], 0.2, shape.batch)
    pairs = alternate(ROUNDS, lambda: play_one(player), lambda: play_one(bare), within_s=WITHIN_S)
    player.close()
    bare.close()
    return compare(f"{SECTION}, {shape.envs} envs x {shape.steps}", ("player", "bare loop"), pairs)
