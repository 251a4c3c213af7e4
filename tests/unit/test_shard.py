"""Shards and seeds: the same whoever plays them, different wherever they must be."""

from itertools import product

import numpy as np
import pytest

from heddle.shard import continued_seed, env_seed, first_episode, noise_generator, plan_shards
from heddle.spec import load_spec


def spec_of(num_envs: int, per_shard: int | None = None, eval_envs: int = 0):  # type: ignore[no-untyped-def]
    env = {"id": "X-v0", "num_envs": num_envs} | ({} if per_shard is None else {"envs_per_shard": per_shard})
    raw = {"experiment": {"name": "x"}, "env": env, "trainer": {"minibatch": 1}, "budget": {"wall": 1}}
    return load_spec(raw | ({"eval": {"num_envs": eval_envs, "episodes": 99}} if eval_envs else {})).spec


@pytest.mark.parametrize(
    ("num_envs", "per_shard", "sizes"),
    [
        (8, None, [2, 2, 2, 2]),
        (1, None, [1]),
        (3, None, [1, 1, 1]),
        (10, None, [3, 3, 2, 2]),
        (10, 4, [4, 3, 3]),
        (10, 10, [10]),
        (1000, None, [63] * 8 + [62] * 8),
    ],
)
def test_shards_cover_every_environment_once_and_are_nearly_equal(
    num_envs: int, per_shard: int | None, sizes: list[int]
) -> None:
    shards = plan_shards(spec_of(num_envs, per_shard))
    assert [shard.num_envs for shard in shards] == sizes
    covered = [env for shard in shards for env in range(shard.first_env, shard.first_env + shard.num_envs)]
    assert covered == list(range(num_envs))
    assert [shard.index for shard in shards] == list(range(len(sizes)))


def test_evaluation_has_shards_of_its_own_after_the_training_ones() -> None:
    shards = plan_shards(spec_of(8, eval_envs=3))
    assert [(shard.kind, shard.first_env, shard.num_envs) for shard in shards[4:]] == [("eval", 8, 2), ("eval", 10, 1)]


def test_every_experiment_seed_shard_environment_and_episode_has_its_own_seed_and_noise() -> None:
    keys = list(product((0, 1, 2**40), (0, 1, 70_000), (0, 1), (0, 1, 2**32, 2**33)))
    seeds = [env_seed(*key) for key in keys]
    assert len(set(seeds)) == len(keys)
    assert all(0 <= seed < 2**31 for seed in seeds)
    noise = {noise_generator(*key).integers(2**63) for key in keys}
    assert len(noise) == len(keys)


def test_seeds_and_noise_are_the_same_in_every_process_for_ever() -> None:
    assert env_seed(1, 2, 3, 4) == 1309903329
    assert noise_generator(1, 2, 3, 4).random() == noise_generator(1, 2, 3, 4).random()
    assert np.random.default_rng(env_seed(1, 2, 3, 4)).random() != noise_generator(1, 2, 3, 4).random()


def test_each_owner_begins_beyond_every_episode_of_the_ones_before_even_when_seq_falls_back() -> None:
    steps, forgotten = 128, 10_000
    for number, seq in ((1, 0), (2, 20_000_000), (7, 5)):
        last = first_episode(number, seq + forgotten, steps) + 2 * steps  # two more batches were never accepted
        assert last < first_episode(number + 1, seq, steps)
    assert first_episode(1, 0, steps) == 0


def test_the_root_of_a_run_that_goes_on_follows_from_its_own_and_its_parents() -> None:
    roots = {7, continued_seed(7, "a-1"), continued_seed(8, "a-1"), continued_seed(7, "a-2")}
    assert len(roots) == 4
    assert all(0 <= root < 2**63 for root in roots)
    assert continued_seed(7, "a-1") == 7323943508355542569
