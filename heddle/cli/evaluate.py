"""`eval`: play fresh episodes with a checkpoint.

It needs no broker and never changes the checkpoint.
"""

from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import click
import numpy as np

from heddle.cli.completion import run_names
from heddle.cli.options import command, output_option, print_json
from heddle.cli.progress import progress
from heddle.cli.tables import number, print_table, say

FRESH = 0x66726573
"""Mixed into the seed when none is given: other episodes than those of training and of [eval]."""


@dataclass(frozen=True, slots=True)
class Score:
    """What a checkpoint is worth: mean and spread of the undiscounted return, mean length; JSON shows these names.

    Where groups of agents have a policy each it is of those that learn, and `groups` has the mean return of each.
    `told` is what was odd about the episodes.
    """

    episodes: int
    return_mean: float
    return_std: float
    return_min: float
    return_max: float
    length_mean: float
    groups: dict[str, float] = field(default_factory=dict)
    told: tuple[str, ...] = ()


@command(
    "eval",
    example="heddle eval runs/cartpole-7f3a2b\nheddle eval runs/cartpole-7f3a2b/checkpoints/best.safetensors",
)
@click.argument("checkpoints", metavar="CHECKPOINT...", nargs=-1, required=True, shell_complete=run_names)
@click.option("--episodes", type=click.IntRange(1), default=20, show_default=True, help="How many to play.")
@click.option("--seed", type=click.IntRange(0), help="Root of their random streams; fresh ones when not given.")
@click.option("--stochastic", is_flag=True, help="Draw actions instead of taking the likeliest.")
@click.option("--max-steps", type=click.IntRange(1), help="Steps without the end of an episode to wait for one.")
@output_option
def evaluate(
    checkpoints: tuple[str, ...],
    episodes: int,
    seed: int | None,
    stochastic: bool,
    max_steps: int | None,
    output: str,
) -> None:
    """Play episodes with CHECKPOINT (a file, or a run's folder or id: its best one) and show the mean return."""
    paths = [find_checkpoint(Path(checkpoint)) for checkpoint in checkpoints]
    shown = []
    for path in paths:
        score = play(path, episodes=episodes, seed=seed, deterministic=not stochastic, max_steps=max_steps)
        for line in score.told:
            click.echo(line, err=True)
        shown.append({"checkpoint": str(path), **asdict(score)})
        if output == "table":
            say(
                f"{path}: return {score.return_mean:.1f} ± {score.return_std:.1f} over {score.episodes} episodes"
                f" (least {score.return_min:.1f}, most {score.return_max:.1f}, mean length {score.length_mean:.0f})"
                + "".join(f"; {name} {value:.2f}" for name, value in score.groups.items())
            )
    if output == "json":
        print_json({"evaluations": shown})


def find_checkpoint(path: Path) -> Path:
    """A checkpoint file: `path` itself, in a run's folder the best, else the newest one; also by a run's id or name.

    Raises:
        NotFound: there is none.
        UsageError: `path` holds several runs; which is told on standard error.
    """
    from heddle.checkpoint import BEST, listing
    from heddle.client import RUNS
    from heddle.errors import NotFound
    from heddle.launch.local_runs import find_run, named_near, runs_in

    if path.is_file():
        return path
    for folder in (path, path / "checkpoints"):
        if (folder / BEST).is_file():
            return folder / BEST
        if folder.is_dir() and (found := listing(folder)):
            return found[0]
    if path.is_dir():
        return _only_run(path)
    if (run := find_run(RUNS, str(path))) is not None:
        return run.checkpoint
    near = named_near(path.name, [str(run.folder) for run in runs_in(RUNS)])
    there = f"here are: {near}" if near else f"give a file, or a folder such as {RUNS}/<experiment>"
    raise NotFound(f"no checkpoint {path}: {there}")


def _only_run(directory: Path) -> Path:
    """The checkpoint of the one run in a folder of runs. Raises NotFound, UsageError."""
    from heddle.errors import NotFound, UsageError
    from heddle.launch.local_runs import runs_in

    runs = runs_in(directory)
    if not runs:
        raise NotFound(f"no checkpoint in {directory}")
    if len(runs) == 1:
        return runs[0].checkpoint
    rows = [
        (
            run.folder,
            f"{run.facts.get('env_steps', 0):,}",
            number(run.best_return),
            f"{datetime.fromtimestamp(run.saved_s):%Y-%m-%d %H:%M}",
        )
        for run in runs
    ]
    print_table(("RUN", "STEPS", "BEST RETURN", "SAVED"), rows, empty="", to_stderr=True)
    raise UsageError(f"{directory} holds {len(runs)} runs, say which, e.g.: {runs[0].folder}")


def play(
    path: Path, *, episodes: int, seed: int | None = None, deterministic: bool = True, max_steps: int | None = None
) -> Score:
    """Play `episodes` fresh episodes with the checkpoint at `path`.

    Raises:
        CheckpointError: it cannot be loaded.
        SpecError: its environment or policy cannot be made here.
        EnvError: no episode ended that counts.
    """
    from heddle.checkpoint import load
    from heddle.consumers.sides import Sides
    from heddle.errors import EnvError
    from heddle.policies import make_policy
    from heddle.producers.evaluate import evaluate as play_episodes
    from heddle.spaces import from_json
    from heddle.spec import spec_from_json

    found = load(path)
    spec = spec_from_json(found.spec_json)
    observation, action = from_json(found.spaces["observation"]), from_json(found.spaces["action"])
    policy = make_policy(spec.policy, observation, action, seed=spec.experiment.seed)
    policy.set_weights(found.weights)
    root = seed if seed is not None else fresh_seed(spec.experiment.seed)
    how: dict[str, Any] = {"episodes": episodes, "seed": root, "deterministic": deterministic, "max_steps": max_steps}
    with progress(f"playing {path.name}:") as shown:
        result = play_episodes(policy, spec, **how, tell=lambda done: shown.tell(f"{done:,} of {episodes:,} episodes"))
    sides = Sides.of(spec.policy)
    groups = {name[:-1]: mean for name, mean in sides.mean_returns(result.returns, result.agents, "").items()}
    returns, steps = sides.counting((result.returns, result.lengths.astype(np.int64), result.agents))
    if not len(returns):
        raise EnvError("; ".join(("ended no episode of a group that learns", *result.told)), value=spec.env.id)
    spread = float(returns.std()), float(returns.min()), float(returns.max())
    return Score(len(returns), float(returns.mean()), *spread, float(steps.mean()), groups, result.told)


def fresh_seed(seed: int) -> int:
    """A root of random streams that no other part of an experiment uses."""
    return int(np.random.SeedSequence([seed, FRESH]).generate_state(1, np.uint64)[0] >> 1)
