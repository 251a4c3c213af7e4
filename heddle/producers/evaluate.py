"""Evaluation in one process: play whole episodes with a policy and return what they brought.

It never trains and needs no broker.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heddle.clock import Clock
from heddle.errors import EnvError
from heddle.layout import make_layout
from heddle.policies.base import Policy
from heddle.producers.envs import make_envs
from heddle.producers.envs_spaces import describe, describe_action
from heddle.producers.envs_vector import make_vector
from heddle.producers.play import Play
from heddle.producers.player import Player
from heddle.producers.ready_player import ReadyPlayer
from heddle.producers.vector_check import spaces_of
from heddle.producers.vector_player import VectorPlayer
from heddle.shard import ShardPlan, env_seed
from heddle.spec import ExperimentSpec
from heddle.spec.models import MOST_EVAL_STEPS

_STEPS = 64  # of a segment; says only how often numbers are gathered


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What the episodes brought, environment by environment.

    Attributes:
        returns: [episodes] float64, undiscounted, of the innermost environment.
        lengths: [episodes] int32, in its steps.
        agents: [episodes] int64, whose they were within their environment.
        told: what people should know of it, line by line.
    """

    returns: NDArray[np.float64]
    lengths: NDArray[np.int32]
    agents: NDArray[np.int64]
    told: tuple[str, ...] = ()

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
    max_steps: int | None = None,
    tell: Callable[[int], None] = lambda _done: None,
    clock: Clock | None = None,
) -> Evaluation:
    """Play `episodes` fresh episodes, an equal number in each environment.

    Args:
        seed: root of all chance; the same one gives the same episodes.
        num_envs: environments at once, at most.
        max_steps: of an environment without the end of an episode, behind which it is not waited for; by default as
            the spec says.
        tell: told how many episodes have ended, again and again.

    Raises:
        EnvError: the environment cannot be made or fails, or no episode ended within those steps.
        ValueError: `episodes` is below 1.
    """
    if episodes < 1:
        raise ValueError(f"episodes = {episodes} must be at least 1")
    plan = ShardPlan(0, "eval", first_env=0, num_envs=min(num_envs, episodes), agents=spec.env.agents_each)
    player = _player(plan, spec, policy, seed=seed, clock=clock)
    returns: list[list[float]] = [[] for _ in range(plan.lanes)]
    lengths: list[list[int]] = [[] for _ in range(plan.lanes)]
    most = max_steps or most_steps(spec)
    told: list[str] = []
    try:
        for segments, _ in player.play_episodes(0, episodes, deterministic=deterministic, most_steps=most):
            arrays = segments.arrays
            for row, step in np.argwhere(arrays["episode_length"]):
                lane = arrays["env"][row] * plan.agents + arrays["agent"][row]
                returns[lane].append(float(arrays["episode_return"][row, step]))
                lengths[lane].append(int(arrays["episode_length"][row, step]))
            told += player.hear()
            tell(sum(map(len, returns)))
    finally:
        player.close()
    if not any(returns):
        raise EnvError("; ".join(told) or f"ended none of {episodes} episodes", value=spec.env.id)
    flat_returns = np.array([value for one in returns for value in one], np.float64)
    agents = np.array([lane % plan.agents for lane, one in enumerate(returns) for _ in one], np.int64)
    return Evaluation(
        flat_returns, np.array([value for one in lengths for value in one], np.int32), agents, tuple(told)
    )


def most_steps(spec: ExperimentSpec) -> int:
    """Of an environment without the end of an episode, as the spec says."""
    return MOST_EVAL_STEPS if spec.eval is None else spec.eval.max_steps


def _player(plan: ShardPlan, spec: ExperimentSpec, policy: Policy, *, seed: int, clock: Clock | None) -> Play:
    name = spec.env.id
    if spec.env.at_once:
        seeds = [env_seed(seed, plan.index, lane, 0) for lane in range(plan.lanes)]
        vector = make_vector(spec.env, first=0, num_envs=plan.lanes, seeds=seeds, groups=spec.policy.agents_of)
        layout = make_layout(*spaces_of(vector, name), steps=_STEPS, outputs={})
        return VectorPlayer(plan, spec, policy, layout, vector=vector, seed=seed, clock=clock)
    envs = make_envs(plan, spec, seed)
    observation = describe(envs[0].observation_space, value=name)
    action = describe_action(envs[0].action_space, value=name)
    layout = make_layout(observation, action, steps=_STEPS, outputs={})
    make = Player if spec.env.stepping in ("inline", "auto") else ReadyPlayer
    return make(plan, spec, policy, layout, envs=envs, seed=seed, clock=clock)
