"""Weights latency: from a publish until 64 otherwise idle workers of this host hold them.

    python -m benchmarks.weights [WORKERS]

Each worker holds one shard of a synchronous experiment with segments of one step: it waits for the next version, and
gives one batch with it. The moment is that at which the broker accepted the batch, so playing one step and appending
it are part of the figure. Weights of about 1 MB (a network of 346-346).
"""

import sys
from contextlib import ExitStack

import numpy as np

from benchmarks.fleet import fleet
from benchmarks.measure import CLOCK, Row, Spread
from benchmarks.pipeline import Consumer
from heddle.consumers.setting import read_setting
from heddle.errors import TimedOut
from heddle.launch.local import Local
from heddle.policies.weights import pack

WORKERS = 64
ROUNDS = 15
PATIENCE_S = 90.0
PAUSE_S = 0.5


def run() -> list[Row]:
    """Rows for `WORKERS` workers."""
    return measure(WORKERS)


def measure(workers: int) -> list[Row]:
    """Rows for `workers` workers."""
    with fleet(workers, durability="memory") as it, ExitStack() as stack:
        client, local = it.client, it.local
        it.until_live(workers)
        experiment = it.submit(_source(workers))
        consumer = Consumer(client, experiment.id)  # publishes version 1
        stack.callback(consumer.seat.release)
        _until_given(local, consumer, workers)
        weights = read_setting(client.broker, experiment.id).policy.get_weights()
        found, before, size = list[float](), _gets(client), 0
        for version in range(2, ROUNDS + 2):
            CLOCK.sleep(PAUSE_S)
            data = pack({name: value + version for name, value in weights.items()}, version=version, update=version)
            size, began_ms = len(data), client.broker.conn.now_ms()
            client.broker.policies.publish(experiment.id, consumer.seat.epoch, version, data, update=version)
            found += [at_ms - began_ms for at_ms in _until_given(local, consumer, workers)]
        fetches = (_gets(client) - before) / ROUNDS
    section = f"weights of {size / 1e6:.2g} MB, publish to first step of {workers} idle workers"
    return [
        Row(section, "median of all", "ms", _at(found, 50)),
        Row(section, "p99 of all", "ms", _at(found, 99)),
        Row(section, "fetches from the broker, a version", "", Spread(fetches, fetches, fetches, ROUNDS)),
    ]


def _at(found: list[float], percent: float) -> Spread:
    value = float(np.percentile(found, percent))
    return Spread(value, min(found), max(found), ROUNDS)


def _gets(client: object) -> int:
    stats = client.broker.conn.main.info("commandstats")  # type: ignore[attr-defined]
    return int(stats.get("cmdstat_get", {"calls": 0})["calls"])


def _until_given(local: Local, consumer: Consumer, workers: int) -> list[int]:
    """When each of so many batches was accepted, server ms."""
    until, found = CLOCK.monotonic() + PATIENCE_S, list[int]()
    while len(found) < workers:
        if CLOCK.monotonic() > until:
            raise TimedOut(f"{len(found)} of {workers} workers gave a batch within {PATIENCE_S:g} s")
        found += [int(pointer.entry_id.partition("-")[0]) for pointer in consumer.take(200)]
        local.step()
    return found


def _source(workers: int) -> dict[str, object]:
    return {
        "experiment": {"name": "bench-weights", "seed": 1},
        "env": {"id": "CartPole-v1", "num_envs": workers, "envs_per_shard": 1},
        "policy": {"hidden": [346, 346]},
        "rollout": {"steps": 1, "sync": True},
        "budget": {"env_steps": 10**12},
    }


if __name__ == "__main__":
    for row in measure(int(sys.argv[1]) if len(sys.argv) > 1 else WORKERS):
        value = row.value
        print(f"{row.section} | {row.what} | {row.unit} | {value.median:.4g} ({value.low:.4g} to {value.high:.4g})")
