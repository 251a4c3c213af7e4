"""The players that are fast give what the plain one gives, also with networks: their arithmetic depends on how many act
at once, so their answers differ in the last bits, and what the environments show does not at all.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import Tensor, nn

from heddle.layout import Layout
from heddle.policies import make_policy
from heddle.policies.base import Policy
from heddle.producers.play import Play
from heddle.producers.player import Player
from heddle.producers.ready_player import ReadyPlayer
from heddle.producers.steppers import ThreadStepper
from heddle.producers.vector_player import VectorPlayer
from heddle.spaces import Discrete, Space
from tests.unit.fake_envs import layout_for, plan_of, spec_of
from tests.unit.policy_zoo import make_spec
from tests.unit.test_ready_player import Slow
from tests.unit.test_vector_player import SPACE, OnceSeeded, Stream, Walk, streams

N, STEPS, CLOSE = 5, 7, 1e-5
POLICIES: dict[str, dict[str, Any]] = {
    "numpy": {"id": "mlp", "hidden": [64, 64]},
    "numpy, one torso": {"id": "mlp", "hidden": [32], "shared": True, "activation": "relu"},
    "torch": {"id": "tests.unit.test_twins:Deep"},
}


class Deep(nn.Module):
    """A user's network of two layers."""

    def __init__(self, observation: Space, action: Space) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.head, self.critic = nn.Linear(64, 3), nn.Linear(64, 1)

    def forward(self, observations: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> dict[str, Any]:
        hidden = self.body(
            torch.cat([observations["obs.place"].float(), observations["obs.color"].float()[:, None]], 1)
        )
        return {"logits": self.head(hidden), "value": self.critic(hidden)}


def network(name: str, asked: list[int]) -> Policy:
    """A policy with weights far from their start; how many acted at each call goes to `asked`."""
    policy = make_policy(make_spec(policy=POLICIES[name]).policy, SPACE, Discrete(3), seed=3)
    rng = np.random.default_rng(5)
    moved = {k: (w + 0.3 * rng.standard_normal(w.shape)).astype(w.dtype) for k, w in policy.get_weights().items()}
    policy.set_weights(moved)
    act = policy.act

    def counted(observations: Any, *rest: Any, **more: Any) -> Any:
        asked.append(len(next(iter(observations.values()))))
        return act(observations, *rest, **more)

    setattr(policy, "act", counted)  # noqa: B010  a method of ours stands before it
    return policy


def scene(name: str, asked: list[int], *, stepping: str = "inline") -> tuple[Any, Any, Policy, Layout]:
    policy = network(name, asked)
    env = {"num_envs": N, "envs_per_shard": N, "stepping": stepping}
    spec = spec_of(env=env, rollout={"steps": STEPS}, trainer={"minibatch": 1})
    return plan_of(N), spec, policy, layout_for(policy, steps=STEPS, observation=SPACE, info_keys=["fuel"])


def close(found: list[Stream], expected: list[Stream]) -> None:
    """What a policy said is the same within 1e-5; all that was seen and done is the very same."""
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        assert one["finals"] == other["finals"]
        for name in one.keys() - {"finals"}:
            if name.startswith("out."):
                np.testing.assert_allclose(one[name], other[name], rtol=CLOSE, atol=CLOSE, err_msg=name)
            else:
                np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def far_from_start(streams: list[Stream]) -> bool:
    """Whether the policy's answers differ from step to step, and every action was taken."""
    taken = {action for one in streams for action in one["action"].tolist()}
    return taken == {0, 1, 2} and all(np.ptp(one["out.log_prob"]) > 0.3 for one in streams)


@pytest.mark.parametrize("name", POLICIES)
def test_environments_stepped_beside_each_other_give_what_they_give_in_turn_to_a_network(name: str) -> None:
    alone, beside = list[int](), list[int]()
    expected = streams(Player(*scene(name, alone), envs=[Walk() for _ in range(N)]), N, 80)
    envs: list[Any] = [Slow() for _ in range(N)]
    player = ReadyPlayer(*scene(name, beside, stepping="threads"), envs=envs, stepper=ThreadStepper(envs, N))
    try:
        close(streams(player, N, 80), expected)
    finally:
        player.close()
    assert far_from_start(expected)
    assert set(alone) == {N}
    assert len(set(beside)) > 1, "else nothing was shown: all acted at once every time"


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("mode", AutoresetMode)
def test_a_vector_environment_gives_what_its_environments_give_by_themselves_to_a_network(
    name: str, mode: AutoresetMode
) -> None:
    envs = [Walk() if mode is AutoresetMode.DISABLED else OnceSeeded(Walk()) for _ in range(N)]
    plain: Play = Player(*scene(name, []), envs=envs)
    vector: Any = SyncVectorEnv([Walk] * N, autoreset_mode=mode)
    expected = streams(plain, N, 80)
    close(streams(VectorPlayer(*scene(name, []), vector=vector), N, 80), expected)
    assert far_from_start(expected)
