"""Actions of every kind: numpy chooses and torch judges by the same numbers, and those are the ones of torch's own."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import distributions

from heddle.errors import EnvError
from heddle.policies import make_policy
from heddle.policies import torch_heads as judged_by
from heddle.policies.actions import Heads
from heddle.policies.heads import bernoulli, choose, multi_categorical, squashed
from heddle.policies.outputs import network_size, split_output
from heddle.policies.torch_heads import judge
from heddle.spaces import ACTION, Box, DictSpace, Discrete, MultiBinary, MultiDiscrete, Space, TupleSpace, leaves
from tests.unit.policy_zoo import CARTPOLE, draw, judge_alone, make_spec

ARM = Box((2, 2), "float32", (-1.0, -2.0, 0.0, 5.0), (1.0, 2.0, 4.0, 5.5))
EVERYTHING = DictSpace(
    {
        "arm": ARM,
        "buttons": MultiBinary((2, 3)),
        "dial": Box((2,), "int16", (-3, 7), (2, 9)),
        "gear": Discrete(3, start=4),
        "keys": TupleSpace((MultiDiscrete((2, 5, 3)), Box((), "bool"))),
    }
)
ACTIONS: dict[str, Space] = {
    "discrete": Discrete(4, start=-1),
    "multi-discrete": MultiDiscrete((2, 3, 3, 4), shape=(2, 2)),
    "multi-binary": MultiBinary((3,)),
    "box": ARM,
    "box of float64": Box((2,), "float64"),
    "box of float16": Box((2,), "float16"),
    "integers": Box((2,), "uint8", 250, 255),
    "everything": EVERYTHING,
}


def numbers(heads: Heads, std: str, rows: int, rng: np.random.Generator) -> dict[str, Any]:
    """What a network might answer."""
    output = rng.standard_normal((rows, network_size(heads, std))).astype(np.float32)
    log_std = rng.standard_normal(heads.means).astype(np.float32) * 0.5 if std == "parameter" else None
    return split_output(heads, output, log_std)


def chance(heads: Heads, rows: int, rng: np.random.Generator) -> Any:
    shape = (rows, heads.noise.size)
    return rng.random(shape) if heads.noise.kind == "uniform" else rng.standard_normal(shape)


def tensors(arrays: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(np.asarray(array)) for name, array in arrays.items()}


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("std", ["parameter", "state"])
@pytest.mark.parametrize("name", ACTIONS)
def test_what_numpy_chooses_torch_judges_by_the_same_numbers(name: str, std: str, deterministic: bool) -> None:
    rng = np.random.default_rng(1)
    heads = Heads(CARTPOLE, ACTIONS[name])
    answer = numbers(heads, std, 200, rng)
    actions, log_prob = choose(heads, answer, {}, None if deterministic else chance(heads, 200, rng))
    for head in heads.all:
        array = actions[head.leaf.name]
        assert array.shape == (200, *head.leaf.space.shape) and array.dtype == head.leaf.chosen_dtype
    found, entropy = judge(tensors(answer), heads, tensors(actions), {})
    np.testing.assert_allclose(log_prob, found.numpy(), atol=2e-5, rtol=1e-5)
    assert entropy.shape == (200,) and torch.isfinite(entropy).all()


@pytest.mark.parametrize("scale", [0.3, 3.0])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_squashed_actions_stay_in_their_bounds_and_are_judged_alike_even_there(dtype: str, scale: float) -> None:
    # Given means and spreads so large that most actions are cut at a bound
    rng = np.random.default_rng(2)
    heads = Heads(CARTPOLE, Box((3,), dtype, (-1.0, 0.0, 100.0), (1.0, 1e-3, 150.0)), squash=True)
    answer = {name: array * np.float32(scale) for name, array in numbers(heads, "state", 500, rng).items()}
    actions, log_prob = choose(heads, answer, {}, chance(heads, 500, rng))
    low, high = heads.all[0].leaf.space.limits()  # type: ignore[union-attr]
    assert (actions["action"] >= low).all() and (actions["action"] <= high).all()
    found, _ = judge(tensors(answer), heads, tensors(actions), {})
    np.testing.assert_allclose(log_prob, found.numpy(), atol=1e-4, rtol=1e-5)


def test_discrete_kinds_are_those_of_torch() -> None:
    rng = np.random.default_rng(3)
    logits = torch.from_numpy(rng.standard_normal((50, 10)).astype(np.float32))
    picks = torch.from_numpy(np.stack([rng.integers(0, n, 50) for n in (2, 5, 3)], axis=1))
    log_prob, entropy = judged_by.multi_categorical(logits, (2, 5, 3), picks)
    parts = [distributions.Categorical(logits=part) for part in torch.split(logits, [2, 5, 3], dim=1)]
    expected = [part.log_prob(picks[:, place]) for place, part in enumerate(parts)]  # type: ignore[no-untyped-call]
    torch.testing.assert_close(log_prob, torch.stack(expected).sum(0))
    torch.testing.assert_close(entropy, torch.stack([part.entropy() for part in parts]).sum(0))  # type: ignore[no-untyped-call]
    flips = torch.from_numpy(rng.integers(0, 2, (50, 10)))
    log_prob, entropy = judged_by.bernoulli(logits, flips)
    coin = distributions.Bernoulli(logits=logits)
    torch.testing.assert_close(log_prob, coin.log_prob(flips.float()).sum(1))  # type: ignore[no-untyped-call]
    torch.testing.assert_close(entropy, coin.entropy().sum(1))  # type: ignore[no-untyped-call]


def test_squashed_densities_are_those_of_torch_and_entropies_those_of_many_draws() -> None:
    # Given two gaussians stretched to other bounds
    low, span = np.array([-1.0, 2.0]), np.array([2.0, 6.0])
    mean, log_std = torch.tensor([[0.3, -0.8]]), torch.tensor([[-0.5, 0.4]])
    made = distributions.TransformedDistribution(
        distributions.Normal(mean.double(), log_std.double().exp()),
        [
            distributions.TanhTransform(),
            distributions.AffineTransform(torch.tensor(low + span / 2), torch.tensor(span / 2)),
        ],
    )
    torch.manual_seed(1)
    drawn = made.sample((200_000,)).squeeze(1)  # type: ignore[no-untyped-call]
    # When densities and entropies are asked for
    bounds = {"low": torch.tensor(low), "span": torch.tensor(span)}
    rows = len(drawn)
    log_prob, entropy = judged_by.squashed(mean.expand(rows, 2), log_std.expand(rows, 2), drawn, **bounds)
    # Then they are those of torch
    expected = made.log_prob(drawn[:1000].unsqueeze(1)).sum((1, 2))  # type: ignore[no-untyped-call]
    torch.testing.assert_close(log_prob[:1000].double(), expected, atol=1e-4, rtol=1e-4)
    assert float(entropy[0]) == pytest.approx(float(-log_prob.mean()), abs=1e-2)


def test_densities_and_probabilities_computed_by_hand() -> None:
    # A fair coin and a die of three faces of which one has half the chance
    _, log_prob = multi_categorical(np.log(np.array([[1, 1, 2, 1, 1]], np.float32)), (2, 3), None)
    assert float(log_prob[0]) == pytest.approx(math.log(0.5 * 0.5))
    ones, log_prob = bernoulli(np.log(np.array([[3.0, 1 / 3]], np.float32)), None)
    assert ones.tolist() == [[1, 0]] and float(log_prob[0]) == pytest.approx(2 * math.log(0.75), abs=1e-6)
    # A standard normal squashed to -2..2, in the middle: 1 / sqrt(2 pi), divided by the slope of 2 tanh, which is 2
    zero = np.zeros((1, 1), np.float32)
    actions, log_prob = squashed(zero, zero, None, low=np.array([-2.0]), span=np.array([4.0]), dtype="float32")
    assert actions.tolist() == [[0.0]]
    assert float(log_prob[0]) == pytest.approx(-0.5 * math.log(2 * math.pi) - math.log(2.0), abs=1e-6)


def test_every_combination_is_chosen_as_often_as_its_probability_says() -> None:
    # Given one answer, repeated, for a composite action with all kinds of chance
    space = DictSpace({"a": MultiDiscrete((2, 3)), "b": MultiBinary((2,)), "c": Box((3,), "float32")})
    heads, rng, rows = Heads(CARTPOLE, space), np.random.default_rng(6), 60_000
    answer = {name: np.repeat(array[:1], rows, axis=0) for name, array in numbers(heads, "state", 1, rng).items()}
    # When many are drawn
    actions, _ = choose(heads, answer, {}, chance(heads, rows, rng))
    # Then every combination comes as often as it should, independently of the others
    for pick in np.ndindex(2, 3, 2, 2):
        here = (actions["action.a"] == pick[:2]).all(1) & (actions["action.b"] == pick[2:]).all(1)
        given = {
            "action.a": np.array([pick[:2]]),
            "action.b": np.array([pick[2:]]),
            "action.c": np.zeros((1, 3), np.float32),
        }
        one = {name: array[:1] for name, array in answer.items()}
        log_prob, _ = judge(tensors(one), heads, tensors(given), {})
        mean, log_std = torch.from_numpy(one["mean.c"]), torch.from_numpy(one["log_std.c"])
        density, _ = judged_by.gaussian(mean, log_std, torch.zeros(1, 3))
        assert here.mean() == pytest.approx(float((log_prob - density).exp()), abs=0.01)
    # And the numbers that were made normal from uniform ones are
    standard = (actions["action.c"] - answer["mean.c"]) / np.exp(answer["log_std.c"])
    np.testing.assert_allclose(standard.mean(0), 0.0, atol=0.02)
    np.testing.assert_allclose(np.cov(standard.T), np.eye(3), atol=0.03)
    assert abs((standard**4).mean() - 3.0) < 0.1


MASKS: dict[str, tuple[Space, Space]] = {
    "in one piece": (MultiDiscrete((2, 3)), DictSpace({"action_mask": Box((5,), "int8", 0, 1), "x": CARTPOLE})),
    "a part an element": (
        MultiDiscrete((2, 3)),
        DictSpace({"action_mask": TupleSpace((MultiBinary((2,)), MultiBinary((3,)))), "x": CARTPOLE}),
    ),
    "of a leaf": (
        DictSpace({"move": MultiDiscrete((2, 3)), "arm": Box((1,), "float32")}),
        DictSpace({"action_mask": DictSpace({"move": MultiBinary((5,))}), "x": CARTPOLE}),
    ),
}


@pytest.mark.parametrize("built_in", ["mlp", "gru"])
@pytest.mark.parametrize("name", MASKS)
def test_masked_values_of_any_element_are_never_chosen_nor_seen_by_the_network(name: str, built_in: str) -> None:
    # Given a policy whose mask leaves value 1 of the first element and value 0 or 2 of the second
    action, observation = MASKS[name]
    policy: Any = make_policy(make_spec(policy={"id": built_in}).policy, observation, action, seed=1)
    rng, rows, allowed = np.random.default_rng(4), 300, np.array([0, 1, 1, 0, 1], np.int8)
    seen = draw(observation, rows, rng)
    begin = 0
    for leaf in [leaf for leaf in seen if "action_mask" in leaf]:
        width = seen[leaf].shape[1]
        seen[leaf] = np.tile(allowed[begin : begin + width], (rows, 1))
        begin += width
    state, noise = policy.initial_state(rows), chance(policy.heads, rows, rng)
    # When it acts, and a learner judges that
    acted = policy.act(seen, state, noise)
    chosen = acted.actions["action.move" if name == "of a leaf" else "action"]
    _, judged = judge_alone(policy, seen, acted)
    # Then nothing else is chosen, and the probabilities are those of what is left
    assert set(map(tuple, chosen.tolist())) == {(1, 0), (1, 2)}
    np.testing.assert_allclose(acted.outputs["log_prob"], judged.log_prob.detach().numpy(), atol=2e-5)
    free = policy.heads.means * (0.5 + 0.5 * math.log(2 * math.pi))
    assert float((judged.entropy.detach() - free).max()) <= math.log(2) + 1e-5
    # And the network does not look at the mask
    bare = {leaf: np.ones_like(array) if "action_mask" in leaf else array for leaf, array in seen.items()}
    np.testing.assert_array_equal(policy.act(bare, state, noise).outputs["value"], acted.outputs["value"])


@pytest.mark.parametrize("built_in", [{"id": "mlp"}, {"id": "mlp", "shared": True}, {"id": "lstm", "shared": False}])
@pytest.mark.parametrize("more", [{}, {"std": "state"}, {"squash": True}, {"squash": True, "std": "state"}])
def test_built_in_policies_choose_and_learn_every_action(built_in: dict[str, Any], more: dict[str, Any]) -> None:
    policy: Any = make_policy(make_spec(policy=built_in | more).policy, CARTPOLE, EVERYTHING, seed=1)
    rng = np.random.default_rng(4)
    seen, state = draw(CARTPOLE, 30, rng), policy.initial_state(30)
    acted = policy.act(seen, state, chance(policy.heads, 30, rng))
    assert sorted(acted.actions) == [leaf.name for leaf in leaves(EVERYTHING, ACTION)]
    module, judged = judge_alone(policy, seen, acted)
    np.testing.assert_allclose(acted.outputs["log_prob"], judged.log_prob.detach().numpy(), atol=1e-4)
    (judged.log_prob.sum() + judged.entropy.sum() + judged.value.sum()).backward()  # type: ignore[no-untyped-call]
    for name, parameter in module.net.named_parameters():
        counts = "weight_hh" not in name  # a memory that is still empty multiplies these with zeros
        assert parameter.grad is not None and bool(parameter.grad.any()) == counts, name
    weights = policy.get_weights()
    assert ("log_std" in weights) == ("std" not in more)


@pytest.mark.parametrize(
    ("action", "more", "reason"),
    [
        (Discrete(3), {"squash": True}, "policy.squash = True: squashes actions to their bounds, and these have none"),
        (Box((2,), "float32"), {"squash": True}, "those of action are -inf to inf"),
        (Box((2,), "int32"), {}, "has 4294967296 values, at most 1024"),
        (DictSpace({"a": Box((1,), "int16")}), {}, "action.a of int16 has 65536 values"),
    ],
)
def test_actions_that_cannot_be_chosen_so_are_refused(action: Space, more: dict[str, Any], reason: str) -> None:
    with pytest.raises(EnvError) as refused:
        make_policy(make_spec(policy=more).policy, CARTPOLE, action)
    assert reason in str(refused.value)


def test_a_mask_of_another_size_is_refused() -> None:
    seen = DictSpace({"action_mask": Box((4,), "int8", 0, 1), "x": CARTPOLE})
    with pytest.raises(EnvError, match=r"an action_mask of shape \[4\] for 5 actions"):
        Heads(seen, MultiDiscrete((2, 3)))


RANDOM_ACTIONS: dict[str, Space] = {
    "bounded": Box((2,), "float32", (-1.0, 3.0), (1.0, 3.5)),
    "low": Box((1,), "float64", 5.0, math.inf),
    "high": Box((1,), "float32", -math.inf, -5.0),
    "free": Box((2, 1), "float32"),
    "wide": Box((1,), "int64", -(2**63), 2**63 - 1),
    "bytes": Box((3,), "uint8", 0, 255),
    "flags": Box((2,), "bool", 0, 1),
    "gear": Discrete(3, start=7),
    "keys": MultiDiscrete((2, 5)),
    "bits": MultiBinary((4,)),
}


def test_random_actions_fill_their_spaces_evenly() -> None:
    # Given a random policy for actions of every kind, some of them masked
    masks = DictSpace({"gear": MultiBinary((3,))})
    observation = DictSpace({"action_mask": masks, "x": CARTPOLE})
    policy = make_policy(make_spec(policy={"id": "random"}).policy, observation, DictSpace(RANDOM_ACTIONS))
    seen = draw(observation, 20_000, np.random.default_rng(1))
    seen["obs.action_mask.gear"][...] = (1, 0, 1)
    noise = np.random.default_rng(2).random((20_000, policy.noise.size))
    # When it acts
    actions = policy.act(seen, {}, noise).actions
    # Then every action is in its space, counted from 0, and they are spread as Gymnasium spreads them
    for leaf in leaves(DictSpace(RANDOM_ACTIONS), ACTION):
        array = actions[leaf.name]
        assert array.dtype == leaf.chosen_dtype and array.shape == (20_000, *leaf.space.shape)
        if isinstance(leaf.space, Box):
            low, high = leaf.space.limits()
            assert (array >= low).all() and (array <= high).all(), leaf.name
    assert np.bincount(actions["action.gear"]) / 20_000 == pytest.approx([0.5, 0, 0.5], abs=0.02)
    assert np.bincount(actions["action.keys"][:, 1]) / 20_000 == pytest.approx([0.2] * 5, abs=0.02)
    assert actions["action.bounded"].mean(0) == pytest.approx([0.0, 3.25], abs=0.02)
    assert float(actions["action.low"].mean()) == pytest.approx(6.0, abs=0.05)
    assert float(actions["action.high"].mean()) == pytest.approx(-6.0, abs=0.05)
    assert float(actions["action.free"].std()) == pytest.approx(1.0, abs=0.02)
    assert float(actions["action.bytes"].mean()) == pytest.approx(127.5, abs=1.5)
    assert abs(float((actions["action.wide"] / 2**63).mean())) < 0.02
    assert actions["action.bits"].mean() == pytest.approx(0.5, abs=0.02)
