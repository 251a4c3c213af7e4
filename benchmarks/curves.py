"""Draws the curves that the runs kept: the mean of each arrangement, and the least and the most of its seeds.

python -m benchmarks.curves runs.jsonl --spec breakout.toml --to docs/breakout.png --title "MinAtar Breakout, PPO"
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from heddle.cli.curve import Curve, Shade, save_picture


def band(label: str, runs: list[dict[str, Any]], places: int = 200) -> tuple[Curve, Shade]:
    """The mean of `runs`, with the least and the most of them, at steps that all of them reached."""
    curves = [np.asarray(run["curve"], dtype=float) for run in runs]
    x = np.linspace(max(curve[0, 0] for curve in curves), min(curve[-1, 0] for curve in curves), places)
    y = np.stack([np.interp(x, curve[:, 0], curve[:, 1]) for curve in curves])
    steps = tuple(x.tolist())
    name = f"{label}, {len(runs)} seed{'s' if len(runs) > 1 else ''}"
    mean = tuple(zip(steps, y.mean(0).tolist(), strict=True))
    return Curve(name, mean), Shade(steps, tuple(y.min(0).tolist()), tuple(y.max(0).tolist()))


def main() -> None:
    """Read, group by arrangement, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--spec", required=True, help="the spec's file name")
    parser.add_argument("--to", type=Path, required=True, help=".png, .svg or .html")
    parser.add_argument("--title", default="")
    options = parser.parse_args()
    kept = [json.loads(line) for line in options.runs.read_text().splitlines()]
    groups: dict[str, list[dict[str, Any]]] = {}
    for run in kept:
        if run["spec"] == options.spec and run["curve"]:
            groups.setdefault(" ".join([run["label"], *run.get("set", [])]), []).append(run)
    if not groups:
        parser.error(f"{options.runs} has no curve of {options.spec}")
    bands = [band(label, runs) for label, runs in groups.items()]
    save_picture(
        options.to,
        [curve for curve, _ in bands],
        title=options.title or options.spec,
        x_label="environment steps",
        y_label="return, last 100 training episodes",
        shades=[shade for _, shade in bands],
    )
    print(f"wrote {options.to}")


if __name__ == "__main__":
    main()
