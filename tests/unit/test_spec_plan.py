"""The numbers of `heddle plan`, by hand."""

from typing import Any

import pytest

from heddle.spec import load_spec
from heddle.spec.plan import needs, size_problems
from heddle.spec.sharing import is_shared, least_shared

SPEC: dict[str, dict[str, Any]] = {
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


@pytest.mark.parametrize(
    ("sections", "least"),
    [
        ({}, 128 << 10),
        ({"rollout": {"plane": "auto"}}, 128 << 10),
        ({"rollout": {"plane": "redis"}}, None),
        ({"rollout": {"plane": "shm"}}, 0),
        ({"limits": {"durability": "fast"}}, 128 << 10),
        ({"limits": {"durability": "strict"}}, None),
        ({"rollout": {"plane": "auto"}, "limits": {"durability": "strict"}}, None),
    ],
)
def test_batches_of_128_kib_lie_in_shared_memory_unless_the_spec_or_its_durability_says_otherwise(
    sections: dict[str, dict[str, str]], least: int | None
) -> None:
    spec = load_spec({name: {**SPEC.get(name, {}), **sections.get(name, {})} for name in {*SPEC, *sections}}).spec
    assert least_shared(spec) == least
    for batch_bytes in (1, 128 << 10):
        assert is_shared(spec, batch_bytes) == (least is not None and batch_bytes >= least)
    assert needs(spec, segment_bytes=64 << 10).shared == (least is not None)
    assert needs(spec, segment_bytes=1 << 10).shared == (least == 0)
