"""The numbers of `heddle plan`, by hand."""

from heddle.spec import load_spec
from heddle.spec.plan import needs, size_problems

SPEC = {
    "experiment": {"name": "x"},
    "env": {"id": "X-v0", "num_envs": 10, "envs_per_shard": 4},
    "rollout": {"steps": 16, "sync": True},
    "trainer": {"minibatch": 32},
    "eval": {"num_envs": 2, "episodes": 4},
    "budget": {"env_steps": 1000},
    "limits": {"max_entries": 10, "max_bytes": 1_000_000, "batch_bytes": 10_000},
}


def test_shards_bytes_updates_and_memory_follow_from_the_spec_and_the_size_of_a_segment() -> None:
    found = needs(load_spec(SPEC).spec, segment_bytes=1_000, policy_bytes=5_000)
    assert (found.train_shards, found.eval_shards, found.envs_per_shard) == (3, 1, 4)
    assert found.batch_bytes == 4_000
    assert (found.batches_per_update, found.steps_per_update, found.bytes_per_update) == (3, 160, 10_000)
    assert found.updates == 7  # 1000 / 160, rounded up
    assert found.in_flight_bytes == 10 * 4_000 + 2 * 12 * 1_000  # the cap, and two parked batches of each shard
    assert found.broker_bytes == 102_700  # 1.3 x (64,000 + 3 x 5,000)


def test_batches_and_updates_that_do_not_fit_are_named() -> None:
    spec = load_spec(SPEC).spec
    assert size_problems(spec, needs(spec, segment_bytes=1_000)) == []
    found = size_problems(spec, needs(spec, segment_bytes=100_000))
    assert [problem.key for problem in found] == ["limits.batch_bytes", "limits.max_bytes"]
    assert "is below the 400000 bytes of one batch" in found[0].reason
