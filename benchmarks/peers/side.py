"""One side of a comparison, run by the Python of its own environment, which holds no Heddle.

    python side.py MODULE LIBRARY

MODULE.SIDES has for each workload what makes a player, which has `segment()`, how many steps it then holds as arrays.
Reads a line: "open WORKLOAD" makes that player and has it play a segment; "play WORKLOAD SETTLE_S SECONDS" plays so
long for nothing, says {"settled": ...}, plays so long and says {"steps": ..., "wall_s": ...}; "close WORKLOAD" ends
that player. What goes wrong is said as {"failed": ...}. It ends with its input.
"""

import importlib
import importlib.metadata
import json
import os
import sys
import time
import traceback


def main():
    """Serve until the input ends; what libraries and their children print goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(**told):
        print(json.dumps(told), file=answers, flush=True)

    sides, players = importlib.import_module(sys.argv[1]).SIDES, {}
    say(version=importlib.metadata.version(sys.argv[2]), workloads=sorted(sides))
    for line in sys.stdin:
        try:
            serve(line.split(), sides, players, say)
        except Exception as problem:  # noqa: BLE001 - whatever a library raises ends this round, and is told
            traceback.print_exc()
            say(failed=f"{type(problem).__name__}: {str(problem).strip().partition(chr(10))[0]}")
    for player in players.values():
        close(player)


def serve(words, sides, players, say):
    """One line."""
    word, workload, *numbers = words
    if word == "open":
        players[workload] = sides[workload]()
        say(opened=workload, steps=players[workload].segment())
    elif word == "close":
        if workload in players:
            close(players.pop(workload))
        say(closed=workload)
    else:
        settle_s, seconds = map(float, numbers)
        segment = players[workload].segment
        play_for(settle_s, segment)
        say(settled=workload)
        began = time.monotonic()
        steps = play_for(seconds, segment)
        say(steps=steps, wall_s=time.monotonic() - began)


def close(player):
    """What it has to end."""
    end = getattr(player, "close", None)
    if end is not None:
        end()


def play_for(seconds, segment):
    """Steps of as many segments as begin within `seconds`, one at least."""
    until, steps = time.monotonic() + seconds, segment()
    while time.monotonic() < until:
        steps += segment()
    return steps


if __name__ == "__main__":
    main()
