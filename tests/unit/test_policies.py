"""Policies act alike in numpy and torch, draw what they should, and are refused with a reason."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from heddle.errors import EnvError
from heddle.policies import lag, make_policy
from heddle.policies.base import MASK_LEAF, Policy
from heddle.policies.heads import categorical, gaussian
from heddle.policies.normalise import Normaliser, RewardScaler, RunningMoments
from heddle.policies.torch_module import make_module
from heddle.policies.weights import WeightsError
from heddle.spaces import Box, DictSpace, Discrete, Space
from heddle.spec.objects import describe_error
from tests.unit.policy_zoo import CARTPOLE, MASKED, draw, make_spec

CPU = torch.device("cpu")
ZOO = "tests.unit.policy_zoo"
CASES = [
    (CARTPOLE, Discrete(2)),
    (CARTPOLE, Discrete(5, start=-2)),
    (CARTPOLE, Box((3,), "float32", -1, 1)),
    (CARTPOLE, Box((2, 2), "float64", -1, 1)),
    (MASKED, Discrete(3)),
    (Box((6, 5, 3), "uint8", 0, 255), Discrete(4)),
    (Discrete(7, start=3), Discrete(2)),
    (DictSpace({"a": Box((), "float32"), "b": DictSpace({"c": Box((2, 3), "float64")})}), Box((1,), "float32")),
]


def built(observation: Space, action: Space, **options: object) -> Policy:
    return make_policy(make_spec(policy=options).policy, observation, action, seed=3)


def with_statistics(policy: Policy, observation: Space, rng: np.random.Generator) -> None:
    """Give a policy normaliser statistics that change what it sees."""
    normaliser = Normaliser(observation)
    normaliser.update({name: 3 * array + 1 for name, array in draw(observation, 50, rng).items()})
    policy.set_weights(policy.get_weights() | normaliser.weights())


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"shared": True, "activation": "relu"}, {"hidden": []}, {"hidden": [16, 8, 4]}]
)
@pytest.mark.parametrize(("observation", "action"), CASES)
def test_the_mlp_acts_in_numpy_as_it_learns_in_torch(
    observation: Space, action: Space, options: dict[str, object], normalised: bool
) -> None:
    # Given the built-in policy with weights far from their start, and its torch module
    rng = np.random.default_rng(1)
    policy = built(observation, action, **options)
    moved = {name: array + 0.3 * rng.standard_normal(array.shape) for name, array in policy.get_weights().items()}
    policy.set_weights({name: array.astype(np.float32) for name, array in moved.items()})
    if normalised:
        with_statistics(policy, observation, rng)
    module = make_module(policy, device=CPU)
    module.set_weights(policy.get_weights())
    # When both judge the actions that numpy chose
    seen = draw(observation, 33, rng)
    noise = rng.random((33, 1)) if policy.noise.kind == "uniform" else rng.standard_normal((33, policy.noise.size))
    acted = policy.act(seen, {}, noise)
    tensors = module.normalise({name: torch.from_numpy(array) for name, array in seen.items()})
    judged = module.evaluate(tensors, torch.from_numpy(acted.actions["action"]))
    # Then they agree to 1e-5
    np.testing.assert_allclose(acted.outputs["log_prob"], judged.log_prob.detach().numpy(), atol=1e-5, rtol=1e-5)
    np.testing.assert_allclose(acted.outputs["value"], judged.value.detach().numpy(), atol=1e-5, rtol=1e-5)
    assert acted.outputs["value"].dtype == acted.outputs["log_prob"].dtype == np.float32
    assert isinstance(action, Box | Discrete)
    assert acted.actions["action"].shape == (33, *action.shape)
    assert acted.actions["action"].dtype == action.dtype


def test_weights_go_around_and_leave_nothing_behind() -> None:
    # Given two policies with different first weights
    first, second = built(CARTPOLE, Discrete(2)), make_policy(make_spec().policy, CARTPOLE, Discrete(2), seed=4)
    weights = first.get_weights()
    assert not np.array_equal(weights["policy.0.weight"], second.get_weights()["policy.0.weight"])
    # When one takes the other's
    second.set_weights(weights)
    weights["policy.0.weight"][:] = 0
    # Then they act alike, and the caller's arrays are not shared
    seen = {"obs": np.ones((1, 4), np.float32)}
    noise = np.array([[0.4]])
    np.testing.assert_array_equal(
        first.act(seen, {}, noise).outputs["value"], second.act(seen, {}, noise).outputs["value"]
    )


def test_the_same_seed_gives_the_same_first_weights() -> None:
    one, two = (built(CARTPOLE, Discrete(2)).get_weights() for _ in range(2))
    assert one.keys() == two.keys()
    assert all(np.array_equal(one[name], two[name]) for name in one)


def test_first_weights_are_orthogonal_with_the_usual_gains() -> None:
    weights = built(CARTPOLE, Discrete(2)).get_weights()
    hidden = weights["policy.1.weight"]
    np.testing.assert_allclose(hidden @ hidden.T, 2 * np.eye(64), atol=1e-5)
    np.testing.assert_allclose(weights["policy.2.weight"] @ weights["policy.2.weight"].T, 1e-4 * np.eye(2), atol=1e-8)
    np.testing.assert_allclose(np.linalg.norm(weights["value.2.weight"]), 1.0, atol=1e-5)
    assert not any(array.any() for name, array in weights.items() if name.endswith("bias"))


def test_weights_of_another_policy_are_refused_by_name() -> None:
    policy = built(CARTPOLE, Discrete(2))
    weights = policy.get_weights()
    with pytest.raises(WeightsError, match=r"policy\.0\.weight is float32\[64, 4\], expected float32\[64, 6\]"):
        built(Box((6,), "float32"), Discrete(2)).set_weights(weights)
    with pytest.raises(WeightsError, match="unknown.*extra"):
        policy.set_weights(weights | {"extra": np.zeros(1, np.float32)})
    with pytest.raises(WeightsError, match="missing.*value"):
        policy.set_weights({name: array for name, array in weights.items() if not name.startswith("value")})
    with pytest.raises(WeightsError, match="float64"):
        policy.set_weights({name: array.astype(np.float64) for name, array in weights.items()})
    with pytest.raises(WeightsError, match=r"norm\.obs\.camera"):
        policy.set_weights(weights | {"norm.obs.camera.mean": np.zeros(4)})


def test_categorical_draws_each_action_as_often_as_its_probability_says() -> None:
    # Given an even grid of uniforms, so that counts are exact
    logits = np.tile(np.log(np.array([0.2, 0.5, 0.3], np.float32)), (1000, 1))
    uniform = (np.arange(1000)[:, None] + 0.5) / 1000
    # When actions are drawn
    actions, log_prob = categorical(logits, uniform)
    # Then
    assert np.bincount(actions).tolist() == [200, 500, 300]
    np.testing.assert_allclose(np.exp(log_prob), np.array([0.2, 0.5, 0.3])[actions], rtol=1e-5)


@pytest.mark.parametrize("uniform", [0.0, 0.5, float(np.nextafter(np.float32(1), np.float32(0))), 1 - 2.0**-53])
def test_a_masked_action_is_never_drawn_even_at_the_ends_of_the_uniform(uniform: float) -> None:
    policy = built(MASKED, Discrete(3))
    for mask in ([0, 1, 0], [1, 0, 0], [0, 0, 1]):
        seen = draw(MASKED, 1, np.random.default_rng(0)) | {MASK_LEAF: np.array([mask], np.int8)}
        acted = policy.act(seen, {}, np.array([[uniform]]))
        assert acted.actions["action"].tolist() == [mask.index(1)]
        np.testing.assert_allclose(acted.outputs["log_prob"], 0.0, atol=1e-6)


def test_the_mask_counts_in_entropy_and_is_not_seen_by_the_network() -> None:
    # Given two observations that differ only in what they allow
    policy = built(MASKED, Discrete(3))
    module = make_module(policy, device=CPU)
    seen = draw(MASKED, 1, np.random.default_rng(0))
    masks = np.array([[1, 1, 0], [1, 1, 1]], np.int8)
    tensors = {name: torch.from_numpy(np.repeat(array, 2, axis=0)) for name, array in seen.items()}
    tensors[MASK_LEAF] = torch.from_numpy(masks)
    # When judged
    judged = module.evaluate(tensors, torch.zeros(2, dtype=torch.int64))
    # Then entropy is that of 2 and 3 nearly equal choices, and the value is the same
    np.testing.assert_allclose(judged.entropy.detach().numpy(), np.log([2, 3]), atol=1e-3)
    value = judged.value.detach().numpy()
    np.testing.assert_allclose(value[0], value[1], rtol=1e-6)


def test_deterministic_actions_are_the_likeliest() -> None:
    rng = np.random.default_rng(5)
    logits = rng.standard_normal((20, 4)).astype(np.float32)
    assert categorical(logits, None)[0].tolist() == logits.argmax(axis=1).tolist()
    mean = rng.standard_normal((20, 3)).astype(np.float32)
    actions, log_prob = gaussian(mean, np.zeros(3, np.float32), None)
    np.testing.assert_array_equal(actions, mean)
    np.testing.assert_allclose(log_prob, -1.5 * np.log(2 * np.pi), rtol=1e-6)


def test_a_users_torch_module_acts_and_is_judged_alike() -> None:
    for action in (Discrete(3), Box((2,), "float32", -1, 1)):
        # Given a module of the user's, named in the spec
        policy = make_policy(make_spec(policy={"id": f"{ZOO}:Linear", "kwargs": {"width": 5}}).policy, CARTPOLE, action)
        rng = np.random.default_rng(2)
        with_statistics(policy, CARTPOLE, rng)
        module = make_module(policy, device=CPU)
        module.set_weights(policy.get_weights())
        # When it acts, and its module judges
        seen = draw(CARTPOLE, 9, rng)
        noise = rng.random((9, 1)) if policy.noise.kind == "uniform" else rng.standard_normal((9, 2))
        acted = policy.act(seen, {}, noise)
        tensors = module.normalise({name: torch.from_numpy(array) for name, array in seen.items()})
        judged = module.evaluate(tensors, torch.from_numpy(acted.actions["action"]))
        # Then they agree
        np.testing.assert_allclose(acted.outputs["log_prob"], judged.log_prob.detach().numpy(), atol=1e-5)
        np.testing.assert_allclose(acted.outputs["value"], judged.value.detach().numpy(), atol=1e-5)


def test_a_module_drops_nothing_while_it_acts_or_is_asked_for_values_and_does_while_it_learns() -> None:
    # Given a module with dropout, once for a worker and once for a trainer
    spec, action = make_spec(policy={"id": f"{ZOO}:Forgets"}).policy, Box((1,), "float32")
    acting, module = make_policy(spec, CARTPOLE, action), make_module(make_policy(spec, CARTPOLE, action), device=CPU)
    seen = np.ones((1, 2, 4), np.float32)
    # When it acts twice, and is asked for values and to judge twice
    one, two = (acting.act({"obs": seen[:, 0]}, {}, np.zeros((1, 1))) for _ in range(2))
    values, _ = module.values(
        {"obs": torch.from_numpy(seen)},
        ended=torch.zeros(1, 1, dtype=torch.bool),
        state={},
        final_index=torch.zeros(0, 2, dtype=torch.int64),
        final_observations={},
    )
    many = {"obs": torch.ones(50, 4)}
    first, second = (module.evaluate(many, torch.zeros(50, 1)).log_prob for _ in range(2))
    # Then only judging, which gradients go through, draws dropout
    assert one.actions["action"] == two.actions["action"]
    np.testing.assert_allclose(values[0].numpy(), np.repeat(one.outputs["value"], 2), atol=1e-6)
    assert first.shape == (50,)
    assert not torch.equal(first, second)


def test_the_same_seed_gives_a_users_module_the_same_first_weights() -> None:
    spec = make_spec(policy={"id": f"{ZOO}:Linear"}).policy
    one, two = (make_policy(spec, CARTPOLE, Discrete(2), seed=9).get_weights() for _ in range(2))
    assert all(np.array_equal(one[name], two[name]) for name in one)


def test_a_recurrent_module_remembers_and_is_replayed_through_time() -> None:
    # Given a recurrent policy that plays 6 steps in 3 environments, one of which starts anew after step 2
    policy = make_policy(make_spec(policy={"id": f"{ZOO}:Remembers"}).policy, CARTPOLE, Discrete(2), seed=1)
    rng = np.random.default_rng(4)
    seen = rng.standard_normal((3, 6, 4)).astype(np.float32)
    ended = np.zeros((3, 6), bool)
    ended[1, 2] = True
    state, actions, log_prob, value = policy.initial_state(3), [], [], []
    for step in range(6):
        acted = policy.act({"obs": seen[:, step]}, state, rng.random((3, 1)))
        actions.append(acted.actions["action"].copy())
        log_prob.append(acted.outputs["log_prob"].copy())
        value.append(acted.outputs["value"].copy())
        state = {
            name: np.where(ended[:, step, None], 0, array).astype(np.float32) for name, array in acted.state.items()
        }
    # When the learner's side replays it
    module = make_module(policy, device=CPU)
    judged = module.evaluate_sequence(
        {"obs": torch.from_numpy(seen)},
        torch.from_numpy(np.stack(actions, axis=1)),
        torch.from_numpy(ended),
        module.zero_state(3),
    )
    # Then it finds the same numbers
    np.testing.assert_allclose(np.stack(log_prob, axis=1), judged.log_prob.detach().numpy(), atol=1e-5)
    np.testing.assert_allclose(np.stack(value, axis=1), judged.value.detach().numpy(), atol=1e-5)


def test_a_final_observation_is_valued_from_the_state_after_its_step() -> None:
    # Given a recurrent module and an episode truncated at step 1 of 3
    policy = make_policy(make_spec(policy={"id": f"{ZOO}:Remembers"}).policy, CARTPOLE, Discrete(2), seed=1)
    rng = np.random.default_rng(4)
    seen, final = rng.standard_normal((1, 4, 4)).astype(np.float32), rng.standard_normal((1, 4)).astype(np.float32)
    state = policy.initial_state(1)
    for step in range(2):
        state = policy.act({"obs": seen[:, step]}, state, np.array([[0.5]])).state
    expected = policy.act({"obs": final}, state, np.array([[0.5]])).outputs["value"]
    fresh = policy.act({"obs": seen[:, 2]}, policy.initial_state(1), np.array([[0.5]])).outputs["value"]
    # When the learner's side values all
    module = make_module(policy, device=CPU)
    values, finals = module.values(
        {"obs": torch.from_numpy(seen)},
        ended=torch.tensor([[False, True, False]]),
        state=module.zero_state(1),
        final_index=torch.tensor([[0, 1]]),
        final_observations={"obs": torch.from_numpy(final)},
    )
    # Then the final one has its state, and the next episode starts from none
    np.testing.assert_allclose(finals.numpy(), expected, atol=1e-6)
    np.testing.assert_allclose(values[:, 2].numpy(), fresh, atol=1e-6)


def test_a_scripted_policy_acts_but_cannot_be_trained() -> None:
    policy = make_policy(
        make_spec(policy={"id": f"{ZOO}:AlwaysRight", "kwargs": {"choice": 0}}).policy, CARTPOLE, Discrete(2)
    )
    acted = policy.act({"obs": np.zeros((3, 4), np.float32)}, {}, np.zeros((3, 0)))
    assert acted.actions["action"].tolist() == [0, 0, 0]
    assert policy.get_weights() == {}
    with pytest.raises(EnvError, match="cannot be trained: AlwaysRight offers no torch module"):
        make_module(policy, device=CPU)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("nowhere_at_all:Policy", "no module"),
        (f"{ZOO}:Lineer", "did you mean Linear"),
        (f"{ZOO}:Halfway", "Halfway lacks outputs, state"),
        (f"{ZOO}:CARTPOLE", "expected a class or function"),
        (f"{ZOO}:raises", "ValueError: no such net"),
        (f"{ZOO}:WrongWidth", r"logits \[2, 3\] for 2 observations, expected \[2, 2\]"),
    ],
)
def test_a_policy_that_cannot_be_made_is_refused_with_the_reason(name: str, reason: str) -> None:
    with pytest.raises(EnvError, match=reason) as caught:
        make_policy(make_spec(policy={"id": name}).policy, CARTPOLE, Discrete(2))
    assert caught.value.problems[0].key == "policy.id"


@pytest.mark.parametrize(
    ("action", "gave"),
    [
        (Discrete(3), r"logits \[4, 2\] for 4 observations, expected \[4, 3\]"),
        (Box((2,), "float32", -1, 1), r"mean \[4, 1\] for 4 observations, expected \[4, 2\]"),
    ],
)
def test_a_module_that_answers_with_other_shapes_later_is_caught_when_it_acts(action: Space, gave: str) -> None:
    policy = make_policy(make_spec(policy={"id": f"{ZOO}:Shrinks"}).policy, CARTPOLE, action)
    seen, noise = draw(CARTPOLE, 4, np.random.default_rng(0)), np.full((4, policy.noise.size), 0.5)
    policy.act(seen, {}, noise)
    with pytest.raises(ValueError, match=gave):
        policy.act(seen, {}, noise)


def test_what_heddle_says_of_an_answer_blames_no_library_on_the_way() -> None:
    policy = make_policy(make_spec(policy={"id": f"{ZOO}:Shrinks"}).policy, CARTPOLE, Discrete(3))
    seen, noise = draw(CARTPOLE, 4, np.random.default_rng(0)), np.full((4, policy.noise.size), 0.5)
    policy.act(seen, {}, noise)
    with ThreadPoolExecutor(1) as pool:  # so that no frame of this file is on the way
        error = pool.submit(policy.act, seen, {}, noise).exception()
    assert error is not None
    assert describe_error(error).endswith("expected [4, 3]")


def test_integers_with_too_many_values_to_choose_among_are_refused() -> None:
    with pytest.raises(EnvError, match="actions that this policy cannot choose"):
        built(CARTPOLE, Box((2,), "int32", 0, 5000))
    with pytest.raises(EnvError, match=r"action_mask of shape \[3\] for 2 actions"):
        built(MASKED, Discrete(2))


def test_running_moments_in_pieces_equal_those_of_the_whole() -> None:
    values = np.random.default_rng(0).normal(5, 3, (1000, 4))
    moments = RunningMoments((4,))
    for piece in np.split(values, [1, 7, 7, 500]):
        moments.update(piece)
    np.testing.assert_allclose(moments.mean, values.mean(axis=0))
    np.testing.assert_allclose(moments.var, values.var(axis=0))
    assert moments.count == 1000


def test_normaliser_statistics_go_around_and_leave_integers_alone() -> None:
    normaliser = Normaliser(MASKED)
    normaliser.update(draw(MASKED, 30, np.random.default_rng(0)))
    again = Normaliser(MASKED)
    again.load(normaliser.weights())
    assert list(again.moments) == ["obs.position"]
    np.testing.assert_array_equal(again.moments["obs.position"].mean, normaliser.moments["obs.position"].mean)


def test_reward_scaling_forgets_the_episode_that_an_owner_left_unfinished() -> None:
    ones, going, key = np.ones((1, 2), np.float32), np.zeros((1, 2), bool), (0, 0)

    def after(*epochs: int) -> float:
        scaler = RewardScaler(0.5)
        for epoch in epochs:
            scaler.scale(ones, going, ~going, keys=[key], epochs=[epoch])
            again = RewardScaler(0.5)
            again.load(scaler.state())  # as a resumed trainer would
            scaler = again
        return scaler.returns[key]

    assert after(7) == 1.5
    assert after(7, 7) == 1.875
    assert after(7, 8) == 1.5


def test_reward_scaling_follows_each_environment_across_segments_and_stops_at_episode_ends() -> None:
    # Given two segments of one environment, in order, and one of another; the second step of the first ends an episode
    scaler = RewardScaler(0.5)
    reward = np.array([[1.0, 1.0, 1.0], [1.0, 1.0, 9.0], [2.0, 0.0, 0.0]])
    ended = np.zeros((3, 3), bool)
    ended[0, 1] = True
    valid = np.ones((3, 3), bool)
    valid[1, 2] = False
    # When scaled
    scaled = scaler.scale(reward, ended, valid, keys=[(0, 0), (0, 0), (1, 0)])
    # Then the discounted returns were 1, 1.5 | 1, 1.5, 1.75 and 2, 1, 0.5
    seen = np.array([1, 1.5, 1, 1.5, 1.75, 2, 1, 0.5])
    np.testing.assert_allclose(scaler.moments.var, seen.var())
    np.testing.assert_allclose(scaled[valid], (reward / seen.std())[valid], rtol=1e-6)
    assert scaler.returns == {(0, 0): 1.75, (1, 0): 0.5}
    again = RewardScaler(0.5)
    again.load(scaler.state())
    assert again.returns == scaler.returns
    assert again.moments.count == scaler.moments.count


@pytest.mark.parametrize(
    ("version", "latest", "limit", "stale"),
    [(5, 5, 0, False), (4, 5, 0, True), (1, 5, 4, False), (0, 5, 4, True), (0, 99, None, False), (9, 5, 0, False)],
)
def test_a_segment_is_stale_beyond_the_limit_only(version: int, latest: int, limit: int | None, stale: bool) -> None:
    assert lag.is_stale(version, latest, limit) is stale


def test_lags_are_summarised() -> None:
    assert lag.summarise([5, 5, 3], 5) == lag.LagSummary(mean=2 / 3, max=2, histogram=(2, 0, 1))
    assert lag.summarise([], 5) == lag.LagSummary(0.0, 0, ())
