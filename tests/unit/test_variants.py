"""Variants: which environment is of which kind, what it is made with, and what is refused."""

from collections import Counter
from typing import Any

import gymnasium
import numpy as np
import pytest

from heddle.errors import EnvError, SpecError
from heddle.producers.closing import close_env
from heddle.producers.envs import check_env, make_envs
from heddle.producers.player import Player
from heddle.shard import plan_shards
from heddle.spaces import Box, Discrete
from heddle.spec.variants import env_of, mix, variant_of
from tests.unit.fake_envs import Drawn, layout_for, spec_of

HERE = "tests.unit.test_variants"


class Sized(gymnasium.Env[Any, Any]):
    """Shows how large it was made; says no where it is told to."""

    def __init__(self, size: int = 1, shape: int = 1, *, bad: bool = False, env_index: int = 0) -> None:
        self.size, self.bad, self.env_index = size, bad, env_index
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (shape,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.full(self.observation_space.shape, self.size, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = float("nan") if self.bad else float(self.size)
        return np.full(self.observation_space.shape, self.size, np.float32), reward, False, False, {}


def spec_for(*variants: dict[str, Any], num_envs: int = 8, **sections: Any) -> Any:
    env = {"id": f"{HERE}:Sized", "num_envs": num_envs, "envs_per_shard": 4, "variants": list(variants)}
    return spec_of(env=env | sections.pop("env", {}), **sections)


def names(spec: Any, n: int, first: int = 0) -> list[str]:
    return [variant_of(spec, index).name for index in range(first, first + n)]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ([{"weight": 3.0}, {"weight": 1.0}], {"v0": 6, "v1": 2}),
        ([{}, {}, {}], {"v0": 3, "v1": 3, "v2": 2}),
        ([{"count": 1}, {"count": 7}], {"v0": 1, "v1": 7}),
        ([{"weight": 0.1}, {"weight": 0.1}], {"v0": 4, "v1": 4}),
        ([{}], {"v0": 8}),
    ],
)
def test_counts_are_exact_and_weights_are_shares(shares: list[dict[str, Any]], expected: dict[str, int]) -> None:
    spec = spec_for(*({"name": f"v{place}", **share} for place, share in enumerate(shares)))
    assert Counter(names(spec, 8)) == expected


def test_every_shard_has_about_the_same_mix_and_evaluation_has_it_too() -> None:
    spec = spec_for(
        {"name": "easy", "weight": 3.0},
        {"name": "hard"},
        num_envs=16,
        eval={"num_envs": 4, "episodes": 4},
    )
    assert [mix(spec, plan.first_env, plan.num_envs) for plan in plan_shards(spec)] == ["easy 3, hard 1"] * 5


def test_each_environment_is_made_with_the_kwargs_of_its_variant_over_those_of_all() -> None:
    spec = spec_for({"name": "small"}, {"name": "large", "kwargs": {"size": 9}}, env={"kwargs": {"size": 2}})
    plan = plan_shards(spec)[1]
    envs = make_envs(plan, spec, 5)
    assert [(env.size, env.env_index) for env in envs] == [(2, 4), (9, 5), (2, 6), (9, 7)]
    assert [env_of(spec, index).kwargs["size"] for index in (4, 5)] == [2, 9]


def test_a_child_makes_them_the_same_way() -> None:
    spec = spec_for(
        {"name": "small"}, {"name": "large", "kwargs": {"size": 9}}, env={"isolation": "process"}, num_envs=4
    )
    observation, action = check_env(spec)
    layout = layout_for(Drawn(2), observation=observation, action=action)
    envs = make_envs(plan_shards(spec)[0], spec, 5, layout=layout)
    try:
        assert [float(env.reset(seed=1)[0][0]) for env in envs] == [1.0, 9.0, 1.0, 9.0]
    finally:
        close_env(envs[0])


def test_a_failure_names_the_variant() -> None:
    spec = spec_for({"name": "small"}, {"name": "broken", "kwargs": {"bad": True}}, num_envs=4)
    layout = layout_for(Drawn(2), observation=Box((1,), "float32"), action=Discrete(2))
    player = Player(plan_shards(spec)[0], spec, Drawn(2), layout)
    with pytest.raises(EnvError, match=r"environment 1 \(number 1 of shard 0, variant 'broken'\) gave reward"):
        player.play(1)


@pytest.mark.parametrize(
    ("kwargs", "reason"),
    [
        ({"shape": 3}, "variant 'other' has another observation space than variant 'first'"),
        ({"bad": True}, "variant 'other' step 1 returned the reward nan"),
        ({"colour": 1}, "the factory raised TypeError: .*colour"),
    ],
)
def test_every_variant_is_tried_out(kwargs: dict[str, Any], reason: str) -> None:
    with pytest.raises(EnvError, match=reason):
        check_env(spec_for({"name": "first"}, {"name": "other", "kwargs": kwargs}))


@pytest.mark.parametrize(
    ("variants", "env", "reason"),
    [
        ([{"name": "a"}, {"name": "a"}], {}, "names two variants"),
        ([{"name": "a", "count": 3}, {"name": "b"}], {}, "others have none"),
        ([{"name": "a", "count": 3}, {"name": "b", "count": 3}], {}, "the sum of all counts, and env.num_envs is 8"),
        ([{"name": "a"}, {"name": "b", "weight": 0.001}], {}, "would have none of the 8 environments"),
        ([{"name": "a"}], {"vector": True}, "has no meaning with vector = true"),
    ],
)
def test_what_cannot_be_meant_is_found_in_the_spec(variants: Any, env: Any, reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        spec_for(*variants, env=env)
