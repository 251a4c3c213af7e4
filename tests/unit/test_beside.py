"""A plan says how the environments of a shard are stepped, and whom a slow one holds up."""

from typing import Any

import pytest

from heddle.spec.beside import children_of, threads_of, who_waits
from tests.unit.fake_envs import spec_of


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"num_envs": 64}, "one environment after the other: a slow one holds up its worker"),
        ({"num_envs": 1}, "one environment after the other: a slow one holds up its worker"),
        ({"num_envs": 64, "stepping": "async"}, "async: a slow environment holds up nobody"),
        ({"num_envs": 64, "stepping": "threads"}, "threads: a slow environment holds up nobody"),
        ({"num_envs": 64, "stepping": "threads", "threads": 4}, "4 threads for 16 environments: while 4 are slow"),
        ({"num_envs": 64, "stepping": "auto"}, "timed at the first steps"),
        ({"num_envs": 64, "vector": True}, "one call steps all environments of a shard"),
        ({"num_envs": 64, "stepping": "processes"}, "a child for each environment, 16 a shard: a slow one holds up no"),
        ({"num_envs": 65, "stepping": "processes"}, "16 children a shard, up to 2 environments in each: a slow"),
        ({"num_envs": 512, "stepping": "processes"}, "env.processes = 64 gives each a child of its own"),
        ({"num_envs": 512, "stepping": "processes", "processes": 64}, "a child for each environment, 64 a shard"),
        ({"num_envs": 8, "stepping": "processes", "processes": 1}, "1 child a shard, up to 2 environments in each"),
        ({"num_envs": 8, "envs_per_shard": 8, "stepping": "processes"}, "a child for each environment, 8 a shard"),
    ],
)
def test_whom_a_slow_environment_holds_up_is_said(env: dict[str, Any], said: str) -> None:
    assert said in who_waits(spec_of(env={"id": "m:make", **env}, trainer={"minibatch": 1}))


def test_there_is_a_child_and_a_thread_for_each_environment_up_to_what_is_bearable() -> None:
    plain = spec_of(env={"id": "m:make", "num_envs": 64}).env
    assert [children_of(plain, n) for n in (1, 4, 16, 17, 64)] == [1, 4, 16, 16, 16]
    assert [threads_of(plain, n) for n in (1, 64, 65)] == [1, 64, 64]
    asked = spec_of(env={"id": "m:make", "num_envs": 64, "stepping": "processes", "processes": 3}).env
    assert [children_of(asked, n) for n in (1, 3, 64)] == [1, 3, 3]
