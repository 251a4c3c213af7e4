"""The built-in torch policies: what they see, what they carry, and that workers and learners agree."""

import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from heddle.consumers.assemble import Assembler
from heddle.consumers.learners import TrainBatch, make_learner
from heddle.errors import EnvError, SpecError
from heddle.launch.trying import try_out
from heddle.layout import Segments, make_layout
from heddle.policies import make_policy
from heddle.policies.images import Image, image_of
from heddle.policies.torch_module import ActorCritic, make_module
from heddle.policies.torch_nets import Net
from heddle.producers.envs import check_env
from heddle.producers.player import Player
from heddle.shard import plan_shards
from heddle.spaces import Box, DictSpace, Discrete, Space
from heddle.spec import load_spec
from tests.unit.policy_zoo import CARTPOLE, draw, judge_alone, make_spec

CPU = torch.device("cpu")
ATARI = Box((4, 84, 84), "uint8", 0, 255)
MIXED = DictSpace({"camera": Box((40, 36, 3), "uint8", 0, 255), "speed": Box((2,), "float32"), "gear": Discrete(3)})
THREE = Discrete(3)
WALK: dict[str, Any] = {"id": "tests.snapshot_zoo:Walk", "num_envs": 3, "envs_per_shard": 3}


def build(observation: Space, action: Space = THREE, **policy: Any) -> Any:
    return make_policy(make_spec(policy=policy).policy, observation, action, seed=2)


def shapes(net: nn.Module, kind: type[nn.Conv2d | nn.Linear]) -> list[tuple[int, ...]]:
    return [tuple(layer.weight.shape) for layer in net.modules() if isinstance(layer, kind)]


@pytest.mark.parametrize(
    ("shape", "dtype", "order", "expected"),
    [
        ((84, 84, 3), "uint8", "auto", Image((2, 0, 1), 3, 84, 84)),
        ((4, 84, 84), "uint8", "auto", Image((0, 1, 2), 4, 84, 84)),
        ((84, 84), "uint8", "auto", Image((0, 1), 1, 84, 84)),
        ((4, 64, 48, 3), "uint8", "auto", Image((0, 3, 1, 2), 12, 64, 48)),
        ((10, 10, 10), "bool", "auto", Image((2, 0, 1), 10, 10, 10)),
        ((10, 10, 16), "float32", "hwc", Image((2, 0, 1), 16, 10, 10)),
        ((10, 16, 12), "float32", "auto", Image((0, 1, 2), 10, 16, 12)),
        ((10, 16, 12), "float32", "hwc", Image((2, 0, 1), 12, 10, 16)),
    ],
)
def test_images_are_recognised_with_their_channels(shape: Any, dtype: str, order: Any, expected: Image) -> None:
    assert image_of(Box(shape, dtype), order) == expected


@pytest.mark.parametrize("space", [Box((4,), "float32"), Box((8, 8), "float32"), Discrete(3)])
def test_vectors_are_no_images(space: Any) -> None:
    assert image_of(space) is None


def test_the_cnn_is_the_one_of_mnih_2015() -> None:
    net = build(ATARI, id="cnn").net
    assert shapes(net, nn.Conv2d) == [(32, 4, 8, 8), (64, 32, 4, 4), (64, 64, 3, 3)]
    assert shapes(net, nn.Linear) == [(512, 3136), (3, 512), (1, 512)]
    for layer, gain in [(net.trunk.torso.hidden[0], 2.0), (net.value_head, 1.0), (net.policy_head, 0.01**2)]:
        product = layer.weight @ layer.weight.T
        assert torch.allclose(product, gain * torch.eye(len(product)), atol=1e-4)
        assert not layer.bias.any()


def test_the_deep_network_is_the_one_of_espeholt_2018() -> None:
    net = build(ATARI, id="impala").net
    assert len(shapes(net, nn.Conv2d)) == 15
    assert [shape[0] for shape in shapes(net, nn.Conv2d)] == [16] * 5 + [32] * 10
    assert shapes(net, nn.Linear)[0] == (256, 32 * 11 * 11)


