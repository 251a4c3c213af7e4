"""Evaluation in one process: play whole episodes with a policy and return what they brought.

It never trains and needs no broker.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heddle.clock import Clock
from heddle.layout import make_layout
from heddle.policies.base import Policy
from heddle.producers.envs import describe, describe_action, make_envs
from heddle.producers.player import Player
from heddle.shard import ShardPlan
from heddle.spec import ExperimentSpec

_STEPS = 64  # of a segment; says only how often numbers are gathered


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What the episodes brought, environment by environment.

    Attributes:
        returns: [episodes] float64, undiscounted, of the innermost environment.
        lengths: [episodes] int32, in its steps.
    """

    returns: NDArray[np.float64]
    lengths: NDArray[np.int32]

    @property
    def mean(self) -> float:
        """Mean return."""
        return float(self.returns.mean())

    @property
    def std(self) -> float:
        """Standard deviation of the returns over these episodes."""
        return float(self.returns.std())


def evaluate(
    policy: Policy,
    spec: ExperimentSpec,
    *,
    episodes: int,
    seed: int,
    num_envs: int = 16,
    deterministic: bool = True,
    clock: Clock | None = None,
) -> Evaluation:
    """Play `episodes` fresh episodes, an equal number in each environment.

    Args:
        seed: root of all chance; the same one gives the same episodes.
        num_envs: environments at once, at most.

    Raises:
        EnvError: the environment cannot be made or fails.
    """
    if episodes < 1:
        raise ValueError(f"episodes = {episodes} must be at least 1")
    plan = ShardPlan(index=0, kind="eval", first_env=0, num_envs=min(num_envs, episodes))
    envs = make_envs(plan, spec, seed)
    name = spec.env.id
    observation = describe(envs[0].observation_space, value=name)
    action = describe_action(envs[0].action_space, value=name)
    layout = make_layout(observation, action, steps=_STEPS, outputs={})
    player = Player(plan, spec, policy, layout, envs=envs, seed=seed, clock=clock)
    returns: list[list[float]] = [[] for _ in envs]
    lengths: list[list[int]] = [[] for _ in envs]
    try:
        for segments, _ in player.play_episodes(0, episodes, deterministic=deterministic):
            arrays = segments.arrays
            for row, step in np.argwhere(arrays["episode_length"]):
                env = arrays["env"][row]
                returns[env].append(float(arrays["episode_return"][row, step]))
                lengths[env].append(int(arrays["episode_length"][row, step]))
    finally:
        player.close()
    flat_returns = np.array([value for one in returns for value in one], np.float64)
    return Evaluation(flat_returns, np.array([value for one in lengths for value in one], np.int32))
