"""One host from 1 to 64 workers: how long it takes until all live, and what each takes of its memory for itself.

    python -m benchmarks.scaling [WORKERS]

Live are those whose heartbeat was heard. Private is memory that no other process shares (Private_* of the kernel's
smaps_rollup), once when they are idle, and once each has played CartPole under a numpy policy.
"""

import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from benchmarks.measure import CLOCK, Row, spread
from benchmarks.pipeline import Consumer
from heddle.client import Client, connect
from heddle.errors import TimedOut
from heddle.launch.check import load_and_check
from heddle.launch.local import Local, Setup
from heddle.launch.process import describe_exit
from heddle.stop import StopFlag

WORKERS = 64
PATIENCE_S = 120.0
SETTLE_S = 3.0
MB = 1e6


def run() -> list[Row]:
    """Rows of scaling to `WORKERS`."""
    return measure(WORKERS)


def measure(workers: int) -> list[Row]:
    """Rows of scaling from one worker to `workers`."""
    section = f"scaling, 1 to {workers} workers"
    with tempfile.TemporaryDirectory(prefix="heddle-bench-") as folder, ExitStack() as stack:
        local = Local(Setup(url=None, folder=Path(folder) / "server", workers=1), stop=StopFlag())
        stack.callback(local.end)
        local.start_server()
        local.start_roles()
        client = stack.enter_context(connect(local.url))
        until_live(local, client, 1)
        client.broker.pools.set_desired("default", workers)
        live_s = until_live(local, client, workers)
        _let_be(local, SETTLE_S)
        idle = private_bytes(local)
        _play(local, client, workers, stack)
        played = private_bytes(local)
    return [
        Row(section, "until all are heard", "s", spread([live_s])),
        *(
            Row(section, f"private memory of one, {when}", "MB", spread(n / MB for n in found))
            for when, found in (("idle", idle), ("having played", played))
        ),
    ]


def private_bytes(local: Local) -> list[int]:
    """Of each worker, what no other process shares; NaN where the system does not tell."""
    return [_private(child.pid) for child in local.workers()]


def _private(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Private_"))


def until_live(local: Local, client: Client, workers: int) -> float:
    """Seconds until so many were heard."""
    began = CLOCK.monotonic()
    while (live := sum(info.alive for info in client.broker.pools.workers())) < workers:
        if CLOCK.monotonic() - began > PATIENCE_S:
            raise TimedOut(f"{live} of {workers} workers live after {PATIENCE_S:g} s")
        _let_be(local, 0.05)
    return CLOCK.monotonic() - began


def _play(local: Local, client: Client, workers: int, stack: ExitStack) -> None:
    """Have each worker play a shard until every one delivered."""
    source = {
        "experiment": {"name": "bench-scaling", "seed": 1},
        "env": {"id": "CartPole-v1", "num_envs": 2 * workers, "envs_per_shard": 2},
        "rollout": {"steps": 32},
        "budget": {"env_steps": 10**12},
    }
    loaded, checked = load_and_check(source)
    experiment = client.submit_loaded(loaded, spaces=checked.spaces_json())
    consumer = Consumer(client, experiment.id)
    stack.callback(consumer.seat.release)
    until = CLOCK.monotonic() + PATIENCE_S
    while len({shard.worker for shard in experiment.shards() if shard.seq > 0}) < workers:
        if CLOCK.monotonic() > until:
            raise TimedOut(f"not every worker delivered within {PATIENCE_S:g} s")
        consumer.poll()
        local.step()
    experiment.pause()
    while consumer.poll(300):
        local.step()


def _let_be(local: Local, seconds: float) -> None:
    until = CLOCK.monotonic() + seconds
    while CLOCK.monotonic() < until:
        local.step()
        if local.endings:
            raise RuntimeError(f"a process ended: {local.endings[0].why} ({describe_exit(local.endings[0].code)})")
        CLOCK.sleep(0.05)


if __name__ == "__main__":
    for row in measure(int(sys.argv[1]) if len(sys.argv) > 1 else WORKERS):
        value = row.value
        print(f"{row.what} | {row.unit} | {value.median:.3g} ({value.low:.3g} to {value.high:.3g})")
