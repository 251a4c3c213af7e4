"""PPO on CartPole from end to end: `heddle run` with two workers beside Stable-Baselines3's own PPO in one process.

The same spec for both, in turns: hyperparameters, steps, and ten fresh deterministic episodes at the end, whose mean
return says whether they learned the same. Heddle evaluates on the way, too, as the spec says; SB3 does not. Start-up is
left out of steps/s on both sides, and is in "the whole command" on both.
"""

import json
import subprocess
import tempfile
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.learning import played_by_fleet
from benchmarks.measure import CLOCK, Row, alternate, spread
from benchmarks.peers.comparing import LeftOut, SideFailed
from benchmarks.starting import CARTPOLE
from heddle.broker.server import start_server
from heddle.client import connect
from heddle.spec.write import to_toml

NAME = "ppo"
TITLE = "PPO on CartPole-v1, end to end"
GOAL = 1.5
WITHIN_S = 420.0
PATIENCE_S = 600.0
EPISODES = 10
"""As many as the spec says."""
SCRIPT = Path(__file__).parents[1] / "sb3.py"


@dataclass(frozen=True, slots=True)
class Trained:
    """One run.

    Attributes:
        rate: steps a second while it trained.
        command_s: of the whole command.
        final: mean return of the deterministic episodes at the end.
    """

    rate: float
    command_s: float
    final: float


def run(python: Path, rounds: int, left_out: LeftOut) -> list[Row]:
    """Rows of both.

    Args:
        python: of the environment that Stable-Baselines3 is in.
    """
    with (
        tempfile.TemporaryDirectory(prefix="heddle-bench-") as folder,
        start_server(Path(folder) / "server") as server,
        connect(server.url) as client,
    ):
        seeds = {"heddle": 0, "sb3": 0}

        def ours() -> Trained:
            seeds["heddle"] += 1
            spec = _seeded(Path(folder), seeds["heddle"])
            one = played_by_fleet(spec, client)
            return Trained(one.rate, one.command_s, one.final)

        def theirs() -> Trained:
            seeds["sb3"] += 1
            return learned_by_sb3(python, Path(folder), seeds["sb3"])

        try:
            pairs = alternate(rounds, ours, theirs, within_s=WITHIN_S)
        except SideFailed as problem:
            left_out.add(f"sb3 at {NAME}", str(problem))
            return []
    return rows_of(pairs)


def rows_of(pairs: Sequence[tuple[Trained, Trained]]) -> list[Row]:
    """For the table; ratios are taken round by round."""
    rows = list[Row]()
    for place, name in enumerate(("heddle", "sb3")):
        some = [pair[place] for pair in pairs]
        rows.append(Row(TITLE, f"{name}: steps/s", "1/s", spread(one.rate for one in some)))
        rows.append(Row(TITLE, f"{name}: the whole command", "s", spread(one.command_s for one in some)))
        rows.append(Row(TITLE, f"{name}: return at the end", "", spread(one.final for one in some)))
    ratio = spread(mine.rate / their.rate for mine, their in pairs)
    rows.append(Row(TITLE, f"steps/s, heddle / sb3 (goal {GOAL:g})", "x", ratio))
    return rows


def _seeded(folder: Path, seed: int) -> Path:
    """The example's spec with a seed of its own."""
    source = tomllib.loads(CARTPOLE.read_text())
    source["experiment"]["seed"] = seed
    path = folder / f"seed-{seed}.toml"
    path.write_text(to_toml(source))
    return path


def learned_by_sb3(python: Path, folder: Path, seed: int) -> Trained:
    """One run of theirs. Raises SideFailed."""
    spec, out = _seeded(folder, seed), folder / f"sb3-{seed}.jsonl"
    argv = [str(python), str(SCRIPT), str(spec), "--seeds", str(seed), "--episodes", str(EPISODES), "--json", str(out)]
    began = CLOCK.monotonic()
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    except subprocess.TimeoutExpired as error:
        raise SideFailed(f"did not end within {PATIENCE_S:g} s") from error
    command_s = CLOCK.monotonic() - began
    if done.returncode:
        raise SideFailed((done.stderr.strip().splitlines() or ["no reason given"])[-1])
    try:
        told = json.loads(out.read_text().splitlines()[-1])
        return Trained(told["steps"] / told["wall_s"], command_s, told["final"])
    except (OSError, LookupError, ValueError) as error:
        raise SideFailed(f"wrote no result that can be read: {error!r}") from error
