"""Learning results: the same spec over seeds, by one process and by fleets of several sizes, with and without kills.

It never tunes anything: it runs `heddle run` as a user does and plays fresh episodes with the final policy.

    python -m benchmarks.results examples/cartpole.toml --seeds 1 2 3 --workers 1 2 4 --kill-every 10 --json runs.jsonl

prints one JSON line a run, then a table in Markdown. The file keeps each run's curve, which `benchmarks.curves` draws.
"""

import argparse
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from heddle.clock import SystemClock

CLOCK = SystemClock()


@dataclass(frozen=True, slots=True)
class Result:
    """One run.

    Attributes:
        label: which arrangement.
        seed: of the experiment.
        final, best: mean return of fresh deterministic episodes with the last and the best checkpoint.
        sampled: with the last checkpoint, actions drawn as in training.
        train: mean return of the last 100 training episodes.
        steps, wall_s: accepted environment steps, and seconds.
        kills: workers that were sent SIGKILL.
        adds_up: the books of promise P2 balance.
        lag: mean and most of the policy versions that experience was behind when it was trained on.
        curve: [environment steps, mean return of the last 100 training episodes] of each update that knows one.
    """

    label: str
    seed: int
    final: float
    best: float
    sampled: float | None
    train: float
    steps: int
    wall_s: float
    kills: int
    adds_up: bool
    lag: list[float]
    curve: list[list[float]]


def heddle(*argv: str) -> list[str]:
    return [sys.executable, "-m", "heddle", *argv]


def worker_pids(root: int) -> list[int]:
    """Worker processes below `root`, by pid."""
    table = subprocess.run(["ps", "-eo", "pid=,ppid=,args="], text=True, capture_output=True, check=True).stdout
    rows = [line.split(None, 2) for line in table.splitlines()]
    parents = {int(pid): (int(parent), args) for pid, parent, args in (row for row in rows if len(row) == 3)}

    def below(pid: int) -> bool:
        while pid in parents:
            pid = parents[pid][0]
            if pid == root:
                return True
        return False

    return sorted(pid for pid, (_, args) in parents.items() if "heddle worker" in args and below(pid))


def run_fleet(
    spec: Path, *, seed: int, workers: int, kill_every: float | None, episodes: int, sets: list[str]
) -> Result:
    """One `heddle run`; with `kill_every` the oldest worker gets SIGKILL every so many seconds."""
    with tempfile.TemporaryDirectory() as folder:
        sets = [*sets, f"experiment.seed={seed}"]
        argv = heddle("run", str(spec.resolve()), "-n", str(workers), "--dir", "runs", "-o", "json")
        argv += [word for item in sets for word in ("--set", item)]
        with open(Path(folder) / "err", "w") as errors:  # noqa: PTH123
            process = subprocess.Popen(
                argv, cwd=folder, stdout=subprocess.PIPE, stderr=errors, text=True, env=beside(spec)
            )
            kills, next_kill = 0, CLOCK.monotonic() + (kill_every or 0)
            while process.poll() is None:
                CLOCK.sleep(0.1)
                pids = worker_pids(process.pid) if kill_every and CLOCK.monotonic() >= next_kill else []
                if pids:
                    os.kill(pids[kills % len(pids)], signal.SIGKILL)
                    kills, next_kill = kills + 1, next_kill + (kill_every or 0)
            out = process.stdout.read() if process.stdout else ""
        if process.returncode != 0:
            raise SystemExit(f"{' '.join(argv)} -> {process.returncode}\n{(Path(folder) / 'err').read_text()[-3000:]}")
        told = json.loads(out)
        checkpoints = next((Path(folder) / "runs").glob("*/checkpoints"))
        newest = sorted(checkpoints.glob("checkpoint-*.safetensors"))[-1]
        best = checkpoints / "best.safetensors"
        killing = f", one killed every {kill_every:g} s" if kill_every else ""
        return Result(
            label=f"{workers} worker{'s' if workers > 1 else ''}{killing}",
            seed=seed,
            final=score(newest, episodes, spec),
            best=score(best if best.exists() else newest, episodes, spec),
            sampled=score(newest, episodes, spec, "--stochastic"),
            train=told["return"],
            steps=told["env_steps"],
            wall_s=round(told["wall_s"], 1),
            kills=kills,
            adds_up=told["adds_up"],
            lag=read_lag(checkpoints.parent / "metrics.jsonl"),
            curve=read_curve(checkpoints.parent / "metrics.jsonl"),
        )


def read_curve(metrics: Path) -> list[list[float]]:
    """[steps, return] of the updates in a run's metrics.jsonl."""
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    return [[line["env_steps"], line["return"]] for line in lines if line.get("return") is not None]


