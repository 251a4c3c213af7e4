"""What an update's metrics take in a server's memory: one run's, written as they are and as JSON, as they once were.

    python -m benchmarks.metrics_bytes runs/cartpole-7f3a2b

It starts a server of its own and asks it (`MEMORY USAGE ... SAMPLES 0`).
"""

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from heddle.broker import keys
from heddle.broker.metrics import Columns, Metric, entry_bytes
from heddle.broker.records import dump_json
from heddle.broker.server import start_server
from heddle.client import connect
from heddle.consumers.curve_file import CURVE, read_metrics

LEAST = 2_000
"""Entries that are written; what a run measured is written again and again until it is so many."""


def main(argv: Sequence[str]) -> int:
    """Print a line for each way of writing. Returns 2 where no run with a curve is named."""
    if len(argv) != 1 or not (Path(argv[0]) / CURVE).is_file():
        print(__doc__)
        return 2
    found = read_metrics(Path(argv[0]) / CURVE)
    found *= -(-LEAST // max(1, len(found)))
    with tempfile.TemporaryDirectory(prefix="heddle-bench-") as folder:
        server = start_server(Path(folder), durability="memory")
        try:
            for what, rows in (("as JSON", _as_json(found)), ("as it is", _as_it_is(found))):
                print(f"{what:<10}{_bytes(server.url, rows):>8.0f} bytes an update, {len(rows):,} of them")
        finally:
            server.stop()
    told = sum(map(entry_bytes, _as_it_is(found))) / len(found)
    print(f"{'estimated':<10}{told:>8.0f} bytes an update: what the cap reckons with")
    return 0


def _as_json(found: Sequence[Metric]) -> list[dict[str, str]]:
    return [{"update": str(one.update), "values": dump_json(one.values)} for one in found]


def _as_it_is(found: Sequence[Metric]) -> list[dict[str, str]]:
    columns = Columns()
    flat = [columns.fields(one.update, one.values) for one in found]
    return [dict(zip(row[::2], row[1::2], strict=True)) for row in flat]


def _bytes(url: str, rows: Sequence[dict[str, str]]) -> float:
    key = keys.metrics("e-1")
    with connect(url) as client:
        raw = client.broker.conn.main
        raw.delete(key)
        pipe = raw.pipeline(transaction=False)
        for row in rows:
            pipe.xadd(key, row)  # type: ignore[arg-type]
        pipe.execute()
        return float(raw.memory_usage(key, samples=0)) / len(rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
