"""One host from 1 to 64 workers: how long it takes until all live, and what each takes of its memory for itself.

    python -m benchmarks.scaling [WORKERS]

Live are those whose heartbeat was heard. Private is memory that no other process shares (Private_* of the kernel's
smaps_rollup), once when they are idle, and once each has played CartPole under a numpy policy.
"""

import sys
from contextlib import ExitStack
from pathlib import Path

from benchmarks.fleet import PATIENCE_S, Fleet, fleet
from benchmarks.measure import CLOCK, Row, spread
from benchmarks.pipeline import Consumer
from heddle.errors import TimedOut

WORKERS = 64
SETTLE_S = 3.0
MB = 1e6


def run() -> list[Row]:
    """Rows of scaling to `WORKERS`."""
    return measure(WORKERS)


def measure(workers: int) -> list[Row]:
    """Rows of scaling from one worker to `workers`."""
    section = f"scaling, 1 to {workers} workers"
    with fleet(1) as it, ExitStack() as stack:
        it.until_live(1)
        it.client.broker.pools.set_desired("default", workers)
        live_s = it.until_live(workers)
        it.let_be(SETTLE_S)
        idle = private_bytes(it)
        _play(it, workers, stack)
        played = private_bytes(it)
    return [
        Row(section, "until all are heard", "s", spread([live_s])),
        *(
            Row(section, f"private memory of one, {when}", "MB", spread(n / MB for n in found))
            for when, found in (("idle", idle), ("having played", played))
        ),
    ]


def private_bytes(it: Fleet) -> list[int]:
    """Of each worker, what no other process shares; NaN where the system does not tell."""
    return [_private(child.pid) for child in it.local.workers()]


def _private(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Private_"))


def _play(it: Fleet, workers: int, stack: ExitStack) -> None:
    """Have each worker play a shard until every one delivered."""
    source = {
        "experiment": {"name": "bench-scaling", "seed": 1},
        "env": {"id": "CartPole-v1", "num_envs": 2 * workers, "envs_per_shard": 2},
        "rollout": {"steps": 32},
        "budget": {"env_steps": 10**12},
    }
    experiment = it.submit(source)
    consumer = Consumer(it.client, experiment.id)
    stack.callback(consumer.seat.release)
    until = CLOCK.monotonic() + PATIENCE_S
    while len({shard.worker for shard in experiment.shards() if shard.seq > 0}) < workers:
        if CLOCK.monotonic() > until:
            raise TimedOut(f"not every worker delivered within {PATIENCE_S:g} s")
        consumer.poll()
        it.local.step()
    experiment.pause()
    while consumer.poll(300):
        it.local.step()


if __name__ == "__main__":
    for row in measure(int(sys.argv[1]) if len(sys.argv) > 1 else WORKERS):
        value = row.value
        print(f"{row.what} | {row.unit} | {value.median:.3g} ({value.low:.3g} to {value.high:.3g})")
