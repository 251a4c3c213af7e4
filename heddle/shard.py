"""Shards: how an experiment's environments are cut into units of assignment, and the seeds each one plays with.

Pure: it never knows who plays a shard, so the same spec gives the same streams on whichever worker.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from heddle.spec.models import ExperimentSpec

_RESET_STREAM = 0
_NOISE_STREAM = 1


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """One shard as the spec lays it out.

    Attributes:
        index: number of the shard within the experiment, from 0; train shards come first.
        kind: what its batches are for.
        first_env: global index of its first environment; evaluation continues after the training ones.
        num_envs: environments it holds; env index e within the shard is global index first_env + e.
    """

    index: int
    kind: Literal["train", "eval"]
    first_env: int
    num_envs: int


def plan_shards(spec: ExperimentSpec) -> tuple[ShardPlan, ...]:
    """Every shard of the experiment, train shards first; sizes within a kind differ by at most one."""
    train = _cut(spec.env.num_envs, spec.env.envs_per_shard)
    evaluation = () if spec.eval is None else _cut(spec.eval.num_envs, spec.env.envs_per_shard)
    shards: list[ShardPlan] = []
    first_env = 0
    for kind, sizes in (("train", train), ("eval", evaluation)):
        for size in sizes:
            shards.append(ShardPlan(len(shards), "train" if kind == "train" else "eval", first_env, size))
            first_env += size
    return tuple(shards)


def _cut(num_envs: int, per_shard: int) -> tuple[int, ...]:
    """Sizes of the fewest shards of at most `per_shard`, as equal as they can be, larger ones first."""
    count = math.ceil(num_envs / per_shard)
    small, larger = divmod(num_envs, count)
    return tuple(small + 1 if index < larger else small for index in range(count))


def env_seed(experiment_seed: int, shard: int, env_index: int, episode: int) -> int:
    """The seed to reset environment `env_index` of `shard` with for `episode`: 0 <= seed < 2**31.

    Evaluation shards pass the evaluation seed as `experiment_seed`.
    """
    state = _sequence(_RESET_STREAM, experiment_seed, shard, env_index, episode).generate_state(1, np.uint32)
    return int(state[0]) & 0x7FFF_FFFF


def noise_generator(experiment_seed: int, shard: int, env_index: int, episode: int) -> np.random.Generator:
    """The generator of the action noise of one episode; independent of every other episode's and of the resets."""
    return np.random.Generator(np.random.PCG64(_sequence(_NOISE_STREAM, experiment_seed, shard, env_index, episode)))


def _sequence(stream: int, experiment_seed: int, shard: int, env_index: int, episode: int) -> np.random.SeedSequence:
    # Two words for the episode, always: SeedSequence would give a large number two words and a small one one,
    # and so could give two episodes the same key.
    key = (stream, shard, env_index, episode & 0xFFFF_FFFF, episode >> 32)
    return np.random.SeedSequence(experiment_seed, spawn_key=key)