def test_both_orders_of_axes_show_the_network_the_same_pixels() -> None:
    # Given one network for channels first and one, with the same weights, for channels last
    first, last = build(Box((3, 40, 44), "uint8"), id="cnn"), build(Box((40, 44, 3), "uint8"), id="cnn")
    last.set_weights(first.get_weights())
    pixels = np.random.default_rng(1).integers(0, 256, (5, 3, 40, 44)).astype(np.uint8)
    # When both see the same picture
    one = first.act({"obs": pixels}, {}, np.zeros((5, 1)))
    other = last.act({"obs": pixels.transpose(0, 2, 3, 1).copy()}, {}, np.zeros((5, 1)))
    # Then they value it alike, and pixels count from 0 to 1
    np.testing.assert_allclose(one.outputs["value"], other.outputs["value"], atol=1e-6)
    seen = first.net.trunk.torso._pixels("obs", Image((0, 1, 2), 3, 40, 44), torch.from_numpy(pixels))
    assert float(seen.max()) == 1.0 and float(seen.min()) == 0.0


def test_every_leaf_beside_an_image_is_seen_too() -> None:
    policy = build(MIXED, id="impala")
    rng = np.random.default_rng(3)
    seen = draw(MIXED, 4, rng)
    before = policy.act(seen, {}, np.zeros((4, 1))).outputs["value"].copy()
    for name in seen:
        changed = seen | {name: draw(MIXED, 4, rng)[name]}
        assert not np.allclose(before, policy.act(changed, {}, np.zeros((4, 1))).outputs["value"]), name


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("action", [Discrete(3), Box((2,), "float32")])
@pytest.mark.parametrize(
    ("space", "policy"),
    [
        (MIXED, {"id": "cnn"}),
        (Box((10, 10, 4), "bool", 0, 1), {"id": "cnn", "filters": [[16, 3, 1]]}),
        (MIXED, {"id": "gru", "torso": "impala", "recurrent_size": 16}),
        (CARTPOLE, {"id": "lstm", "recurrent_size": 16}),
    ],
)
def test_workers_and_learners_see_the_same_probabilities(
    space: Space, policy: dict[str, Any], action: Space, shared: bool
) -> None:
    made = build(space, action, shared=shared, **policy)
    seen, state = draw(space, 4, np.random.default_rng(1)), made.initial_state(4)
    acted = made.act(seen, state, np.random.default_rng(2).random((4, made.noise.size)))
    _, judged = judge_alone(made, seen, acted)
    np.testing.assert_allclose(acted.outputs["log_prob"], judged.log_prob.detach().numpy(), atol=1e-5)
    np.testing.assert_allclose(acted.outputs["value"], judged.value.detach().numpy(), atol=1e-5)


@pytest.mark.parametrize(
    ("space", "policy", "reason"),
    [
        (CARTPOLE, {"id": "cnn"}, "there is none among the observations: obs float32[4]"),
        (CARTPOLE, {"id": "lstm", "torso": "impala"}, "there is none among the observations"),
        (Box((10, 10, 4), "bool"), {"id": "cnn"}, "10 x 10 pixels: too small for its filters"),
        (ATARI, {"id": "cnn", "image": "hwc"}, "4 x 84 pixels: too small"),
    ],
)
def test_a_network_that_does_not_fit_the_observations_is_refused(space: Space, policy: Any, reason: str) -> None:
    with pytest.raises(EnvError, match="policy.id") as refused:
        build(space, **policy)
    assert reason in str(refused.value)


def test_keys_that_another_policy_uses_are_refused() -> None:
    with pytest.raises(SpecError, match="has no meaning with policy.id = 'mlp'"):
        make_spec(policy={"recurrent_size": 32})
    with pytest.raises(SpecError, match="has no meaning with policy.id = 'impala'"):
        make_spec(policy={"id": "impala", "filters": [[8, 3, 1]]})


