"""DQN and SAC: targets worked out by hand, policies that act as the trainer thinks, learners that learn and resume."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from heddle.consumers.assemble import Assembler
from heddle.consumers.learners import Dqn, Sac, TrainBatch, make_learner
from heddle.consumers.learners.off_policy import OffPolicy
from heddle.consumers.learners.replay_sample import Sample
from heddle.consumers.learners.value_targets import bootstrapped, greedy_value, huber
from heddle.errors import CheckpointError, EnvError, ExperimentFailed, SpecError
from heddle.layout import Segments, make_layout
from heddle.policies import make_policy
from heddle.policies.base import Array, Policy
from heddle.policies.normalise import Normaliser
from heddle.policies.torch_module import make_module
from heddle.policies.torch_sac import squashed
from heddle.spaces import Box, Discrete, Space
from heddle.spec.plan import needs, size_problems
from tests.unit.policy_zoo import CARTPOLE, MASKED, draw, make_spec

CPU = torch.device("cpu")
STEPS, ROWS = 8, 16
ACTIONS: dict[str, Space] = {"dqn": Discrete(3), "sac": Box((2,), "float32", -2.0, 4.0)}
SMALL = {"hidden": [32], "activation": "relu"}


def row(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float32)


# ---- targets


def test_a_target_is_the_rewards_and_the_discounted_value_of_what_followed() -> None:
    found = bootstrapped(row(1.5, 2.0), row(0.25, 0.0), row(8.0, 100.0))
    assert found.tolist() == [3.5, 2.0]


def test_the_online_network_chooses_when_learning_is_double() -> None:
    target, online = torch.tensor([[1.0, 5.0], [3.0, 2.0]]), torch.tensor([[9.0, 0.0], [9.0, 0.0]])
    assert greedy_value(target).tolist() == [5.0, 3.0]
    assert greedy_value(target, online).tolist() == [1.0, 3.0]


def test_errors_above_one_are_clipped_and_every_step_has_its_weight() -> None:
    # 0.5 * 0.5^2 = 0.125 with weight 1; 3 - 0.5 = 2.5 with weight 0.5
    assert float(huber(row(0.5, 3.0), row(0.0, 0.0), row(1.0, 0.5))) == pytest.approx((0.125 + 1.25) / 2)


def test_densities_of_squashed_actions_are_those_of_the_change_of_variables() -> None:
    mean, log_std, noise = row(0.3, -1.0).view(1, 2), row(-0.5, 0.2).view(1, 2), row(0.7, -0.4).view(1, 2)
    action, log_prob = squashed(mean, log_std, noise)
    inner = mean + log_std.exp() * noise
    normal = -0.5 * noise**2 - log_std - 0.5 * math.log(2 * math.pi)
    expected = (normal - torch.log(1 - inner.tanh() ** 2)).sum()
    torch.testing.assert_close(action, inner.tanh())
    assert float(log_prob) == pytest.approx(float(expected), rel=1e-5)


# ---- policies


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("observation", [CARTPOLE, MASKED])
def test_worker_and_trainer_agree_on_the_values_of_actions(observation: Space, dueling: bool) -> None:
    spec = make_spec(learner="dqn", policy={**SMALL, "dueling": dueling}, normalize_observations=True)
    policy: Any = make_policy(spec.policy, observation, Discrete(3), seed=1)
    seen = draw(observation, 20, np.random.default_rng(0))
    model = make_module(policy, device=CPU)
    answer = model.answer({name: torch.from_numpy(array) for name, array in seen.items()}, {})["q"]
    values = policy.values(seen)
    likely = values > -1e8
    np.testing.assert_allclose(values[likely], answer.detach().numpy()[likely], rtol=1e-5, atol=1e-6)


def test_epsilon_travels_with_the_weights_and_random_actions_are_even_among_the_allowed_ones() -> None:
    spec = make_spec(learner="dqn", policy=SMALL)
    policy = make_policy(spec.policy, MASKED, Discrete(3), seed=1)
    rng = np.random.default_rng(0)
    seen = {name: np.repeat(array, 4000, 0) for name, array in draw(MASKED, 1, rng).items()}
    seen["obs.action_mask"][...] = [1, 0, 1]
    for epsilon, low, high in ((0.0, 0.0, 0.0), (0.5, 0.2, 0.3), (1.0, 0.45, 0.55)):
        policy.set_weights(policy.get_weights() | {"epsilon": np.array(epsilon, np.float32)})
        actions = policy.act(seen, {}, rng.random((4000, 2))).actions["action"]
        best = policy.act(seen, {}, rng.random((4000, 2)), deterministic=True).actions["action"]
        assert not (actions == 1).any()
        assert low <= float((actions != best).mean()) <= high


def test_sac_acts_within_the_bounds_evenly_at_first_and_by_its_mean_when_measured() -> None:
    action = Box((2,), "float32", (-2.0, 0.0), (4.0, 1.0))
    spec = make_spec(learner="sac", policy=SMALL)
    policy = make_policy(spec.policy, CARTPOLE, action, seed=1)
    rng = np.random.default_rng(0)
    seen = {"obs": np.repeat(rng.standard_normal((1, 4)).astype(np.float32), 4000, 0)}
    chosen = policy.act(seen, {}, rng.standard_normal((4000, 2))).actions["action"]
    assert chosen.min(axis=0) == pytest.approx([-2, 0], abs=0.02)
    assert np.quantile(chosen, [0.25, 0.5, 0.75], axis=0)[:, 0] == pytest.approx([-0.5, 1.0, 2.5], abs=0.2)
    policy.set_weights(policy.get_weights() | {"random": np.array(0.0, np.float32)})
    actor = make_module(policy, device=CPU)
    mean = actor.answer({"obs": torch.from_numpy(seen["obs"][:1])}, {})["mean"].detach().numpy()[0]
    measured = policy.act(seen, {}, rng.standard_normal((4000, 2)), deterministic=True).actions["action"]
    expected = np.array([-2.0, 0.0]) + (np.tanh(mean) + 1) / 2 * np.array([6.0, 1.0])
    np.testing.assert_allclose(measured[0], expected, rtol=1e-5)
    assert (policy.act(seen, {}, rng.standard_normal((4000, 2))).actions["action"] <= np.array([4.0, 1.0])).all()


@pytest.mark.parametrize(
    ("learner", "action", "message"),
    [
        ("dqn", Box((2,), "float32", -1, 1), "policy.id = q cannot choose"),
        ("sac", Discrete(2), "policy.id = sac cannot choose"),
        ("sac", Box((2,), "float32"), "finite bounds"),
    ],
)
def test_actions_that_a_policy_cannot_choose_are_refused_with_what_to_do(
    learner: str, action: Space, message: str
) -> None:
    with pytest.raises(EnvError, match=message):
        make_policy(make_spec(learner=learner).policy, CARTPOLE, action)


def test_a_policy_without_the_weight_that_its_learner_publishes_is_refused() -> None:
    spec = make_spec(learner="dqn", policy={"id": "tests.unit.policy_zoo:AlwaysRight"})
    with pytest.raises(EnvError, match="has no epsilon among its weights"):
        make_learner(spec, make_policy(spec.policy, CARTPOLE, Discrete(3)), device=CPU, seed=0)


# ---- learning


def play(policy: Policy, learner: str, *, seed: int, explore: bool = True, action: Space | None = None) -> TrainBatch:
    """A bandit: each step is an episode; reward 1 for action 0, or less the squared distance of a Box action from 1."""
    rng, action = np.random.default_rng(seed), action or ACTIONS[learner]
    plan = make_layout(CARTPOLE, action, steps=STEPS, outputs=policy.outputs)
    segments = Segments.empty(plan, ROWS)
    arrays = segments.arrays
    for step in range(STEPS + 1):
        arrays["obs"][:, step] = seen = rng.standard_normal((ROWS, 4)).astype(np.float32)
        if step == STEPS:
            break
        size = (ROWS, policy.noise.size)
        noise = rng.random(size) if policy.noise.kind == "uniform" else rng.standard_normal(size)
        chosen = policy.act({"obs": seen}, {}, noise, deterministic=not explore).actions["action"]
        arrays["action"][:, step] = chosen
        arrays["reward"][:, step] = (
            chosen == 0 if learner == "dqn" else -np.square(chosen - 1).reshape(ROWS, -1).sum(axis=1)
        )
    arrays["terminated"][...] = True
    arrays["length"][:] = STEPS
    arrays["env"][:] = np.arange(ROWS)
    return Assembler(plan, device=CPU).assemble([segments], [0])


def make(
    learner: str, *, seed: int = 1, replay: dict[str, Any] | None = None, **trainer: Any
) -> tuple[Policy, OffPolicy]:
    table = {"samples_per_step": 4.0, "learning_starts": 200, **(replay or {})}
    spec = make_spec(learner=learner, policy=SMALL, **{"lr": 5e-3, "minibatch": 32, "replay": table} | trainer)
    policy = make_policy(spec.policy, CARTPOLE, ACTIONS[learner], seed=seed)
    made: Any = make_learner(spec, policy, device=CPU, seed=seed)
    return policy, made


@pytest.mark.parametrize("learner", ["dqn", "sac"])
@pytest.mark.parametrize("prioritised", [False, True])
def test_the_reward_rises(learner: str, prioritised: bool) -> None:
    # Given a learner of either kind, that has seen nothing
    policy, made = make(learner, replay={"prioritised": prioritised}, normalize_observations=True, gamma=0.9)
    policy.set_weights(made.get_weights())
    # When it learns from what its own policy plays
    for update in range(12):
        metrics = made.update(play(policy, learner, seed=update), update / 12)
        policy.set_weights(made.get_weights())
    # Then it does what is rewarded, measured without chance
    reward = float(play(policy, learner, seed=999, explore=False).reward.mean())
    assert reward > (0.9 if learner == "dqn" else -0.5)
    assert all(math.isfinite(value) for value in metrics.values())


def test_an_action_of_no_dimensions_is_learned_like_any_other() -> None:
    number = Box((), "float32", -1.0, 1.0)
    spec = make_spec(learner="sac", policy=SMALL, lr=5e-3, minibatch=32, replay={"samples_per_step": 4.0})
    policy = make_policy(spec.policy, CARTPOLE, number, seed=1)
    made: Any = make_learner(spec, policy, device=CPU, seed=1)
    policy.set_weights(made.get_weights())
    metrics = [made.update(play(policy, "sac", seed=update, action=number), 0.5) for update in range(8)][-1]
    assert metrics["gradient_steps"] > 0 and all(math.isfinite(value) for value in metrics.values())


def test_actors_are_sent_what_acting_needs_and_no_more() -> None:
    for learner, extra in (("dqn", "epsilon"), ("sac", "random")):
        policy, made = make(learner)
        names = made.get_weights().keys()
        assert names == policy.get_weights().keys()
        assert extra in names
        assert not any("critic" in name or "target" in name for name in names)


def test_nothing_is_learned_and_actions_are_random_until_there_is_enough() -> None:
    policy, made = make("dqn", dqn={"epsilon": 0.125})
    first = made.update(play(policy, "dqn", seed=0), 0.0)
    assert (first["gradient_steps"], first["epsilon"], float(made.get_weights()["epsilon"])) == (0.0, 1.0, 1.0)
    second = made.update(play(policy, "dqn", seed=1), 0.0)
    # 128 steps, 4 samples each, 32 a gradient step
    assert (second["gradient_steps"], second["epsilon"], float(made.get_weights()["epsilon"])) == (16.0, 0.125, 0.125)


def test_samples_that_make_no_whole_gradient_step_are_owed_to_the_next_update() -> None:
    policy, made = make("dqn", replay={"samples_per_step": 0.4, "learning_starts": 1})
    steps = [made.update(play(policy, "dqn", seed=seed), 0.0)["gradient_steps"] for seed in range(5)]
    # 128 * 0.4 / 32 = 1.6 gradient steps an update
    assert steps == [1.0, 2.0, 1.0, 2.0, 2.0]


def test_epsilon_falls_over_its_share_of_the_budget() -> None:
    policy, made = make("dqn", replay={"learning_starts": 1}, dqn={"epsilon_share": 0.5})
    found = [made.update(play(policy, "dqn", seed=0), share)["epsilon"] for share in (0.0, 0.25, 0.5, 1.0)]
    assert found == pytest.approx([1.0, 0.525, 0.05, 0.05])


def test_the_target_network_follows_at_its_own_pace() -> None:
    policy, made = make("dqn", replay={"learning_starts": 1}, dqn={"target_every": 16})
    assert isinstance(made, Dqn)
    before = {name: array.copy() for name, array in made.own_state().items() if name.startswith("target.")}
    made.update(play(policy, "dqn", seed=0), 0.0)
    after = made.own_state()
    online = made.get_weights()
    for name in before:
        np.testing.assert_array_equal(after[name], online[name.removeprefix("target.")])
    assert any(not np.array_equal(before[name], after[name]) for name in before)


def test_the_target_critics_follow_a_little_after_each_step() -> None:
    policy, made = make("sac", replay={"learning_starts": 1}, sac={"tau": 0.25})
    made.update(play(policy, "sac", seed=0), 0.0)
    before, sample = made.own_state(), made.replay.sample(32)
    made.learn(sample, 0.0)
    after = made.own_state()
    names = [name.removeprefix("critic:") for name in before if name.startswith("critic:")]
    assert names
    for name in names:
        aim = 0.75 * before[f"target:{name}"] + 0.25 * after[f"critic:{name}"]
        np.testing.assert_allclose(after[f"target:{name}"], aim, rtol=1e-5, atol=1e-6)
    assert any(not np.array_equal(before[f"target:{name}"], after[f"target:{name}"]) for name in names)


def test_threads_of_the_learner_are_those_of_the_spec() -> None:
    try:
        make("dqn", threads=2)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    make("dqn")
    assert torch.get_num_threads() == 1


def test_the_temperature_falls_while_there_is_more_entropy_than_asked_for_and_can_be_fixed() -> None:
    policy, made = make("sac", replay={"learning_starts": 1}, sac={"target_entropy": -20.0})
    metrics = [made.update(play(policy, "sac", seed=seed), 0.0) for seed in range(3)]
    assert metrics[-1]["temperature"] < metrics[0]["temperature"] < 1.0
    policy, made = make("sac", replay={"learning_starts": 1}, sac={"temperature": 0.25})
    assert made.update(play(policy, "sac", seed=0), 0.0)["temperature"] == pytest.approx(0.25)


@pytest.mark.parametrize("learner", ["dqn", "sac"])
def test_a_resumed_learner_goes_on_exactly_as_the_first_would_have(tmp_path: Path, learner: str) -> None:
    # Given a learner with every kind of state it can have, and its buffer in files
    options: dict[str, Any] = {"replay": {"prioritised": True, "n_step": 2}, "normalize_observations": True}
    policy, first = make(learner, **options)
    first.open(tmp_path)
    for update in range(3):
        first.update(play(policy, learner, seed=update), 0.0)
    tensors, meta = first.state()
    # When another one takes over
    _, second = make(learner, seed=1, **options)
    second.open(tmp_path)
    second.set_weights(first.get_weights())
    second.load(tensors, meta)
    # Then its next update gives the same numbers and the same weights
    batch = play(policy, learner, seed=9)
    assert first.update(batch, 0.5) == second.update(batch, 0.5)
    one, two = first.get_weights(), second.get_weights()
    assert all(np.array_equal(one[name], two[name]) for name in one)
    arrays: tuple[dict[str, Array], dict[str, Array]] = (first.state()[0], second.state()[0])
    assert all(np.array_equal(arrays[0][name], arrays[1][name]) for name in arrays[0])
    with pytest.raises(CheckpointError, match="'ppo'"):
        second.load(tensors, meta | {"learner": "ppo"})
    with pytest.raises(CheckpointError, match="incomplete"):
        second.load(tensors, {name: value for name, value in meta.items() if name != "owed"})


@pytest.mark.parametrize("learner", ["dqn", "sac"])
def test_a_batch_that_is_only_probed_is_learned_from_and_forgotten_and_touches_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, learner: str
) -> None:
    # Given a learner with a buffer in files, of which some wait for the next checkpoint
    options: dict[str, Any] = {"replay": {"prioritised": True, "n_step": 2}, "normalize_observations": True}
    policy, first = make(learner, **options)
    first.open(tmp_path)
    for update in range(3):
        first.update(play(policy, learner, seed=update), 0.0)
    weights, before = first.get_weights(), list(tmp_path.iterdir())
    learned: list[int] = []
    learn = first.learn

    def noted(sample: Sample, share: float) -> Any:
        learned.append(len(sample.rows))
        return learn(sample, share)

    monkeypatch.setattr(first, "learn", noted)
    # When it probes a batch
    first.probe(play(policy, learner, seed=9), 0.5)
    # Then it did gradient steps on it, and nothing is left of them
    assert learned and list(tmp_path.iterdir()) == before == []
    assert all(np.array_equal(array, first.get_weights()[name]) for name, array in weights.items())
    _, second = make(learner, **options)
    for update in range(3):
        second.update(play(policy, learner, seed=update), 0.0)
    batch = play(policy, learner, seed=10)
    assert first.update(batch, 0.5) == second.update(batch, 0.5)


@pytest.mark.parametrize("learner", ["dqn", "sac"])
def test_numbers_that_are_not_finite_end_the_experiment_naming_the_update(learner: str) -> None:
    policy, made = make(learner, replay={"learning_starts": 1})
    made.update(play(policy, learner, seed=0), 0.0)
    batch = play(policy, learner, seed=1)
    batch.reward[...] = math.nan
    with pytest.raises(ExperimentFailed, match=r"update 2 gave numbers that are not finite \(value_loss = nan"):
        made.update(batch, 0.0)


@pytest.mark.parametrize("learner", ["dqn", "sac"])
def test_statistics_of_observations_that_a_policy_begins_with_are_kept(learner: str) -> None:
    # Given first weights with the statistics of what was seen before, as policy.init brings them
    spec = make_spec(learner=learner, policy=SMALL)
    policy = make_policy(spec.policy, CARTPOLE, ACTIONS[learner], seed=1)
    normaliser = Normaliser(CARTPOLE)
    normaliser.update({"obs": np.random.default_rng(0).normal(5.0, 2.0, (100, 4))})
    policy.set_weights(policy.get_weights() | normaliser.weights())
    # When a learner begins with them, whether it goes on with the statistics or leaves them as they are
    for goes_on in (False, True):
        begun = make_spec(learner=learner, policy=SMALL, normalize_observations=goes_on)
        found = make_learner(begun, policy, device=CPU, seed=1).get_weights()
        # Then they are part of what it publishes
        assert all(np.array_equal(found[name], array) for name, array in normaliser.weights().items())


def test_an_actor_that_never_takes_a_step_ends_the_experiment_though_the_critics_take_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Given SAC that leaves out bad steps, and whose actor alone, judged for its own loss, gives NaN
    policy, made = make("sac", replay={"learning_starts": 1}, on_bad_step="skip")
    assert isinstance(made, Sac)
    act = made._act

    def spoilt(observations: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        action, log_prob = act(observations)
        return action, log_prob * math.nan if torch.is_grad_enabled() else log_prob

    monkeypatch.setattr(made, "_act", spoilt)
    # When it is given ever more experience, then it fails by name
    with pytest.raises(ExperimentFailed, match=r"not finite 101 times one after another \(policy_loss"):
        for seed in range(20):
            made.update(play(policy, "sac", seed=seed), 0.0)


@pytest.mark.parametrize("learner", ["dqn", "sac"])
def test_a_learning_rate_that_wipes_the_weights_out_is_told_before_it_does(learner: str) -> None:
    policy, made = make(learner, replay={"learning_starts": 1}, lr=1e6)
    before = made.get_weights()
    with pytest.raises(ExperimentFailed, match=r"a step that moves every weight by 1e\+06 times what weights are"):
        for seed in range(20):
            made.update(play(policy, learner, seed=seed), 0.0)
    assert all(
        np.array_equal(before[name], array) for name, array in made.get_weights().items() if "epsilon" not in name
    )


def test_critics_value_the_action_that_the_environment_was_given() -> None:
    # Given the same experience twice, once with actions beyond the bounds as another policy chose them
    found = []
    for beyond in (0.0, 100.0):
        policy, made = make("sac", replay={"learning_starts": 1})
        batch = play(policy, "sac", seed=0)
        batch.actions["action"][...] = 4.0 + beyond
        found.append((made.update(batch, 0.0), made.state()[0]))
    # Then it makes no difference: the environment was given the bounds
    assert found[0][0] == found[1][0]
    assert all(np.array_equal(found[0][1][name], found[1][1][name]) for name in found[0][1] if "replay" not in name)


def test_sac_is_for_its_own_policy() -> None:
    assert Sac.name == "sac"
    spec = make_spec(learner="sac")
    policy = make_policy(make_spec(learner="dqn", policy=SMALL).policy, CARTPOLE, Discrete(3))
    with pytest.raises(EnvError, match="has no random among its weights"):
        make_learner(spec, policy, device=CPU, seed=0)


def test_a_run_that_continues_another_fills_its_buffer_first_and_acts_by_what_was_learned() -> None:
    # Given a learner that learned, and one that takes over all but its buffer
    policy, first = make("dqn", dqn={"epsilon": 0.125})
    for update in range(3):
        first.update(play(policy, "dqn", seed=update), 0.0)
    _, second = make("dqn", dqn={"epsilon": 0.125})
    second.set_weights(first.get_weights())
    second.load(*first.state())
    # When it is given experience
    metrics = [second.update(play(policy, "dqn", seed=update), 0.0) for update in range(2)]
    # Then it learns once there is enough, and explores no more than before
    assert [each["gradient_steps"] for each in metrics] == [0.0, 16.0]
    assert [each["epsilon"] for each in metrics] == [0.125, 0.125]


# ---- the spec


def test_a_buffer_that_one_update_overwrites_is_found_before_anything_runs() -> None:
    spec = make_spec(learner="dqn", replay={"capacity": 65536})
    problems = size_problems(spec, needs(spec, segment_bytes=10_000))
    assert [each.key for each in problems] == ["trainer.replay.capacity"]
    assert "is below twice the 80000 bytes of one update" in str(problems[0])


def test_a_learner_brings_its_policy_its_tables_and_no_limit_of_age() -> None:
    for learner, policy, samples in (("dqn", "q", 8.0), ("sac", "sac", 256.0)):
        spec = make_spec(learner=learner)
        assert spec.policy.id == policy
        assert spec.trainer.replay is not None
        assert spec.trainer.replay.samples_per_step == samples
        assert getattr(spec.trainer, learner) is not None
    given = make_spec(learner="sac", replay={"n_step": 3}).trainer.replay
    assert given is not None
    assert (given.n_step, given.samples_per_step) == (3, 256.0)


@pytest.mark.parametrize(
    ("trainer", "policy", "message"),
    [
        (
            {"learner": "dqn", "gae_lambda": 0.9},
            {},
            "trainer.gae_lambda = 0.9: has no meaning with trainer.learner = dqn",
        ),
        ({"learner": "ppo", "replay": {}}, {}, "trainer.replay: has no meaning with trainer.learner = ppo"),
        ({"learner": "sac", "dqn": {"tau": 0.5}}, {}, "trainer.dqn: has no meaning with trainer.learner = sac"),
        ({"learner": "dqn"}, {"id": "mlp"}, "policy.id = 'mlp': cannot be trained by trainer.learner = dqn"),
        ({"learner": "ppo"}, {"id": "q"}, "policy.id = 'q': can be trained by trainer.learner = dqn only, not by ppo"),
        (
            {"learner": "dqn", "replay": {"learning_starts": 1_000_001}},
            {},
            "trainer.replay.learning_starts = 1000001: is more than budget.env_steps = 1000000",
        ),
        ({"learner": "dqn", "replay": {"alpha": 0.5}}, {}, "alpha = 0.5: has no meaning without prioritised"),
        ({"learner": "dqn", "replay": {"beta": 0.5}}, {}, "beta: has no meaning without prioritised"),
        (
            {"learner": "sac", "sac": {"temperature": 0.1, "target_entropy": -3.0}},
            {},
            "trainer.sac.target_entropy = -3.0: has no meaning with trainer.sac.temperature = 0.1",
        ),
        (
            {"learner": "sac", "sac": {"temperature": 0.1, "first_temperature": 0.5}},
            {},
            "trainer.sac.first_temperature = 0.5: has no meaning with trainer.sac.temperature = 0.1",
        ),
        ({"learner": "dqn", "replay": {"capacity": "1kB"}}, {}, "must be at least 65536"),
    ],
)
def test_what_means_nothing_to_a_learner_is_refused(trainer: Any, policy: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        make_spec(policy=policy, **trainer)
