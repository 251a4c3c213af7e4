"""`record`: episodes of a checkpoint as a film.

It needs no broker and never changes the checkpoint.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from heddle.cli.completion import run_names
from heddle.cli.evaluate import find_checkpoint, fresh_seed
from heddle.cli.options import command, folder_to_fill, output_option, print_json
from heddle.cli.progress import progress
from heddle.cli.tables import print_table, say
from heddle.errors import UsageError

if TYPE_CHECKING:
    from heddle.producers.recording import Recording


@command(
    "record",
    example="heddle record runs/cartpole-7f3a2b\n"
    "heddle record runs/cartpole-7f3a2b --episodes 1 --seed 7 --to cartpole.gif\n"
    "heddle record runs/cartpole-7f3a2b/checkpoints/best.safetensors --to best.mp4 -o json",
)
@click.argument("checkpoint", metavar="CHECKPOINT", shell_complete=run_names)
@click.option("--episodes", type=click.IntRange(1), default=3, show_default=True, help="How many to play.")
@click.option("--to", "target", metavar="FILE", help="An .mp4 or a .gif; by itself one of the run's name, here.")
@click.option("--seed", type=click.IntRange(0), help="Root of their random streams; fresh ones when not given.")
@click.option("--stochastic", is_flag=True, help="Draw actions instead of taking the likeliest.")
@click.option("--fps", type=click.FloatRange(1, 240), help="Frames a second; as the environment says when not given.")
@output_option
def record(
    checkpoint: str,
    episodes: int,
    target: str | None,
    seed: int | None,
    stochastic: bool,
    fps: float | None,
    output: str,
) -> None:
    """Play episodes with CHECKPOINT (a file, or a run's folder or id: its best one) and film them.

    The environment must render (render_mode "rgb_array"); it is made anew for this, in this process. Frames go into the
    file as they come, and the file is there once it is whole.
    """
    from heddle.checkpoint import load
    from heddle.policies import make_policy
    from heddle.producers.film import FORMATS
    from heddle.producers.recording import record as film
    from heddle.spaces import from_json
    from heddle.spec import spec_from_json

    if target is not None and Path(target).suffix.lower() not in FORMATS:
        raise UsageError(f"--to {target} ends with neither {' nor '.join(FORMATS)}")
    path = find_checkpoint(Path(checkpoint))
    found = load(path)
    spec = spec_from_json(found.spec_json)
    place = Path(target) if target is not None else _place_for(found.experiment, found.update)
    folder_to_fill(str(place.parent), "--to")
    spaces = from_json(found.spaces["observation"]), from_json(found.spaces["action"])
    policy = make_policy(spec.policy, *spaces, seed=spec.experiment.seed)
    policy.set_weights(found.weights)
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pictures come from memory, no screen is looked for
    root = seed if seed is not None else fresh_seed(spec.experiment.seed)
    with showing(episodes) as tell:
        made = film(policy, spec, place, episodes=episodes, seed=root, fps=fps, deterministic=not stochastic, tell=tell)
    if output == "json":
        print_json(as_json(made, path, root), ids=[str(made.path)])
        return
    rows = [(one.episode, one.seed, f"{one.episode_return:,.2f}", f"{one.length:,}") for one in made.episodes]
    print_table(("EPISODE", "SEED", "RETURN", "LENGTH"), rows, empty="")
    say(
        f"{made.path}: {len(made.episodes)} episodes, {made.frames:,} frames of {made.width} x {made.height} at"
        f" {made.fps:g} a second, {made.path.stat().st_size / 1024:,.0f} KiB; the same again: --seed {root}"
    )


def _place_for(experiment: str, update: int) -> Path:
    from heddle.producers.film import best_suffix

    return Path(f"{experiment}-{update}{best_suffix()}")


@contextmanager
def showing(episodes: int) -> Iterator[Callable[[int, int], None]]:
    """Tells on standard error how far it is: in one line of a terminal, else a line for each episode."""
    seen = -1
    is_live = sys.stderr.isatty()
    with progress("filming") as shown:

        def tell(done: int, frames: int) -> None:
            nonlocal seen
            shown.tell(f"episode {min(done + 1, episodes)} of {episodes}, {frames:,} frames")
            if not is_live and done != seen:
                click.echo(f"filming: {done} of {episodes} episodes, {frames:,} frames", err=True)
            seen = done

        yield tell


def as_json(made: "Recording", checkpoint: Path, seed: int) -> dict[str, object]:
    """The same for programs."""
    return {
        "checkpoint": str(checkpoint),
        "file": str(made.path),
        "bytes": made.path.stat().st_size,
        "seed": seed,
        "fps": made.fps,
        "frames": made.frames,
        "width": made.width,
        "height": made.height,
        "episodes": [
            {
                "episode": one.episode,
                "seed": one.seed,
                "return": one.episode_return,
                "length": one.length,
                "frames": one.frames,
            }
            for one in made.episodes
        ],
    }
