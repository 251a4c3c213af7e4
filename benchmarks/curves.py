"""Draws the curves that the runs kept: the mean of each arrangement, and the least and the most of its seeds.

python -m benchmarks.curves runs.jsonl --spec breakout.toml --to docs/breakout.png --title "MinAtar Breakout, PPO"

Of runs with --set only those that had the very ones that are named here, so that other tasks are not among them.
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


def chosen(
    runs: list[dict[str, Any]], spec: str, *, sets: list[str], labels: list[str]
) -> dict[str, list[dict[str, Any]]]:
    """Arrangement -> its runs, those that have a curve.

    Args:
        sets: what they were made with beside the spec.
        labels: arrangements, in this order; all when there is none.
    """
    groups: dict[str, list[dict[str, Any]]] = {label: [] for label in labels}
    for run in runs:
        is_wanted = run["spec"] == spec and sorted(run.get("set", [])) == sorted(sets) and run["curve"]
        if is_wanted and (not labels or run["label"] in groups):
            groups.setdefault(run["label"], []).append(run)
    return {label: found for label, found in groups.items() if found}


def main() -> None:
    """Read, group by arrangement, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--spec", required=True, help="the spec's file name")
    parser.add_argument("--to", type=Path, required=True, help=".png, .svg or .html")
    parser.add_argument("--title", default="")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="runs that were made with it")
    parser.add_argument("--label", action="append", default=[], help="these arrangements alone, in this order")
    options = parser.parse_args()
    kept = [json.loads(line) for line in options.runs.read_text().splitlines()]
    groups = chosen(kept, options.spec, sets=options.set, labels=options.label)
    if not groups:
        parser.error(f"{options.runs} has no such curve of {options.spec}")
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
