"""The same learning in every arrangement at equal steps: by number of workers, by lag, and with workers killed.

It never tunes anything and never judges: it runs `heddle run` as a user does, for so few steps that the task is not
solved yet. Once all seeds have reached the most that there is, every arrangement looks like every other.

    python -m benchmarks.arrangements --json runs.jsonl

prints one JSON line a run, then a table in Markdown: 10 arrangements, 5 seeds, some 15 minutes on 2 quiet cores. Beside
each mean stands what it is off the one-process loop, seed by seed, with the ends of the 95 % interval of that.
"""

import argparse
import json
import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.results import Result, origin, run_alone, run_fleet
from heddle.states.results import interval95

SPEC = Path(__file__).parents[1] / "examples" / "cartpole.toml"
ALONE = "one process, no broker"
SHARES = np.linspace(0.1, 1.0, 19)
"""Of the budget: where a curve is read. In the first tenth hardly an episode has ended."""


@dataclass(frozen=True, slots=True)
class Arrangement:
    """How the experience of a run is collected.

    Attributes:
        label: for people; workers: 0 for the one-process loop.
        sets: changes of the spec; kill_every: seconds between two SIGKILLs to a worker, None for none.
    """

    label: str
    workers: int
    sets: tuple[str, ...] = ()
    kill_every: float | None = None


def arrangements(kill_every: float) -> list[Arrangement]:
    """All of them, the one that the others are held against first."""
    found = [Arrangement(ALONE, 0)]
    found += [Arrangement(f"{count} worker{'s' if count > 1 else ''}", count) for count in (1, 2, 4)]
    found.append(Arrangement(f"2 workers, one killed every {kill_every:g} s", 2, kill_every=kill_every))
    lags = {lag: ("rollout.sync=false", f"rollout.max_policy_lag={lag}") for lag in (1, 2, 3, 4)}
    found += [Arrangement(f"2 workers, lag of at most {lag}", 2, sets) for lag, sets in lags.items()]
    label = f"2 workers, lag of at most 4, one killed every {kill_every:g} s"
    return [*found, Arrangement(label, 2, lags[4], kill_every)]


def play(one: Arrangement, options: argparse.Namespace, seed: int) -> Result:
    """One run. Nobody plays its policies afterwards: what is compared is how it learns."""
    sets = [*options.set, *one.sets, f"budget.env_steps={options.steps}"]
    if not one.workers:
        return run_alone(options.spec, seed=seed, episodes=1, sets=sets)
    return run_fleet(options.spec, seed=seed, workers=one.workers, kill_every=one.kill_every, episodes=0, sets=sets)


def read(curve: list[list[float]], steps: int) -> tuple[float, float]:
    """The mean over training of the returns of the last 100 episodes, and those at the end, both up to `steps`."""
    points = np.asarray(curve, dtype=float)
    values = np.interp(SHARES * steps, points[:, 0], points[:, 1])
    return float(values.mean()), float(values[-1])


def runs(options: argparse.Namespace) -> Iterator[tuple[Arrangement, int, Result]]:
    """Seed by seed, so that what was interrupted has something of every arrangement."""
    for seed in options.seeds:
        for one in arrangements(options.kill_every):
            if not options.only or one.label == ALONE or any(word in one.label for word in options.only):
                yield one, seed, play(one, options, seed)


def table(told: dict[str, dict[int, dict[str, Any]]]) -> str:
    """Markdown: one row an arrangement, over its seeds."""
    names = (
        "arrangement",
        "measured lag",
        "seeds",
        "mean over training",
        "at the end",
        "off one process, over training",
    )
    names += ("wall s", "kills", "books")
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    for label, by_seed in told.items():
        own = list(by_seed.values())
        most = max((one["lag"][1] for one in own if one["lag"]), default=0)
        lag = statistics.mean(one["lag"][0] for one in own if one["lag"]) if most else 0.0
        cells = [label, f"{lag:.1f}, at most {most:.0f}", str(len(own))]
        cells += [spread([one[name] for one in own]) for name in ("mean", "end")]
        cells.append("" if label == ALONE else off([by_seed[s]["mean"] - told[ALONE][s]["mean"] for s in by_seed]))
        cells += [f"{statistics.median(one['wall_s'] for one in own):.0f}", str(sum(one["kills"] for one in own))]
        cells.append("balance" if all(one["adds_up"] for one in own) else "DO NOT BALANCE")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def spread(values: list[float]) -> str:
    """Mean, least and most."""
    return f"{statistics.mean(values):.1f} ({min(values):.0f} to {max(values):.0f})"


def off(differences: list[float]) -> str:
    """Their mean with the ends of its interval; "none" where every seed gave the very same."""
    if not any(differences):
        return "none, seed by seed"
    ends = interval95(differences)
    interval = f" ({ends[0]:+.1f} to {ends[1]:+.1f})" if ends is not None else ""
    return f"{statistics.mean(differences):+.1f}{interval}"


def main() -> None:
    """Run all, print each as it ends, then the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spec", type=Path, default=SPEC)
    parser.add_argument("--steps", type=int, default=40_000, help="of every run")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--kill-every", type=float, default=4.0, metavar="SECONDS")
    parser.add_argument(
        "--only", nargs="*", metavar="WORDS", help="arrangements whose label has these, and one process"
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--json", type=Path, help="append each run to this file, with its curve")
    options = parser.parse_args()
    told: dict[str, dict[int, dict[str, Any]]] = {}
    for one, seed, result in runs(options):
        mean, end = read(result.curve, options.steps)
        known = asdict(result) | {"label": one.label, "mean": round(mean, 1), "end": round(end, 1)}
        line = {name: value for name, value in known.items() if name not in ("final", "best", "sampled")}
        if options.json:
            with options.json.open("a") as file:
                file.write(json.dumps(origin(options) | line) + "\n")
        print(json.dumps({name: value for name, value in line.items() if name != "curve"}), flush=True)
        told.setdefault(one.label, {})[seed] = line
    print(table(told))


if __name__ == "__main__":
    main()
