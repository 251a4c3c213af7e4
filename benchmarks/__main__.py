"""Figures of this machine: `make bench`, or

    python -m benchmarks [--only NAME ...] [--out FILE_OR_FOLDER]

runs the benchmarks (eight minutes on 2 quiet cores, and up to three for `observing`; `top` and `neighbours` only where
they are named), prints one table and writes one JSON file. It never asserts anything about speed: it fails only when
something does not work.
"""

import argparse
import importlib
import json
import logging
import math
import signal
import sys
from pathlib import Path

from benchmarks.machine import machine
from benchmarks.measure import CLOCK, Row
from heddle.launch.process import use_one_thread

SECTIONS = {
    "player": "rollout",
    "native": "native",
    "waiting": "waiting",
    "pipeline": "pipeline",
    "planes": "planes",
    "observing": "observing",
    "observing-parts": "observing_parts",
    "codec": "codec",
    "control": "control",
    "top": "top",
    "broker": "servers",
    "start": "starting",
    "scaling": "scaling",
    "weights": "weights",
    "ppo": "learning",
    "neighbours": "neighbours",
}
"""Name on the command line -> module, in the order in which they run."""
BY_NAME = ("top", "neighbours")
"""Not part of `make bench`, which shall be over within a quarter of an hour."""
OUT = Path(__file__).parent / "out"


def main() -> int:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usual = [name for name in SECTIONS if name not in BY_NAME]
    parser.add_argument("--only", nargs="+", choices=list(SECTIONS), default=usual, metavar="NAME")
    parser.add_argument("--out", type=Path, default=OUT, help="JSON file, or the folder for one (default: %(default)s)")
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    use_one_thread()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that everything that was started is ended
    facts, rows, began = machine(), list[Row](), CLOCK.monotonic()
    for name in (name for name in SECTIONS if name in options.only):
        print(f"measuring {name} ...", file=sys.stderr, flush=True)
        section_began = CLOCK.monotonic()
        rows += importlib.import_module(f"benchmarks.{SECTIONS[name]}").run()
        facts[f"seconds_{name}"] = round(CLOCK.monotonic() - section_began, 1)
    facts["seconds"] = round(CLOCK.monotonic() - began, 1)
    print(table(rows))
    print(
        f"\n{facts['processor']}, {facts['cores']} cores, Python {facts['python']}, {facts['system']}, {facts['date']}"
    )
    print(f"wrote {write(options.out, facts, rows)}")
    return 0


def table(rows: list[Row]) -> str:
    """All of it as Markdown."""
    lines = ["| benchmark | what | unit | median | least | most | rounds |", "|---|---|---|--:|--:|--:|--:|"]
    last = ""
    for row in rows:
        value = row.value
        cells = [row.section if row.section != last else "", row.what, row.unit]
        cells += [number(part) for part in (value.median, value.low, value.high)]
        lines.append(f"| {' | '.join([*cells, str(value.rounds)])} |")
        last = row.section
    return "\n".join(lines)


def number(value: float) -> str:
    """With about three significant digits."""
    if not math.isfinite(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def write(out: Path, facts: dict[str, object], rows: list[Row]) -> Path:
    """The JSON file; a folder gets one named by the time."""
    path = out
    if out.suffix != ".json":
        stamp = str(facts["date"])[:19].replace(":", "").replace("-", "")
        path = out / f"bench-{stamp}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": facts, "rows": [row.to_json() for row in rows]}, indent=1) + "\n")
    return path


if __name__ == "__main__":
    sys.exit(main())
