"""The player alone against a loop written by hand: same environments, same policy, one process, nothing sent."""

import resource

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

    kept = Snapshotting(stage.player(0))

    def play_one(one: "Player | BareLoop | Snapshotting") -> Played:
        return play_for([one], SECONDS, shape.batch)

    for one in (player, bare, seeded, kept):
        play_for([one], 0.2, shape.batch)
    pairs = alternate(ROUNDS, lambda: play_one(player), lambda: play_one(bare), within_s=WITHIN_S)
    with_them = alternate(ROUNDS, lambda: play_one(kept), lambda: play_one(player), within_s=WITHIN_S)
    seeded_us = spread(play_one(seeded).cpu_us for _ in pairs)
    inline = stage.player(0)
    for one in (player, bare, seeded, kept):
        one.close()
    section = f"{SECTION}, {shape.envs} envs x {shape.steps}"
    rows = compare(section, ("player", "bare loop"), pairs)
    share = spread(a.cpu_us / b.cpu_us for a, b in with_them)
    isolated = scene(w1(shape, isolation="process")).player(0)
    play_for([isolated], 0.2, shape.batch)
    apart = alternate(ROUNDS, lambda: play_one(isolated), lambda: play_one(inline), within_s=WITHIN_S)
    isolated.close()
    inline.close()
    return [
        *rows,
        Row(section, "bare loop that seeds its resets: CPU a step", "us", seeded_us),
        Row(section, "CPU a step, player with a snapshot at every batch / player", "x", share),
        Row(
            section,
            "player, environments in a child: time a step",
            "us",
            spread(1e6 * a.wall_s / a.steps for a, _ in apart),
        ),
        Row(
            section,
            "a child for a shard, from its start to its end: CPU",
            "s",
            spread(_child_cpu_s(shape) for _ in range(3)),
        ),
        Row(section, "player, inline: time a step", "us", spread(1e6 * b.wall_s / b.steps for _, b in apart)),
        Row(section, "a snapshot", "B", spread([len(kept.player.standing.pack())])),
    ]


def _child_cpu_s(shape: Shape) -> float:
    """Processor time of a child that makes a shard's environments, resets them and is closed."""
    stage = scene(w1(shape, isolation="process"))
    before = _used_by_children_s()
    stage.player(0).close()
    return _used_by_children_s() - before


def _used_by_children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Snapshotting:
    """A player that takes a snapshot behind every batch."""

    def __init__(self, player: Player) -> None:
        self.player = player

    def play(self) -> None:
        """One segment of every environment."""
        self.player.recycle(self.player.play(1))
        self.player.standing.pack()

    def close(self) -> None:
        """Close every environment."""
        self.player.close()
