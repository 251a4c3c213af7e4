"""Which way the batches of a kill test take: through the broker, or through the shared memory of this host.

`python -m tests.chaos.planes ARGUMENTS` is `heddle`, only that every size of batch is played in place and its buffer
used again, as shipped code does with large ones. It never changes what is offered to whom.
"""

import os
import sys

PLANES = ("shm", "redis")
SOAK = bool(os.environ.get("HEDDLE_SOAK"))


def planes_of(place: int) -> tuple[str, ...]:
    """Over which the kill test at `place` of its module runs: one by default, in turn; all of them in a soak."""
    return PLANES if SOAK else (PLANES[place % len(PLANES)],)


def play_in_place() -> None:
    """In a worker: the smallest batch is treated like the largest one."""
    from heddle.plane import ring
    from heddle.producers import packing

    ring.REUSED_FROM = packing.IN_PLACE_FROM = 0


def main() -> None:
    play_in_place()
    from heddle.__main__ import main as heddle
    from heddle.launch import process

    process.HEDDLE = IN_PLACE
    heddle()


IN_PLACE = (sys.executable, "-m", "tests.chaos.planes")

if __name__ == "__main__":
    main()
