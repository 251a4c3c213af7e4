"""V-trace: targets against cases worked out by hand and against lambda returns, and a learner that learns by them."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from heddle.consumers.learners import TrainBatch, make_learner
from heddle.consumers.learners.gae import gae, next_values
from heddle.consumers.learners.vtrace_targets import Clips, VtraceTargets, vtrace
from heddle.errors import ExperimentFailed, SpecError
from heddle.policies import make_policy
from heddle.policies.base import Policy
from heddle.spaces import Box, Discrete, Space
from tests.unit.policy_zoo import CARTPOLE, make_spec
from tests.unit.test_ppo import CPU, ZOO, check_that_it_learns_to_recall, play

GAMMA = 0.5


def row(*numbers: float) -> Tensor:
    """One segment."""
    return torch.tensor([numbers], dtype=torch.float32)


def flags(*numbers: int) -> Tensor:
    return torch.tensor([numbers], dtype=torch.bool)


def targets(ratio: Tensor, rewards: Tensor, values: Tensor, **other: Any) -> VtraceTargets:
    none = torch.zeros_like(rewards, dtype=torch.bool)
    terminated, truncated = other.pop("terminated", none), other.pop("truncated", none)
    finals = other.pop("final_values", torch.zeros_like(rewards))
    following = next_values(values, terminated=terminated, truncated=truncated, final_values=finals)
    valid = other.pop("valid", ~none)
    ended = terminated | truncated
    return vtrace(ratio.log(), rewards, values, following, ended=ended, valid=valid, gamma=GAMMA, **other)


def weighted(found: VtraceTargets) -> list[float]:
    """What the log-probabilities of a segment are multiplied by."""
    numbers: list[float] = (found.weight * found.advantage)[0].tolist()
    return numbers


def test_weights_above_their_limits_are_clipped_and_those_below_count_as_they_are() -> None:
    # ratio 2, 0.5, 1 -> rho = c = 1, 0.5, 1.  delta: 1+.5*4-2 = 1; .5*(1+.5*6-4) = 0; 1+.5*8-6 = -1
    # over: -1; 0+.5*.5*-1 = -.25; 1+.5*1*-.25 = .875.  value targets 2.875, 3.75, 5
    # advantage: 1+.5*3.75-2 = .875; .5*(1+.5*5-4) = -.25; 1+.5*8-6 = -1
    found = targets(row(2, 0.5, 1), row(1, 1, 1), row(2, 4, 6, 8))
    assert found.value[0].tolist() == [2.875, 3.75, 5.0]
    assert weighted(found) == [0.875, -0.25, -1.0]


def test_each_weight_has_a_limit_of_its_own() -> None:
    # ratio 4: rho 2, c 0.5, policy 3.  delta: 2*(1+.5*4-2) = 2; 2*(1+.5*8-4) = 2.  over: 2; 2+.5*.5*2 = 2.5
    # advantage: 3*(1+.5*(4+2)-2) = 6; 3*(1+.5*8-4) = 3
    found = targets(row(4, 4), row(1, 1), row(2, 4, 8), clips=Clips(rho=2, c=0.5, policy_rho=3))
    assert found.value[0].tolist() == [4.5, 6.0]
    assert weighted(found) == [6.0, 3.0]


def test_termination_and_truncation_cut_trace_and_bootstrap_where_they_should() -> None:
    # terminated at 1: delta 1+0-4 = -3, nothing flows back from step 2
    found = targets(row(1, 1, 1), row(1, 1, 1), row(2, 4, 6, 8), terminated=flags(0, 1, 0))
    assert found.value[0].tolist() == [2 + 1 + GAMMA * -3, 1.0, 5.0]
    assert weighted(found) == [1 + GAMMA * 1 - 2, -3.0, -1.0]
    # truncated at 1 with final value 10: delta 1+5-4 = 2
    found = targets(row(1, 1, 1), row(1, 1, 1), row(2, 4, 6, 8), truncated=flags(0, 1, 0), final_values=row(0, 10, 0))
    assert found.value[0].tolist() == [2 + 1 + GAMMA * 2, 6.0, 5.0]
    assert weighted(found) == [1 + GAMMA * 6 - 2, 2.0, -1.0]


def test_a_short_segment_bootstraps_from_its_own_last_observation_whatever_lies_beyond() -> None:
    rubbish = math.nan
    short = targets(row(2, 0.5, rubbish), row(1, 1, rubbish), row(2, 4, 6, rubbish), valid=flags(1, 1, 0))
    whole = targets(row(2, 0.5), row(1, 1), row(2, 4, 6))
    assert short.value[0].tolist() == [*whole.value[0].tolist(), 0.0]
    assert weighted(short) == [*weighted(whole), 0.0]


@pytest.mark.parametrize("lam", [1.0, 0.8])
@pytest.mark.parametrize("seed", range(3))
def test_on_policy_targets_are_lambda_returns_and_with_lambda_one_advantages_are_those_of_gae(
    seed: int, lam: float
) -> None:
    # Given random segments of different lengths that hold several episodes, and ratios of 1
    rng = torch.Generator().manual_seed(seed)
    rewards, finals = torch.randn(6, 9, generator=rng), torch.randn(6, 9, generator=rng)
    values = torch.randn(6, 10, generator=rng)
    terminated, truncated = (torch.rand(6, 9, generator=rng) < 0.2 for _ in range(2))
    valid = torch.arange(9) < torch.randint(1, 10, (6, 1), generator=rng)
    following = next_values(values, terminated=terminated, truncated=truncated, final_values=finals)
    ended = terminated | truncated
    # When targets are computed both ways
    found = vtrace(torch.zeros(6, 9), rewards, values, following, ended=ended, valid=valid, gamma=0.9, lam=lam)
    advantage = gae(rewards, values, following, ended=ended, valid=valid, gamma=0.9, lam=lam)
    # Then they agree
    expected = torch.where(valid, advantage + values[:, :-1], 0.0)
    torch.testing.assert_close(found.value, expected)
    if lam == 1.0:
        torch.testing.assert_close(found.advantage, advantage)


CASES: list[tuple[Space, dict[str, Any]]] = [
    (Discrete(3), {}),
    (Box((2,), "float32", -1, 1), {}),
    (Discrete(3), {"id": f"{ZOO}:Remembers"}),
]


@pytest.mark.parametrize(("action", "named"), CASES)
def test_the_reward_rises_though_the_experience_is_four_versions_old(action: Space, named: dict[str, Any]) -> None:
    # Given workers that play weights of four updates ago
    spec = make_spec(policy=named, learner="vtrace", lr=5e-3, minibatch=64, normalize_observations=True)
    policy = make_policy(spec.policy, CARTPOLE, action, seed=1)
    learner = make_learner(spec, policy, device=CPU, seed=1)
    published = [learner.get_weights()]
    policy.set_weights(published[0])
    before = float(play(policy, CARTPOLE, action, seed=999).reward.mean())
    # When it learns from what they play, some of it in short segments
    for update in range(60):
        policy.set_weights(published[max(0, update - 4)])
        metrics = learner.update(play(policy, CARTPOLE, action, seed=update, shorten=True), update / 60)
        published.append(learner.get_weights())
    # Then it does what is rewarded more often
    policy.set_weights(published[-1])
    after = float(play(policy, CARTPOLE, action, seed=999).reward.mean())
    assert after > before + 0.3
    assert all(np.isfinite(value) for value in metrics.values())


def test_a_recurrent_policy_learns_what_only_memory_can_tell() -> None:
    policy = {"id": f"{ZOO}:Remembers"}
    check_that_it_learns_to_recall(
        make_spec(policy=policy, learner="vtrace", lr=1e-2, minibatch=64, gamma=0.5, passes=4)
    )


def _learned(policy: Policy, batch: TrainBatch, **options: Any) -> dict[str, Any]:
    learner = make_learner(make_spec(learner="vtrace", **options), policy, device=CPU, seed=5)
    learner.update(batch, 0.0)
    return learner.get_weights()


def test_the_rows_of_a_minibatch_take_their_own_final_observations_along() -> None:
    # Given segments whose episodes were truncated, learned from in minibatches of one segment, with a step of nothing
    spec = make_spec(learner="vtrace", minibatch=1, lr=0.0)
    policy = make_policy(spec.policy, CARTPOLE, Discrete(2), seed=1)
    batch = play(policy, CARTPOLE, Discrete(2), rows=4)
    batch.terminated[...] = False
    batch.truncated[...] = True
    batch.final_index = torch.tensor([(row, step) for row in range(4) for step in range(8)])
    batch.final_observations = {"obs": torch.randn(32, 4, generator=torch.Generator().manual_seed(1))}
    losses = []
    for minibatch in (1, 4 * 8):
        learner = make_learner(make_spec(learner="vtrace", minibatch=minibatch, lr=0.0), policy, device=CPU, seed=5)
        losses.append(learner.update(batch, 0.0)["value_loss"])
    # Then the mean of their losses is that of all at once
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_steps_beyond_a_segments_end_do_not_count() -> None:
    policy = make_policy(make_spec().policy, CARTPOLE, Discrete(2), seed=1)
    found = []
    for rubbish in (0.0, 1e6):
        batch = play(policy, CARTPOLE, Discrete(2), shorten=True)
        batch.reward[~batch.valid] = rubbish
        batch.outputs["log_prob"][~batch.valid] = rubbish
        batch.observations["obs"][::2, 4:] = rubbish
        found.append(_learned(policy, batch))
    assert all(np.array_equal(found[0][name], found[1][name]) for name in found[0])


def test_a_resumed_learner_goes_on_exactly_as_the_first_would_have() -> None:
    spec = make_spec(learner="vtrace", minibatch=32, normalize_observations=True, normalize_rewards=True)
    policy = make_policy(spec.policy, CARTPOLE, Discrete(2), seed=1)
    first, second = (make_learner(spec, policy, device=CPU, seed=seed) for seed in (5, 6))
    first.update(play(policy, CARTPOLE, Discrete(2)), 0.0)
    second.set_weights(first.get_weights())
    second.load(*first.state())
    batch = play(policy, CARTPOLE, Discrete(2), seed=2)
    assert first.update(batch, 0.5) == second.update(batch, 0.5)
    one, two = first.get_weights(), second.get_weights()
    assert all(np.array_equal(one[name], two[name]) for name in one)


def test_keys_of_another_learner_are_refused_with_what_to_do() -> None:
    with pytest.raises(SpecError) as caught:
        make_spec(learner="vtrace", clip=0.3, target_kl=0.1)
    assert [(each.key, each.reason) for each in caught.value.problems] == [
        ("trainer.clip", "has no meaning with trainer.learner = vtrace"),
        ("trainer.target_kl", "has no meaning with trainer.learner = vtrace"),
    ]
    assert caught.value.problems[0].hint == "leave it out, or use trainer.learner = ppo"
    with pytest.raises(SpecError, match=r"trainer\.vtrace: has no meaning with trainer\.learner = ppo"):
        make_spec(vtrace={"rho_clip": 2.0})


def test_an_exploding_gradient_fails_or_is_left_out_as_the_spec_says() -> None:
    policy = make_policy(make_spec().policy, CARTPOLE, Discrete(2), seed=1)
    batch = play(policy, CARTPOLE, Discrete(2))
    batch.reward[0, 0] = 1e6
    for learner in ("ppo", "vtrace"):
        fails = make_learner(make_spec(learner=learner, grad_limit=100.0), policy, device=CPU, seed=0)
        with pytest.raises(ExperimentFailed, match=r"update 1 gave a gradient of norm .* above trainer.grad_limit"):
            fails.update(batch, 0.0)
        spec = make_spec(learner=learner, grad_limit=100.0, on_bad_step="skip", normalize_advantage=False)
        skips = make_learner(spec, policy, device=CPU, seed=0)
        assert skips.update(batch, 0.0)["skipped_steps"] >= 1
        assert all(np.isfinite(array).all() for array in skips.get_weights().values())


@pytest.mark.parametrize(("learner", "env"), [("ppo", CARTPOLE), ("vtrace", CARTPOLE)])
def test_a_learning_rate_that_wipes_the_weights_out_is_told_before_it_does(learner: str, env: Box) -> None:
    policy = make_policy(make_spec().policy, env, Discrete(2), seed=1)
    batch = play(policy, env, Discrete(2))
    fails = make_learner(make_spec(learner=learner, lr=1e6), policy, device=CPU, seed=0)
    with pytest.raises(ExperimentFailed, match=r"update 1 gave a step that moves every weight by 1e\+06 times what"):
        fails.update(batch, 0.0)
    pauses: Any = make_learner(make_spec(learner=learner, lr=1e6, on_bad_step="pause"), policy, device=CPU, seed=0)
    before = pauses.get_weights()
    pauses.update(batch, 0.0)
    assert pauses.complaint().startswith("update 1 gave a step that moves every weight")
    for made in (fails, pauses):
        assert all(np.array_equal(before[name], array) for name, array in made.get_weights().items())
    high = make_learner(make_spec(learner=learner, lr=1.0), policy, device=CPU, seed=0)
    assert "skipped_steps" not in high.update(batch, 0.0)


def test_a_learner_that_leaves_steps_out_may_ask_for_a_pause_and_says_why_once() -> None:
    policy = make_policy(make_spec().policy, CARTPOLE, Discrete(2), seed=1)
    batch = play(policy, CARTPOLE, Discrete(2))
    batch.reward[...] = math.nan
    for learner in ("ppo", "vtrace"):
        made: Any = make_learner(make_spec(learner=learner, on_bad_step="pause"), policy, device=CPU, seed=0)
        before = made.get_weights()
        for _ in range(120):
            made.update(batch, 0.0)
        assert all(np.array_equal(before[name], array) for name, array in made.get_weights().items())
        assert made.complaint().startswith("update 1 gave numbers that are not finite")
        assert made.complaint() == ""


def test_a_learner_that_would_leave_out_every_step_fails_in_the_end() -> None:
    policy = make_policy(make_spec().policy, CARTPOLE, Discrete(2), seed=1)
    batch = play(policy, CARTPOLE, Discrete(2))
    batch.reward[...] = math.nan
    learner = make_learner(make_spec(learner="vtrace", on_bad_step="skip"), policy, device=CPU, seed=0)
    for _ in range(100):
        learner.update(batch, 0.0)
    with pytest.raises(ExperimentFailed, match=r"update 101 gave numbers that are not finite 101 times"):
        learner.update(batch, 0.0)
