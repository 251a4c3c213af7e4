"""Recording: whole episodes of a policy, played by the same player as everywhere, with every frame into a film.

It never trains and needs no broker.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from heddle.clock import Clock
from heddle.errors import EnvError
from heddle.layout import make_layout
from heddle.policies.base import Policy
from heddle.producers.envs_film import Filmed, Frame, frames_per_second, make_filmed
from heddle.producers.envs_spaces import describe, describe_action
from heddle.producers.evaluate import most_steps
from heddle.producers.film import open_film
from heddle.producers.player import Player
from heddle.shard import ShardPlan
from heddle.spec import ExperimentSpec

_STEPS = 64  # of a segment; says only how often numbers are gathered


@dataclass(frozen=True, slots=True)
class Episode:
    """One filmed episode: `seed` of its reset, undiscounted return, length in steps, frames."""

    episode: int
    seed: int | None
    episode_return: float
    length: int
    frames: int


@dataclass(frozen=True, slots=True)
class Recording:
    """What was filmed.

    Attributes:
        path: the file.
        episodes: in order.
        fps: frames a second; frames: in all.
        width, height: in pixels.
    """

    path: Path
    episodes: tuple[Episode, ...]
    fps: float
    frames: int
    width: int
    height: int


def record(
    policy: Policy,
    spec: ExperimentSpec,
    path: Path,
    *,
    episodes: int,
    seed: int,
    fps: float | None = None,
    deterministic: bool = True,
    tell: Callable[[int, int], None] = lambda _episodes, _frames: None,
    clock: Clock | None = None,
) -> Recording:
    """Play `episodes` fresh episodes one after the other, and film them into `path`.

    Args:
        seed: root of all chance; the same one gives the same episodes.
        fps: as the environment says when not given.
        tell: called with each frame: episodes that are whole, and frames so far.

    Raises:
        EnvError: the environment cannot be made, does not render, or fails.
        MissingExtra, UsageError: the film cannot be written.
    """
    size = [0, 0]
    done: list[Episode] = []

    def take(frame: Frame) -> None:
        film.add(frame)
        size[:] = frame.shape[1], frame.shape[0]
        tell(len(env.seeds) - 1, film.frames)

    env = make_filmed(spec, take, seed=seed)
    player = _player(env, spec, policy, seed=seed, clock=clock)
    try:
        rate = fps or frames_per_second(env)
        with open_film(path, rate) as film:
            most = most_steps(spec)
            for segments, _ in player.play_episodes(0, episodes, deterministic=deterministic, most_steps=most):
                arrays = segments.arrays
                for row, step in np.argwhere(arrays["episode_length"]):
                    number = len(done)
                    score = float(arrays["episode_return"][row, step]), int(arrays["episode_length"][row, step])
                    done.append(Episode(number, env.seeds[number], *score, env.frames[number]))
                tell(len(done), film.frames)
    finally:
        player.close()
    if not done:
        raise EnvError("; ".join(player.hear()) or "ended no episode", value=spec.env.id)
    return Recording(path, tuple(done), rate, film.frames, size[0], size[1])


def _player(env: Filmed, spec: ExperimentSpec, policy: Policy, *, seed: int, clock: Clock | None) -> Player:
    plan = ShardPlan(0, "eval", first_env=0, num_envs=1, agents=1)
    observation = describe(env.observation_space, value=spec.env.id)
    layout = make_layout(observation, describe_action(env.action_space, value=spec.env.id), steps=_STEPS, outputs={})
    return Player(plan, spec, policy, layout, envs=[env], seed=seed, clock=clock)
