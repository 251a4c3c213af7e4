"""One process of the ceiling: plays its part of a workload's shards as a worker does, and sends nothing.

    python -m benchmarks.ceiling SHAPE PART

reads a number of seconds a line from standard input, plays that long and prints one JSON line; ends with its input.
"""

import json
import sys
from dataclasses import asdict

from benchmarks.workload import ALL, PROCESSES, play_for, scene, w1


def main() -> None:
    """Serve until the input ends."""
    shape, part = ALL[sys.argv[1]], int(sys.argv[2])
    stage = scene(w1(shape))
    players = [stage.player(index) for index in range(part, shape.shards, PROCESSES)]
    play_for(players, 0.2, shape.batch)
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(asdict(play_for(players, float(line), shape.batch))), flush=True)


if __name__ == "__main__":
    main()
