"""Shards: how an experiment's environments are cut into units of assignment, and the seeds each one plays with.

Pure: it never knows who plays a shard, so the same spec gives the same streams on whichever worker.
"""

import hashlib
import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from heddle.spec.models import ExperimentSpec

_RESET_STREAM = 0
_NOISE_STREAM = 1

EPISODES_PER_CLAIM = 2**32


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """One shard as the spec lays it out.

    Attributes:
        index: number of the shard within the experiment, from 0; train shards come first.
        kind: what its batches are for.
        first_env: global index of its first environment; evaluation continues after the training ones.
        num_envs: environments it holds; env index e within the shard is global index first_env + e.
        agents: that act in each of them.
    """

    index: int
    kind: Literal["train", "eval"]
    first_env: int
    num_envs: int
    agents: int = 1

    @property
    def lanes(self) -> int:
        """Agents in all; lane e * agents + a is agent a of environment e. Without agents a lane is an environment."""
        return self.num_envs * self.agents


def plan_shards(spec: ExperimentSpec) -> tuple[ShardPlan, ...]:
    """Every shard of the experiment, train shards first; sizes within a kind differ by at most one.

    Who trains from recorded experience has no train shards.
    """
    train = () if spec.data is not None else _cut(spec.env.num_envs, spec.env.envs_per_shard)
    evaluation = () if spec.eval is None else _cut(spec.eval.num_envs, spec.env.envs_per_shard)
    shards: list[ShardPlan] = []
    first_env = 0
    for kind, sizes in (("train", train), ("eval", evaluation)):
        for size in sizes:
            what: Literal["train", "eval"] = "train" if kind == "train" else "eval"
            shards.append(ShardPlan(len(shards), what, first_env, size, spec.env.agents_each))
            first_env += size
    return tuple(shards)


def _cut(num_envs: int, per_shard: int) -> tuple[int, ...]:
    """Sizes of the fewest shards of at most `per_shard`, as equal as they can be, larger ones first."""
    count = math.ceil(num_envs / per_shard)
    small, larger = divmod(num_envs, count)
    return tuple(small + 1 if index < larger else small for index in range(count))


def root_seed(plan: ShardPlan, spec: ExperimentSpec) -> int:
    """The root of all chance of a shard, unless its experiment goes on from another one."""
    return spec.eval.seed if plan.kind == "eval" and spec.eval is not None else spec.experiment.seed


def continued_seed(experiment_seed: int, parent: str) -> int:
    """The root of an experiment that goes on from experiment `parent`: its episodes are not those of the parent."""
    digest = hashlib.sha256(f"{experiment_seed} {parent}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def first_episode(claim_number: int, seq: int, steps: int) -> int:
    """The number of the first episode that an owner of a shard plays, beyond all of any owner before it.

    Batches may have been trained on that the broker forgot, so that `seq` alone can fall back: each claim has a range
    of its own. Only a claim that the broker forgot, too, comes again with the same number.

    Args:
        claim_number: 1 for the first claim of the shard, one more for each later one.
        seq: batches of the shard accepted before.
        steps: in a full segment; an owner begins at most one more episode in a batch.
    """
    return (claim_number - 1) * EPISODES_PER_CLAIM + seq * (steps + 1)


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