def read_lag(metrics: Path) -> list[float]:
    """Mean and most over the updates in a run's metrics.jsonl."""
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    told = [(line["lag_mean"], line["lag_max"]) for line in lines if "lag_mean" in line]
    return [round(statistics.mean(mean for mean, _ in told), 2), max(most for _, most in told)] if told else []


def beside(spec: Path) -> dict[str, str]:
    """An environment for processes that find the modules beside `spec`."""
    paths = [str(spec.resolve().parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}


def score(checkpoint: Path, episodes: int, spec: Path, *how: str) -> float:
    """Mean return of fresh episodes, with the likeliest actions unless `how` says otherwise; NaN for no episodes."""
    if not episodes:
        return math.nan
    argv = heddle("eval", str(checkpoint), "--episodes", str(episodes), "-o", "json", *how)
    done = subprocess.run(argv, text=True, capture_output=True, check=True, env=beside(spec))
    return round(float(json.loads(done.stdout)["evaluations"][0]["return_mean"]), 1)


def run_alone(spec: Path, *, seed: int, episodes: int, sets: list[str]) -> Result:
    """The same learner in one process, without a broker."""
    argv = [
        sys.executable,
        "-m",
        "benchmarks.one_process_ppo",
        str(spec),
        "--seeds",
        str(seed),
        "--episodes",
        str(episodes),
    ]
    argv += [word for item in sets for word in ("--set", item)]
    done = subprocess.run(argv, text=True, capture_output=True, check=True)
    told = json.loads(done.stdout.splitlines()[-1])
    final = round(told["eval_return"], 1)
    return Result(
        label="one process, no broker",
        seed=seed,
        final=final,
        best=final,
        sampled=None,
        train=told["train_return"],
        steps=told["steps"],
        wall_s=told["wall_s"],
        kills=0,
        adds_up=True,
        lag=[0.0, 0.0],
        curve=told["curve"],
    )


def all_runs(options: argparse.Namespace) -> Iterator[Result]:
    common = {"episodes": options.episodes, "sets": options.set}
    for seed in options.seeds:
        if not options.no_alone:
            yield run_alone(options.spec, seed=seed, **common)
        for workers in options.workers:
            yield run_fleet(options.spec, seed=seed, workers=workers, kill_every=None, **common)
        if options.kill_every:
            yield run_fleet(options.spec, seed=seed, workers=2, kill_every=options.kill_every, **common)


def table(results: list[Result]) -> str:
    """Markdown: one row an arrangement, mean over seeds and the least and most of them."""
    names = ("arrangement", "seeds", "final policy", "best checkpoint", "last 100 training episodes")
    names += ("lag", "steps", "wall s", "kills", "books")
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    for label in dict.fromkeys(result.label for result in results):
        rows = [result for result in results if result.label == label]

        def spread(values: list[float]) -> str:
            return f"{statistics.mean(values):.1f} ({min(values):.0f} to {max(values):.0f})"

        cells = [label, str(len(rows)), spread([r.final for r in rows]), spread([r.best for r in rows])]
        mean, most = statistics.mean(r.lag[0] for r in rows if r.lag), max(r.lag[1] for r in rows if r.lag)
        cells += [spread([r.train for r in rows]), f"{mean:.1f}, at most {most:.0f}"]
        cells += [f"{max(r.steps for r in rows):,}"]
        cells += [f"{statistics.mean(r.wall_s for r in rows):.0f}", str(sum(r.kills for r in rows))]
        cells += ["balance" if all(r.adds_up for r in rows) else "DO NOT BALANCE"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Run all, print each as it ends, then the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spec", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--kill-every", type=float, default=None, metavar="SECONDS")
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--no-alone", action="store_true", help="leave out the one-process loop")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--json", type=Path, help="append each run to this file, with its curve")
    options = parser.parse_args()
    results = []
    for result in all_runs(options):
        line = asdict(result)
        if options.json:
            with options.json.open("a") as file:
                file.write(json.dumps(origin(options) | line) + "\n")
        print(json.dumps({key: value for key, value in line.items() if key != "curve"}), flush=True)
        results.append(result)
    print(table(results))


def origin(options: argparse.Namespace) -> dict[str, Any]:
    """Which code and which spec made a run, how busy the machine was."""
    argv = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(argv, cwd=Path(__file__).parent, text=True, capture_output=True, check=False)
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {"spec": options.spec.name, "set": options.set, "commit": done.stdout.strip() or None, "load": load}


if __name__ == "__main__":
    main()