def test_hidden_layers_follow_from_the_network_when_they_are_not_given() -> None:
    assert make_spec(policy={"id": "cnn"}).policy.hidden == (512,)
    assert make_spec(policy={"id": "gru", "torso": "impala"}).policy.hidden == (256,)
    assert make_spec(policy={"id": "cnn", "hidden": [64]}).policy.hidden == (64,)
    assert not make_spec(policy={"id": "lstm", "shared": False}).policy.shared


def played(policy: dict[str, Any], env: dict[str, Any], *, segments: int) -> tuple[TrainBatch, Any, Any]:
    """Segments in a row of a policy in environments whose episodes end within them, as a learner gets them."""
    spec = load_spec(
        {
            "experiment": {"name": "zoo"},
            "env": env,
            "rollout": {"steps": 7, "sync": True},
            "policy": policy,
            "trainer": {"lr": 0.0, "passes": 2, "minibatch": 21},
            "budget": {"env_steps": 1_000_000},
        }
    ).spec
    observation, action = check_env(spec)
    made = make_policy(spec.policy, observation, action, seed=3)
    layout = make_layout(observation, action, steps=7, outputs=made.outputs, state=made.state)
    player = Player(plan_shards(spec)[0], spec, made, layout)
    batches: list[Segments] = []
    for turn in range(segments):
        if turn == 2:
            player.cut()  # as in a drain
        batches.append(player.play(1))
        if turn == 3:  # another owner goes on from the snapshot
            snapshot = player.standing.pack()
            player.close()
            player = Player(plan_shards(spec)[0], spec, made, layout, first_episode=50)
            player.standing.resume(snapshot)
    player.close()
    return Assembler(layout, device=CPU).assemble(batches, [0] * len(batches)), made, spec


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_what_workers_reported_is_found_again_across_segments_episode_ends_and_owners(kind: str, shared: bool) -> None:
    # Given segments of an untrained policy, with episodes of 5 steps in segments of 7 and one change of owner
    policy = {"id": kind, "hidden": [16], "recurrent_size": 16, "shared": shared}
    batch, made, spec = played(policy, WALK | {"kwargs": {"length": 5}}, segments=6)
    assert int(batch.terminated.sum()) + int(batch.truncated.sum()) > 15
    # When the learner judges the same actions
    module = make_module(made, device=CPU)
    ended = batch.terminated | batch.truncated
    judged = module.evaluate_sequence(batch.observations, batch.actions["action"], ended, batch.state)
    values, _ = module.values(
        batch.observations,
        ended=ended,
        state=batch.state,
        final_index=batch.final_index,
        final_observations=batch.final_observations,
    )
    # Then it finds the numbers that the worker reported
    for found, name in ((judged.log_prob, "log_prob"), (judged.value, "value"), (values[:, :-1], "value")):
        torch.testing.assert_close(found[batch.valid], batch.outputs[name][batch.valid], atol=1e-5, rtol=0)
    # And a first pass of PPO sees ratios of 1
    metrics = make_learner(spec, made, device=CPU, seed=1).update(batch, 0.0)
    assert abs(metrics["kl"]) < 1e-6 and metrics["clip_fraction"] == 0.0


def test_a_memory_is_empty_when_an_episode_starts_and_kept_from_segment_to_segment() -> None:
    batch, _, _ = played({"id": "lstm", "recurrent_size": 8}, WALK | {"kwargs": {"length": 14}}, segments=5)
    states = batch.state["h"].abs().sum(dim=1).view(5, 3)
    assert not states[0].any()
    assert states[1].all()
    assert not states[2].any()  # two segments of 7 steps were one episode of 14


