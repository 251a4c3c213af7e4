"""A Flax module as a policy: it acts as the module says, and its weights go around by name."""

from typing import Any

import numpy as np
import pytest
import torch

from heddle.errors import EnvError, SpecError
from heddle.launch.trying import try_out
from heddle.policies import make_policy, pack, unpack
from heddle.policies.torch_heads import judge
from heddle.policies.weights import WeightsError
from heddle.spaces import Box, DictSpace, Discrete
from heddle.spec import load_spec
from tests.unit.policy_zoo import CARTPOLE, draw, make_spec

ACTION = DictSpace({"arm": Box((2,), "float32", -1, 3), "gear": Discrete(3)})


def made(name: str = "Cell", action: Any = ACTION, seed: int = 1) -> Any:
    return make_policy(make_spec(policy={"id": f"tests.unit.jax_zoo:{name}"}).policy, CARTPOLE, action, seed=seed)


def test_a_flax_module_acts_remembers_and_gives_its_weights_away() -> None:
    # Given one that has seen something already
    policy, rng = made(), np.random.default_rng(1)
    first = policy.act(draw(CARTPOLE, 5, rng), policy.initial_state(5), rng.random((5, policy.noise.size)))
    seen, noise = draw(CARTPOLE, 5, rng), rng.random((5, policy.noise.size))
    acted = policy.act(seen, first.state, noise)
    # Then its probabilities are those of its answer
    answer = policy.flax_module.apply(policy.params, seen, first.state)
    numbers = {name: torch.from_numpy(np.array(answer[name])) for name in ("logits.gear", "mean.arm", "log_std.arm")}
    taken = {name: torch.from_numpy(array) for name, array in acted.actions.items()}
    np.testing.assert_allclose(acted.outputs["log_prob"], judge(numbers, policy.heads, taken, {})[0].numpy(), atol=1e-4)
    assert acted.outputs["value"].shape == (5,)
    assert not np.allclose(acted.outputs["value"], policy.act(seen, policy.initial_state(5), noise).outputs["value"])
    # And another one with its weights, sent as bytes, acts alike
    other = made(seed=2)
    before = other.act(seen, first.state, noise).outputs["value"].copy()
    other.set_weights(unpack(pack(policy.get_weights(), version=1, update=0))[0])
    again = other.act(seen, first.state, noise)
    assert not np.allclose(before, again.outputs["value"])
    for name, array in acted.actions.items():
        np.testing.assert_array_equal(array, again.actions[name])
    with pytest.raises(WeightsError, match="missing"):
        other.set_weights({"params/none": np.zeros(1, np.float32)})


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Narrow", r"__call__ gave logits \[2, 2\] for 2 observations, expected \[2, 3\]"),
        ("Raises", r"__call__ raised ValueError: no such layer at tests/unit/jax_zoo.py:\d+"),
    ],
)
def test_a_flax_module_that_does_not_fit_is_refused(name: str, reason: str) -> None:
    with pytest.raises(EnvError, match=reason) as refused:
        made(name, Discrete(3))
    assert refused.value.problems[0].key == "policy.id"


def test_a_flax_module_needs_a_learner_of_the_users() -> None:
    raw = {
        "experiment": {"name": "zoo"},
        "env": {"id": "CartPole-v1"},
        "policy": {"id": "tests.unit.jax_zoo:Narrow"},
        "budget": {"env_steps": 100_000},
    }
    with pytest.raises(SpecError, match="cannot be trained by ppo: FlaxPolicy has no torch module"):
        try_out(load_spec(raw).spec)
