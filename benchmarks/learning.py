"""PPO on CartPole from end to end: `heddle run` with two workers against the same learner and player in one process.

Start-up is left out on both sides: the fleet's rate is taken between its first and its last update. Neither evaluates
on the way, and both play and train the same number of steps.
"""

import json
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import CLOCK, Row, alternate, spread
from benchmarks.starting import CARTPOLE, HEDDLE
from heddle.broker.metrics import Metric
from heddle.broker.server import start_server
from heddle.client import Client, connect
from heddle.spec.write import to_toml

SECTION = "PPO on CartPole"
ROUNDS = 7
WITHIN_S = 90.0
ENV_STEPS = 12_000
SPENT = {"waiting for batches": "wait_seconds", "learning": "update_seconds", "checkpoint": "checkpoint_seconds"}


@dataclass(frozen=True, slots=True)
class Learned:
    """One run.

    Attributes:
        rate: steps a second.
        command_s: of the whole command.
        spent_ms: milliseconds an update, by what they were spent on.
        final: mean return of the last evaluation; NaN without one.
    """

    rate: float
    command_s: float
    spent_ms: dict[str, float]
    final: float = float("nan")


def run() -> list[Row]:
    """Rows of both, and their ratio."""
    with (
        tempfile.TemporaryDirectory(prefix="heddle-bench-") as folder,
        start_server(Path(folder) / "server") as server,
        connect(server.url) as client,
    ):
        spec = Path(folder) / "spec.toml"
        spec.write_text(_spec())
        pairs = alternate(ROUNDS, lambda: played_by_fleet(spec, client), lambda: _alone(spec), within_s=WITHIN_S)
    rows = [
        Row(SECTION, "2 workers: steps/s", "1/s", spread(fleet.rate for fleet, _ in pairs)),
        Row(SECTION, "one process: steps/s", "1/s", spread(alone.rate for _, alone in pairs)),
        Row(SECTION, "steps/s, 2 workers / one process", "x", spread(a.rate / b.rate for a, b in pairs)),
        Row(SECTION, "2 workers: the whole command", "s", spread(fleet.command_s for fleet, _ in pairs)),
        Row(SECTION, "one process: the whole command", "s", spread(alone.command_s for _, alone in pairs)),
    ]
    for place, who in enumerate(("2 workers", "one process")):
        for what in pairs[0][place].spent_ms:
            rows.append(
                Row(SECTION, f"{who}: {what}, an update", "ms", spread(pair[place].spent_ms[what] for pair in pairs))
            )
    return rows


def _spec() -> str:
    source = tomllib.loads(CARTPOLE.read_text())
    source.pop("eval", None)
    source["budget"] = {"env_steps": ENV_STEPS}
    return to_toml(source)


def played_by_fleet(spec: Path, client: Client) -> Learned:
    """One `heddle run` of it with two workers on the client's broker.

    Raises:
        RuntimeError: it did not end well.
    """
    argv = [*HEDDLE, "run", str(spec), "-n", "2", "--redis-url", client.url, "-o", "json"]
    began = CLOCK.monotonic()
    done = subprocess.run(argv, cwd=spec.parent, capture_output=True, text=True, check=False)
    command_s = CLOCK.monotonic() - began
    if done.returncode != 0:
        raise RuntimeError(f"heddle run ended with {done.returncode}: {done.stderr[-2000:]}")
    told = json.loads(done.stdout)
    experiment, final = told["experiment"], told["eval_return"]
    metrics = client.broker.events.metrics_read(experiment, count=10_000)
    updates = [metric for metric in metrics if "env_steps" in metric.values]
    client.broker.experiments.remove(experiment, force=True)
    first, last = updates[0], updates[-1]
    steps = last.values["env_steps"] - first.values["env_steps"]
    rate = 1e3 * steps / (last.time_ms - first.time_ms)
    spent_ms = {what: _mean_ms(updates, name) for what, name in SPENT.items()}
    return Learned(rate, command_s, spent_ms, float("nan") if final is None else final)


def _mean_ms(updates: list[Metric], name: str) -> float:
    found = [metric.values[name] for metric in updates[1:] if name in metric.values]
    return 1e3 * sum(found) / len(found) if found else float("nan")


def _alone(spec: Path) -> Learned:
    argv = [sys.executable, "-m", "benchmarks.one_process_ppo", str(spec), "--seeds", "1", "--episodes", "1"]
    began = CLOCK.monotonic()
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    command_s = CLOCK.monotonic() - began
    if done.returncode != 0:
        raise RuntimeError(f"the loop in one process ended with {done.returncode}: {done.stderr[-2000:]}")
    told = json.loads(done.stdout.splitlines()[-1])
    updates = 1e3 * told["learning_s"] / told["update_ms"]
    played_ms = 1e3 * (told["wall_s"] - told["learning_s"]) / updates
    return Learned(told["steps"] / told["wall_s"], command_s, {"playing": played_ms, "learning": told["update_ms"]})