def test_all_steps_at_once_equal_one_step_after_the_other() -> None:
    # Given a batch with an episode truncated in the middle
    made = build(CARTPOLE, id="lstm", recurrent_size=12)
    net: Net = made.net
    assert isinstance(net, Net)
    rng = np.random.default_rng(5)
    seen = {"obs": torch.from_numpy(rng.standard_normal((4, 6, 4)).astype(np.float32))}
    ended = torch.from_numpy(rng.random((4, 5)) < 0.3)
    ended[2, 4] = True
    index = ended.nonzero()
    finals = {"obs": torch.from_numpy(rng.standard_normal((len(index), 4)).astype(np.float32))}
    state = {name: torch.from_numpy(rng.standard_normal((4, 12)).astype(np.float32)) for name in ("h", "c")}

    class Stepwise(nn.Module):
        """The same network without its short cut."""

        def __init__(self) -> None:
            super().__init__()
            self.inner, self.state_spec = net, net.state_spec

        def forward(self, observations: Any, state: Any) -> Any:
            return self.inner(observations, state)

    slow = ActorCritic(Stepwise(), CARTPOLE, Discrete(3), device=CPU)
    fast = ActorCritic(net, CARTPOLE, Discrete(3), device=CPU)
    # When both look at it
    asked: dict[str, Any] = {"ended": ended, "state": state, "final_index": index, "final_observations": finals}
    one, other = slow.values(seen, **asked), fast.values(seen, **asked)
    actions = torch.randint(3, (4, 5))
    judged = [model.evaluate_sequence(seen, actions, ended, state) for model in (slow, fast)]
    # Then they agree, also on gradients
    for slowly, quickly in zip(one, other, strict=True):
        torch.testing.assert_close(slowly, quickly, atol=1e-5, rtol=0)
    torch.testing.assert_close(judged[0].log_prob, judged[1].log_prob, atol=1e-5, rtol=0)
    gradients = []
    for found in judged:
        net.zero_grad()
        (found.log_prob.sum() + found.value.square().sum()).backward()  # type: ignore[no-untyped-call]
        gradients.append([parameter.grad.clone() for parameter in net.parameters() if parameter.grad is not None])
    for slowly, quickly in zip(*gradients, strict=True):
        torch.testing.assert_close(slowly, quickly, atol=1e-4, rtol=1e-4)


def test_what_cannot_be_trained_is_refused_before_anything_is_started_and_may_be_played() -> None:
    raw = {
        "experiment": {"name": "zoo"},
        "env": {"id": "CartPole-v1"},
        "policy": {"id": "random"},
        "budget": {"env_steps": 100_000},
    }
    with pytest.raises(SpecError, match="cannot be trained by ppo: RandomPolicy has no torch module .*learner = "):
        try_out(load_spec(raw).spec)
    assert try_out(load_spec(raw | {"trainer": {"learner": "none"}}).spec).action == Discrete(2)
    with pytest.raises(SpecError, match="eval.deterministic = True: has no meaning with policy.id = 'random'"):
        load_spec(raw | {"trainer": {"learner": "none"}, "eval": {}})


def test_every_spec_of_the_page_on_policies_is_accepted() -> None:
    page = (
        (Path(__file__).parents[2] / "docs" / "learning.md").read_text().split("\n## Policies\n")[1].split("\n## ")[0]
    )
    blocks = re.findall(r"```toml\n(.*?)```", page, re.S)
    assert len(blocks) == 2
    for block in blocks:
        raw = tomllib.loads(block) | {"experiment": {"name": "page"}, "budget": {"env_steps": 100_000}}
        assert try_out(load_spec(raw).spec).needed.policy_bytes > 0


def test_every_frame_of_a_stack_is_a_channel() -> None:
    space = Box((4, 84, 84), "uint8", 0, 255)
    assert image_of(space) == Image((0, 1, 2), 4, 84, 84)
    assert build(space, id="gru", torso="cnn", recurrent_size=8).state.keys() == {"h"}
